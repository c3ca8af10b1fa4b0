//! Readiness of loaded models: asks the readiness hooks of their backends.
//!
//! A hook is foreign code and may take long, or for ever; whoever asks (a shard, mostly) must not
//! wait in it. So a model version whose backend has the hook gets a thread of its own, the
//! readiness prober, which sleeps until somebody wants to know and then asks one instance after the
//! other, while these execute or not, as upstream does. All who ask during a round share its
//! answer. A hook that hangs holds up its own model only: those who wait give up after
//! [`ANSWER_WITHIN`](probe_queue::ANSWER_WITHIN), and from then on the answer is "not ready" at
//! once, until the round ends.
//!
//! Models without a hook cost nothing: what the registry knows of them is the answer.

pub mod check;
pub mod probe;
pub mod probe_queue;
#[cfg(test)]
mod tests;

pub use check::ReadinessCheck;
pub use probe::{ReadinessAnswer, ReadinessProbe};
pub use probe_queue::ANSWER_WITHIN;
