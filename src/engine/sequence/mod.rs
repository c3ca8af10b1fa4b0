//! What a model with sequence batching has beside its scheduler: the checks of its requests, the tensors that tell it about its sequences,
//! the way back of requests that its scheduler waits for, and the sequences that go on in a version whose place was taken.

mod admission;
mod answers;
mod attendant;
mod controls;
mod elder;
mod leash;
mod ledger;

pub(crate) use admission::{SequenceIds, check};
pub(crate) use answers::{returned, turn_away};
pub(crate) use attendant::SequenceInputs;
pub(crate) use controls::ControlInputs;
pub(crate) use elder::{DrainingVersion, DrainingVersions};
pub(crate) use leash::ReturnGuard;
pub use leash::reschedule;
pub(crate) use ledger::ActiveSequences;
