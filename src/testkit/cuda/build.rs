//! Names the library as the driver's is named. Its streams are threads, so that it stays loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
