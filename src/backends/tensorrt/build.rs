//! Links the plug-in against the stub server library, so that it carries `NEEDED
//! libtritonserver.so`.

fn main() {
    let stub =
        std::env::var("DEP_TRITONSERVER_STUB_DIRECTORY").expect("set by the SDK's build script");
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-Wl,--no-as-needed", &format!("-L{stub}"), "-ltritonserver"] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
