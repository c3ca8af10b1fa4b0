//! What a model with sequence batching has beside its scheduler: the checks of its requests, the
//! tensors that tell it about its sequences, the way back of requests that its scheduler waits for,
//! and the sequences that go on in a version whose place was taken.

mod active_sequences;
mod admission;
mod answers;
mod controls;
mod draining;
mod return_guard;
mod sequence_inputs;

pub(crate) use active_sequences::ActiveSequences;
pub(crate) use admission::{SequenceIds, check};
pub(crate) use answers::{returned, turn_away};
pub(crate) use controls::ControlInputs;
pub use draining::{DrainingVersion, DrainingVersions};
pub(crate) use return_guard::ReturnGuard;
pub use return_guard::reschedule;
pub(crate) use sequence_inputs::SequenceInputs;
