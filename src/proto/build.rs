//! Compiles the `.proto` files without any installed compiler: protox makes the descriptors, prost-build the Rust types.

use std::path::PathBuf;

use prost_build::Config;
use protox::prost::Message;

fn main() {
    let root = PathBuf::from("../../proto");
    let files = ["model_config.proto", "grpc_service.proto", "health.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={}", root.join(file).display());
    }
    let descriptors = protox::compile(files, [&root]).expect("the .proto files compile");
    let output = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut plain = descriptors.clone();
    for file in &mut plain.file {
        // Comments and positions are of no use at run time.
        file.source_code_info = None;
    }
    std::fs::write(output.join("descriptors.bin"), plain.encode_to_vec())
        .expect("OUT_DIR is writable");
    Config::new()
        // Deterministic order in everything that is printed.
        .btree_map(["."])
        // Tensor contents are handed over, not copied.
        .bytes([
            ".inference.ModelInferRequest.raw_input_contents",
            ".inference.ModelInferResponse.raw_output_contents",
        ])
        .compile_fds(descriptors)
        .expect("the descriptors make Rust types");
}
