//! Gives the library its SONAME, which Cargo does not.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
}
