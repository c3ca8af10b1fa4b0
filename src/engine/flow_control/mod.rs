//! Credits: how many responses of a decoupled model may be on their way to a reader.

pub mod backlog;
pub mod credits;
pub mod decoupled_step;
pub mod payment;
