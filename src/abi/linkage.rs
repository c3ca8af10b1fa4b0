//! For build scripts: the linkage of programs that provide the C API, the executable and what
//! stands in for it.
//!
//! `--dynamic-list` exports the listed functions, and only those, from a program. The SONAME makes
//! a plug-in's `NEEDED libtritonserver.so` resolve to the running program, so there is one engine
//! per process.

use std::path::{Path, PathBuf};

/// Has Cargo link `programs` (as `rustc-link-arg-` names them: `bins`, `tests`, `bin=NAME`) so that
/// they export the functions that the files of the folder `abi` list, one per line. Returns those
/// lines.
pub fn export_c_api(abi: &Path, programs: &str) -> String {
    println!("cargo:rerun-if-changed=build.rs");
    let names: String = ["exports.txt", "extensions.txt"]
        .map(|file| {
            let path = abi.join(file);
            println!("cargo:rerun-if-changed={}", path.display());
            std::fs::read_to_string(path).expect("the lists of src/abi are readable")
        })
        .concat();
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
