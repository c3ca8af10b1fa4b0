//! Builds the C++ trampoline, generates the table of exports, and gives this crate's tests the
//! executable's linkage, as they load plug-ins in-process.

use std::path::PathBuf;

#[path = "../abi/linkage.rs"]
mod linkage;

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

    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by Cargo"));
    let names = linkage::export_c_api(&root.join("../abi"), "tests");
    let rows: String = names.lines().map(|name| format!("    {name},\n")).collect();
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("set by Cargo"));
    std::fs::write(
        out.join("exports.rs"),
        format!("exports_table! {{\n{rows}}}\n"),
    )
    .expect("OUT_DIR is writable");
}
