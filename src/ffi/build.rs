//! Builds the C++ trampoline, generates the table of exports, and gives this crate's tests the executable's linkage.

use std::fmt::Write as _;
use std::path::PathBuf;

fn main() {
    for source in ["guard.h", "guard.cc", "callbacks.cc"] {
        println!("cargo:rerun-if-changed={source}");
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(true)
        .warnings_into_errors(false)
        .file("guard.cc")
        .file("callbacks.cc")
        .compile("conch_guard");

    let abi = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by Cargo"))
        .join("../abi/exports.txt");
    println!("cargo:rerun-if-changed={}", abi.display());
    let names = std::fs::read_to_string(&abi).expect("src/abi/exports.txt is readable");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("set by Cargo"));

    let mut table = String::from("exports_table! {\n");
    let mut dynamic_list = String::from("{\n");
    for name in names.lines() {
        writeln!(table, "    {name},").expect("strings take all writes");
        writeln!(dynamic_list, "    {name};").expect("strings take all writes");
    }
    table.push_str("}\n");
    dynamic_list.push_str("};\n");
    std::fs::write(out.join("exports.rs"), table).expect("OUT_DIR is writable");

    // The tests load plug-ins in-process, so their executables export the C API under the library's name, as the server does.
    let list = out.join("exports.list");
    std::fs::write(&list, dynamic_list).expect("OUT_DIR is writable");
    println!(
        "cargo:rustc-link-arg-tests=-Wl,--dynamic-list={}",
        list.display()
    );
    println!("cargo:rustc-link-arg-tests=-Wl,-soname,libtritonserver.so");
}
