//! Compiles Lua 5.1, the language of the locks' scripts.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    lua_src::Build::new()
        .build(lua_src::Lua51)
        .print_cargo_metadata();
}
