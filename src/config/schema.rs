//! The descriptors of the messages, for code that works by field name: the text and the JSON form.

use std::sync::LazyLock;

use conch_proto::inference::ModelConfig;
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

static MODEL_CONFIG: LazyLock<MessageDescriptor> = LazyLock::new(|| {
    DescriptorPool::decode(conch_proto::FILE_DESCRIPTOR_SET)
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

/// Messages within messages, in any of the forms read. The schema itself allows far less; this bounds the recursion of the readers whatever
/// the schema says. The same number as upstream's JSON reader.
pub(crate) const DEPTH_MAX: usize = 100;
