//! Random numbers and random graphs from seeds, and loops over seeds, for tests and the simulator.
//! Nothing else uses them.

mod ensemble_shape;
mod random;
mod seeds;

pub use ensemble_shape::{EnsembleShape, StepOutput};
pub use random::Random;
pub use seeds::for_each_seed;
