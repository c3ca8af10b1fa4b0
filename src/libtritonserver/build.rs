//! Gives the library its SONAME, which Cargo does not, and hides what is not of its interface.

fn main() {
    for source in ["build.rs", "hidden.s"] {
        println!("cargo:rerun-if-changed={source}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
    for object in cc::Build::new().file("hidden.s").compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
}
