//! Makes a stub `libtritonserver.so`: empty functions of the 281 exported names under the real
//! library's SONAME, for plug-ins to link against. A plug-in so linked carries `NEEDED
//! libtritonserver.so` and finds the real functions in whatever server loads it.
//!
//! Dependents read the stub's folder from `DEP_TRITONSERVER_STUB_DIRECTORY` in their own build
//! script.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const EXPORTS: &str = "../../abi/exports.txt";

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let exports = manifest.join(EXPORTS);
    println!("cargo:rerun-if-changed={}", exports.display());
    println!("cargo:rerun-if-changed=build.rs");

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let names = fs::read_to_string(&exports)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", exports.display()));
    let source = out.join("tritonserver_stub.c");
    fs::write(&source, stub_source(&names)).expect("OUT_DIR is writable");

    // A folder of its own, so that `-L` offers nothing else.
    let directory = out.join("stub");
    fs::create_dir_all(&directory).expect("OUT_DIR is writable");
    link(&source, &directory.join("libtritonserver.so"));
    println!("cargo:directory={}", directory.display());
    // For this crate's own tests, which call no server; what of it the linker leaves in them is up
    // to the optimiser.
    let shown = directory.display();
    for argument in [
        "-Wl,--as-needed",
        &format!("-L{shown}"),
        "-ltritonserver",
        &format!("-Wl,-rpath,{shown}"),
    ] {
        println!("cargo:rustc-link-arg={argument}");
    }
}

fn stub_source(names: &str) -> String {
    let mut source = String::new();
    for name in names.lines().map(str::trim) {
        if name.is_empty() || name.starts_with('#') {
            continue;
        }
        source.push_str(&format!("void {name}(void) {{}}\n"));
    }
    source
}

fn link(source: &Path, library: &Path) {
    let compiler = cc::Build::new().get_compiler();
    let mut command = Command::new(compiler.path());
    command
        .args(["-shared", "-fPIC", "-Wl,-soname,libtritonserver.so", "-o"])
        .arg(library)
        .arg(source);
    let status = command
        .status()
        .unwrap_or_else(|error| panic!("cannot start the C compiler ({command:?}): {error}"));
    assert!(status.success(), "{command:?} failed: {status}");
}
