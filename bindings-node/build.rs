//! Tells the linker that Node provides its symbols.

fn main() {
    napi_build::setup();
}
