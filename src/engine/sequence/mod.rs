//! What a model with sequence batching has beside its scheduler: the checks of its requests, the tensors that tell it about its sequences,
//! and the way back of requests that its scheduler waits for.

mod admission;
mod answers;
mod attendant;
mod controls;
mod leash;

pub(crate) use admission::{Names, check};
pub(crate) use answers::{returned, turn_away};
pub(crate) use attendant::Attendant;
pub(crate) use controls::ControlInputs;
pub(crate) use leash::Leash;
pub use leash::reschedule;
