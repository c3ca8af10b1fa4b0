//! Name, version and extensions of the server, and rows of the repository index.

use serde::Serialize;

use crate::json::some_as_text;

/// What the server says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerMetadata {
    pub name: String,
    pub version: &'static str,
    pub extensions: &'static [&'static str],
}

/// One row of the repository index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexRow {
    pub name: String,
    /// None for a model of which no version was ever to be loaded.
    #[serde(
        serialize_with = "some_as_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub version: Option<i64>,
    /// Empty if unknown: the configuration is no good.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub state: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The version of Triton whose interfaces this server provides: clients compare it.
pub const VERSION: &str = "2.73.0";

/// What this version serves, in upstream's order: clients look here before they use an extension.
pub const EXTENSIONS: &[&str] = &[
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
    // Ours, behind all of upstream's.
    "conch",
    concat!("conch(", env!("CARGO_PKG_VERSION"), ")"),
];
