//! From `config.pbtxt` (or JSON) to validated facts about a model.
//!
//! `text` parses the file into the ModelConfig message with errors that name file, line, column and
//! field; `complete` deduces what a missing or partial file leaves open; `normalize` fills
//! defaults; `validate` holds upstream's rules; `instance_group` decides where instances go;
//! `merge` takes a backend's proposal; `json` writes and reads the JSON form. [`ResolvedConfig`] is
//! what the rest of the server works with. Pure functions of their arguments: no threads, no clock;
//! files are read only where a function takes a path.
//!
//! A load goes: [`load_file`] or [`from_json`] or an empty message, [`prepare`], the backend is
//! opened, [`resolve_instance_groups`], [`ResolvedConfig::from_partial`], the backend's proposals
//! ([`merge_proposal`]), [`ResolvedConfig::from_message`].
//!
//! Both readers are ours; prost-reflect lends them its descriptors and dynamic messages. Its own
//! text reader takes 20 of the 26 texts that `text/tests.rs` accepts (no list of messages without a
//! colon, `input [ {...} ]`, which is how configurations are written) and words none of 41 refusals
//! as clients know them; it names no line, column or field, and accepts one. Its JSON reader takes
//! 17 of the 27 that `json/tests.rs` accepts (nothing that libprotobuf reads beyond strict JSON);
//! of 38 refusals it words 5 the same, names a field's path in none, and accepts 3. Its JSON
//! writer prints none of upstream's 3 configurations byte by byte (prost-reflect 0.16.5).
#![forbid(unsafe_code)]

mod complete;
mod data_type;
mod dynamic;
mod ensemble;
mod environment;
mod error;
mod facts;
pub mod files;
#[cfg(test)]
mod fuzz;
mod instance_group;
mod json;
mod merge;
mod metrics;
mod model;
mod needs;
mod normalize;
mod own;
mod placeholders;
mod prepare;
mod schema;
mod sequence;
mod states;
mod text;
mod validate;
mod warm_up;

pub use complete::{complete_backend, model_file};
pub use data_type::DataType;
pub use dynamic::{DynamicBatching, QueuePolicy, TimeoutAction};
pub use ensemble::{ComposingModels, EnsembleStep, Ensembling, compose, dims_agree, ensembling};
pub use environment::expand;
pub use error::{ConfigError, ConfigErrorCode, FaultPlace};
pub use instance_group::{Gpus, PreferredGroup, resolve_instance_groups, without_gpus};
pub use json::{from_json, to_json};
pub use merge::merge_proposal;
pub use metrics::{first_response_buckets, fixed_families, validate_first_response_buckets};
pub use model::{
    BatchInput, BatchInputKind, BatchOutput, InstanceGroup, InstanceKind, RateLimit, RateResource,
    ResolvedConfig, Scheduling, TensorSpec, VersionPolicy,
};
pub use needs::needed_models;
pub use normalize::normalize;
pub use own::{DEADLINE_ORDER, InlinePolicy, OwnParameters, REQUESTS_MAX, SHARE_WEIGHT};
pub use placeholders::with_placeholders;
pub use prepare::{Preparation, prepare};
pub use sequence::{Controls, FlagControl, IdControl, SequenceBatching, SequenceStrategy};
pub use states::{StateSpec, StateStart, states};
pub use text::{load_file, parse_text};
pub use validate::{validate, validate_io, validate_name};
pub use warm_up::{WarmUpInput, WarmUpSource, WarmUpSpec, warm_ups};

/// The message that all of this is about.
pub use conch_proto::inference::{ModelConfig, ModelParameter};

#[cfg(test)]
mod tests;
