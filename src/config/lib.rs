//! From `config.pbtxt` (or JSON) to validated facts about a model.
//!
//! `text` parses the file into the ModelConfig message with errors that name file, line, column and field; `normalize` fills
//! defaults; `validate` holds upstream's rules; `complete` deduces what a missing file leaves open; `json` writes and reads the JSON
//! form. [`Model`] is what the rest of the server works with. Pure functions of their arguments: no threads, no clock; files are
//! read only where a function takes a path.

mod data_type;
mod model;

pub use data_type::DataType;
pub use model::{DynamicBatching, InstanceGroup, InstanceKind, Model, QueuePolicy, Scheduling, TensorSpec, TimeoutAction, VersionPolicy};
