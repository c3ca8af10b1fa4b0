//! For build scripts: the linkage of programs that provide the C API, the executable and what
//! stands in for it.
//!
//! `--dynamic-list` exports the listed functions, and only those, from a program. The SONAME makes
//! a plug-in's `NEEDED libtritonserver.so` resolve to the running program, so there is one engine
//! per process.

use std::path::{Path, PathBuf};

/// Has Cargo link `programs` (as `rustc-link-arg-` names them: `bins`, `tests`, `bin=NAME`) so that
/// they export the functions that the file `names` lists, one per line. Returns those lines.
pub fn export_c_api(names: &Path, programs: &str) -> String {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", names.display());
    let names = std::fs::read_to_string(names).expect("src/abi/exports.txt is readable");
    let list: String = names.lines().map(|name| format!("    {name};\n")).collect();
    let path = PathBuf::from(std::env::var("OUT_DIR").expect("set by Cargo")).join("exports.list");
    std::fs::write(&path, format!("{{\n{list}}};\n")).expect("OUT_DIR is writable");
    for argument in [
        &format!("--dynamic-list={}", path.display()),
        "-soname,libtritonserver.so",
    ] {
        println!("cargo:rustc-link-arg-{programs}=-Wl,{argument}");
    }
    names
}
