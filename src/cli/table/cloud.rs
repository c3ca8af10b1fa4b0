//! Flags of the listeners for SageMaker and Vertex AI.

use super::row::{SHARDS, inert, served};
use crate::cloud::parse_port_range;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{self, Other, Port, Switch};
use crate::listeners::ListenerKind;

pub const SAGEMAKER: &[Flag] = &[
    served(
        "allow-sagemaker",
        Bool,
        "Listen for SageMaker requests. Default: {}.",
        Switch(|to| &mut to.listeners.sagemaker.is_enabled),
    ),
    served(
        "sagemaker-port",
        Int,
        "Port; 0 takes a free one and logs it. Default: {}.",
        Port(ListenerKind::SageMaker),
    ),
    served(
        "sagemaker-safe-port-range",
        Text("<low>-<high>"),
        "Ports that the other listeners on the same address may have.",
        Other(|to, text| {
            to.listeners.safe_ports = Some(parse_port_range(text)?);
            Ok(())
        }),
    ),
    inert(
        "sagemaker-thread-count",
        Int,
        "Number of SageMaker threads.",
        SHARDS,
    ),
];

pub const VERTEX_AI: &[Flag] = &[
    served(
        "allow-vertex-ai",
        Bool,
        "Listen for Vertex AI requests. Default: true if AIP_MODE=PREDICTION, which also switches \
         HTTP and gRPC off; else false.",
        Switch(|to| &mut to.listeners.vertex_ai.is_enabled),
    ),
    served(
        "vertex-ai-port",
        Int,
        "Port; 0 takes a free one and logs it. Default: AIP_HTTP_PORT, else {}.",
        Port(ListenerKind::VertexAi),
    ),
    inert(
        "vertex-ai-thread-count",
        Int,
        "Number of Vertex AI threads.",
        SHARDS,
    ),
    served(
        "vertex-ai-default-model",
        Text("<name>"),
        "Model that the predict route asks. Default: the only one.",
        Setter::Text(|to| &mut to.vertex_ai_default_model),
    ),
];
