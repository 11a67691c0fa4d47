//! Gives the shared library its name for the dynamic linker.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if system == "macos" {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libredlatch.0.dylib");
    }
    if system == "linux" {
        // The number changes only when programs have to be compiled again; install.sh reads it
        // here.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libredlatch.so.0");
        // Threads of the program have data with destructors in the library: it must never be
        // unloaded.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
