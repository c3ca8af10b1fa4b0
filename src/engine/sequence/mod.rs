//! The part of sequences in a request: tensors that tell the model where a sequence begins and
//! ends and its implicit states, and the way back of requests that the scheduler waits for.

pub mod controls;
pub(crate) mod growable_slots;
pub mod request_states;
pub mod reschedule;
pub mod sequence_inputs;

pub use reschedule::reschedule;
