//! Linkage of the one program here that loads backends: it exports the C API under the server's name, as the executable does.

use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by Cargo"));
    let names = root.join("../src/abi/exports.txt");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", names.display());
    let names = std::fs::read_to_string(&names).expect("src/abi/exports.txt is readable");
    let list: String = names.lines().map(|name| format!("    {name};\n")).collect();
    let path = PathBuf::from(std::env::var("OUT_DIR").expect("set by Cargo")).join("exports.list");
    std::fs::write(&path, format!("{{\n{list}}};\n")).expect("OUT_DIR is writable");
    println!(
        "cargo:rustc-link-arg-bin=ffi-round-trip=-Wl,--dynamic-list={}",
        path.display()
    );
    println!("cargo:rustc-link-arg-bin=ffi-round-trip=-Wl,-soname,libtritonserver.so");
}
