//! Tells the linker that Node provides its symbols.

fn main() {
    // The linker would name it after the folder that it is built in.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "macos") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/redlatch.node");
    }
    // On Windows Node's symbols are looked up when it loads us.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "windows") {
        napi_build::setup();
    }
}
