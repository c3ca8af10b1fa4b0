//! ModelStreamInfer: many requests and many responses on one call.
//!
//! Three things go on at once, all in the call's own future: requests are taken in ([`intake`]),
//! deliveries are booked, and messages are given out as the peer takes them. [`scheduler`] knows
//! who is in flight and whose turn it is.

mod intake;
mod message;
mod scheduler;
mod serve;
mod setup;

pub(super) use serve::serve;
pub(super) use setup::StreamSetup;
