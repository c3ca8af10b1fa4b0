//! Compiles the `.proto` files without any installed compiler: protox makes the descriptors,
//! prost-build the Rust types.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use prost_build::Config;
use protox::prost::Message;
use protox::prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use protox::prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
};

fn main() {
    let root = PathBuf::from("../../proto");
    let files = [
        "model_config.proto",
        "grpc_service.proto",
        "health.proto",
        "reflection.proto",
        "reflection_v1alpha.proto",
    ];
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
    std::fs::write(
        output.join("model_config.bin"),
        model_config(&plain).encode_to_vec(),
    )
    .expect("OUT_DIR is writable");
    write_catalog(&plain, &output);
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
    compile_telemetry(&root);
}

/// Messages that conch sends to collectors of traces. Compiled apart: they are no part of what the
/// server serves, so reflection must not show them.
fn compile_telemetry(root: &Path) {
    let file = "otlp_trace.proto";
    println!("cargo:rerun-if-changed={}", root.join(file).display());
    let descriptors = protox::compile([file], [root]).expect("the .proto file compiles");
    Config::new()
        .compile_fds(descriptors)
        .expect("the descriptors make Rust types");
}

/// What code that works by field name needs: `model_config.proto` and the one option that it has.
///
/// Entries of maps are marked by an option. Where a set does not say what messages' options are,
/// prost-reflect makes descriptors of all of protobuf's own messages for it, which takes longer
/// than these, and a megabyte.
fn model_config(set: &FileDescriptorSet) -> FileDescriptorSet {
    let map_entry = FieldDescriptorProto {
        name: Some(String::from("map_entry")),
        number: Some(7),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::Bool.into()),
        json_name: Some(String::from("mapEntry")),
        ..FieldDescriptorProto::default()
    };
    let options = FileDescriptorProto {
        name: Some(String::from("google/protobuf/descriptor.proto")),
        package: Some(String::from("google.protobuf")),
        message_type: vec![DescriptorProto {
            name: Some(String::from("MessageOptions")),
            field: vec![map_entry],
            ..DescriptorProto::default()
        }],
        ..FileDescriptorProto::default()
    };
    let is_config = |file: &&FileDescriptorProto| file.name() == "model_config.proto";
    let config = set.file.iter().find(is_config);
    FileDescriptorSet {
        file: vec![options, config.expect("it was compiled").clone()],
    }
}

/// Writes the tables of `catalog.rs`, so that nothing of it is left to do at run time.
fn write_catalog(set: &FileDescriptorSet, output: &Path) {
    let position = |name: &str| {
        let found = set.file.iter().position(|file| file.name() == name);
        found.expect("imports are part of the set")
    };
    let mut symbols: Vec<(String, usize)> = Vec::new();
    let mut messages = Vec::new();
    let mut services = Vec::new();
    let mut text = String::from("pub static FILES: &[File] = &[\n");
    for (index, file) in set.file.iter().enumerate() {
        let bytes = format!("catalog-{index}.bin");
        std::fs::write(output.join(&bytes), file.encode_to_vec()).expect("OUT_DIR is writable");
        let imports: Vec<usize> = file.dependency.iter().map(|name| position(name)).collect();
        let name = file.name();
        writeln!(
            text,
            "File {{ name: {name:?}, descriptor: include_bytes!(concat!(env!(\"OUT_DIR\"), \
             \"/{bytes}\")), imports: &{imports:?} }},"
        )
        .expect("writing to a string cannot fail");
        let mut names = Vec::new();
        for message in &file.message_type {
            name_message(file.package(), message, &mut names, &mut messages);
        }
        for kind in &file.enum_type {
            name_enum(file.package(), kind, &mut names);
        }
        for service in &file.service {
            let service_name = format!("{}.{}", file.package(), service.name());
            let methods = service.method.iter();
            names.extend(methods.map(|method| format!("{service_name}.{}", method.name())));
            services.push(service_name.clone());
            names.push(service_name);
        }
        symbols.extend(names.into_iter().map(|name| (name, index)));
    }
    symbols.sort();
    messages.sort();
    write!(
        text,
        "];\npub static SYMBOLS: &[(&str, usize)] = &{symbols:?};\npub static MESSAGES: &[&str] = \
         &{messages:?};\npub static SERVICES: &[&str] = &{services:?};\n"
    )
    .expect("writing to a string cannot fail");
    std::fs::write(output.join("catalog.rs"), text).expect("OUT_DIR is writable");
}

fn name_message(
    scope: &str,
    message: &DescriptorProto,
    names: &mut Vec<String>,
    messages: &mut Vec<String>,
) {
    let own = format!("{scope}.{}", message.name());
    for nested in &message.nested_type {
        name_message(&own, nested, names, messages);
    }
    for kind in &message.enum_type {
        name_enum(&own, kind, names);
    }
    let fields = message.field.iter();
    names.extend(fields.map(|field| format!("{own}.{}", field.name())));
    let choices = message.oneof_decl.iter();
    names.extend(choices.map(|choice| format!("{own}.{}", choice.name())));
    messages.push(own.clone());
    names.push(own);
}

/// Values are named beside their type, not within it.
fn name_enum(scope: &str, kind: &EnumDescriptorProto, names: &mut Vec<String>) {
    names.push(format!("{scope}.{}", kind.name()));
    let values = kind.value.iter();
    names.extend(values.map(|value| format!("{scope}.{}", value.name())));
}
