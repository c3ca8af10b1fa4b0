//! Links the plug-in against the stub server library, so that it carries `NEEDED libtritonserver.so`.

fn main() {
    let stub =
        std::env::var("DEP_TRITONSERVER_STUB_DIRECTORY").expect("set by the SDK's build script");
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-Wl,--no-as-needed", &format!("-L{stub}"), "-ltritonserver"] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    // Its unit tests are programs without a server. What they never call may stay unresolved: an unoptimised build refers to all of it.
    println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
}
