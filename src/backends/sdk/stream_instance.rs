//! Instances that keep several batches in flight on the streams of a device.

use crate::{DetachedBatch, Instance};

/// An instance that only enqueues work on streams; [`export_backend!`](crate::export_backend) with
/// `stream` has servers that know how drive it without waiting for the device. Other servers get an
/// Execute that enqueues and polls until nothing is in flight.
///
/// Calls come one at a time, on a thread that drives other models as well: none may block. It is
/// not the thread that made the instance, and may change between calls.
///
/// The batches of an instance that is dropped are finished or dropped before: the device must not
/// use their memory afterwards. A server that gave up on a batch whose work never ends drops
/// neither the batch nor the instance.
pub trait StreamInstance: Instance {
    /// Batches that may be in flight at once; at least 1. Does not change. 0, for an instance on a
    /// CPU for example, has it [executed](Instance::execute) instead: it may block.
    fn depth_max(&self) -> usize;

    /// Takes over a batch and enqueues its work; does not wait for the device. May finish it at
    /// once.
    fn enqueue(&mut self, model: &Self::Model, batch: DetachedBatch);

    /// Finishes the batches whose events are reached, in order; returns how many are in flight.
    /// Does not wait.
    fn poll(&mut self, model: &Self::Model) -> usize;
}
