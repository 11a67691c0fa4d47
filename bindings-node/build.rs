//! Tells the linker that Node provides its symbols.

fn main() {
    // On Windows Node's symbols are looked up when it loads us.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "windows") {
        napi_build::setup();
    }
}
