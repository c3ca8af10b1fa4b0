//! Model versions as the data plane sees them, what is counted about them, and which there are.

pub mod admission_plan;
pub mod bytes;
pub mod file;
pub mod labels;
pub mod level_bounds;
mod model_map;
pub mod readiness;
pub mod registry;
pub mod sequence_ids;
pub mod states;
pub mod stats;
pub mod version;
