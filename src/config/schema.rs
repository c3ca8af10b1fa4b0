//! The descriptors of the messages, for code that works by field name: the text and the JSON form.

use std::sync::LazyLock;

use conch_proto::inference::ModelConfig;
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

static MODEL_CONFIG: LazyLock<MessageDescriptor> = LazyLock::new(|| {
    DescriptorPool::decode(conch_proto::MODEL_CONFIG_DESCRIPTORS)
        .expect("the build script wrote these descriptors")
        .get_message_by_name("inference.ModelConfig")
        .expect("model_config.proto defines it")
});

/// The descriptor of `inference.ModelConfig`.
pub(crate) fn model_config() -> MessageDescriptor {
    MODEL_CONFIG.clone()
}

/// The typed form of a message built by field name.
pub(crate) fn to_typed(message: &DynamicMessage) -> ModelConfig {
    ModelConfig::decode(message.encode_to_vec().as_slice())
        .expect("both sides come from one schema")
}

/// The form of a message that can be read by field name.
pub(crate) fn to_dynamic(config: &ModelConfig) -> DynamicMessage {
    DynamicMessage::decode(model_config(), config.encode_to_vec().as_slice())
        .expect("both sides come from one schema")
}

/// Messages within messages, in any of the forms read. The schema itself allows far less; this
/// bounds the recursion of the readers whatever the schema says. The same number as upstream's JSON
/// reader.
pub(crate) const DEPTH_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and numbers of the wire, as clients and backends have them.
    const FIELDS: [(&str, u32); 25] = [
        ("name", 1),
        ("platform", 2),
        ("version_policy", 3),
        ("max_batch_size", 4),
        ("input", 5),
        ("output", 6),
        ("instance_group", 7),
        ("default_model_filename", 8),
        ("cc_model_filenames", 9),
        ("metric_tags", 10),
        ("dynamic_batching", 11),
        ("optimization", 12),
        ("sequence_batching", 13),
        ("parameters", 14),
        ("ensemble_scheduling", 15),
        ("model_warmup", 16),
        ("backend", 17),
        ("model_operations", 18),
        ("model_transaction_policy", 19),
        ("batch_input", 20),
        ("batch_output", 21),
        ("model_repository_agents", 23),
        ("response_cache", 24),
        ("runtime", 25),
        ("model_metrics", 26),
    ];

    #[test]
    fn the_configuration_has_the_fields_of_the_wire() {
        let fields: Vec<(String, u32)> = model_config()
            .fields()
            .map(|field| (field.name().to_owned(), field.number()))
            .collect();
        assert_eq!(
            fields,
            FIELDS.map(|(name, number)| (name.to_owned(), number))
        );
    }

    /// Descriptors of maps, whose entries are known by an option.
    #[test]
    fn maps_are_maps() {
        let field = |name: &str| model_config().get_field_by_name(name).unwrap();
        for (name, is_map) in [
            ("parameters", true),
            ("metric_tags", true),
            ("cc_model_filenames", true),
            ("input", false),
        ] {
            assert_eq!(field(name).is_map(), is_map, "{name}");
        }
    }

    #[test]
    fn the_services_have_their_calls() {
        let mut pool = DescriptorPool::new();
        for file in conch_proto::catalog::FILES {
            pool.decode_file_descriptor_proto(file.descriptor).unwrap();
        }
        let calls = |service: &str| -> Vec<String> {
            let service = pool.get_service_by_name(service).expect(service);
            service
                .methods()
                .map(|method| method.name().to_owned())
                .collect()
        };
        assert_eq!(calls("grpc.health.v1.Health"), ["Check", "List", "Watch"]);
        assert_eq!(
            calls("inference.GRPCInferenceService"),
            [
                "ServerLive",
                "ServerReady",
                "ModelReady",
                "ServerMetadata",
                "ModelMetadata",
                "ModelInfer",
                "ModelStreamInfer",
                "ModelConfig",
                "ModelStatistics",
                "RepositoryIndex",
                "RepositoryModelLoad",
                "RepositoryModelUnload",
                "SystemSharedMemoryStatus",
                "SystemSharedMemoryRegister",
                "SystemSharedMemoryUnregister",
                "CudaSharedMemoryStatus",
                "CudaSharedMemoryRegister",
                "CudaSharedMemoryUnregister",
                "TraceSetting",
                "LogSettings",
            ]
        );
    }
}
