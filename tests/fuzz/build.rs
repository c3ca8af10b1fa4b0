//! Linkage of the target that loads a backend: it exports the C API, as the executable does.

#[path = "../../src/abi/linkage.rs"]
mod linkage;

fn main() {
    let root = std::path::PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by Cargo"));
    linkage::export_c_api(&root.join("../../src/abi"), "bin=c_api");
}
