//! Random numbers and random graphs from seeds, for tests and the simulator. Nothing else uses
//! them.

mod ensemble_shape;
mod random;

pub use ensemble_shape::{EnsembleShape, StepOutput};
pub use random::Random;
