//! Batches in flight on a device, for engines that enqueue their work.
//!
//! An instance has one [`EngineStream`], on which its engine computes, batch after batch, and a
//! [`DeviceQueue`] for each batch that may be in flight. A queue has a stream for copies: while the
//! engine computes one batch, inputs of the next are on their way. [`DeviceQueue::enqueue`] takes a
//! batch over and hands a [`EngineWork`] to the backend, which says what is copied and computed;
//! [`DeviceQueue::poll`] answers the batch once the device is done. Nothing here waits for the
//! device, except when a batch fails after parts of its work were enqueued, and when a queue is
//! dropped.

mod block;
mod engine_stream;
mod enqueue;
mod flight;
mod work;

pub use block::EngineBlock;
pub use engine_stream::{EngineGraph, EngineStream};
pub use work::EngineWork;

use conch_cuda::{CudaError, Event, Stream};

use self::flight::Flight;
use super::staging::Staging;
use crate::{DetachedBatch, Error};

/// The way of one batch at a time through a device, and what it needs: a stream for copies, events
/// and pinned memory, at most 16 MiB for inputs and as much for outputs.
pub struct DeviceQueue {
    compute: EngineStream,
    copies: Stream,
    /// Outputs are copied on the stream for copies, so that the engine goes on with the next batch.
    has_output_stream: bool,
    inputs_ready: Event,
    computed: Event,
    done: Event,
    input_staging: Staging,
    output_staging: Staging,
    flight: Option<Flight>,
}

impl DeviceQueue {
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn new(
        compute: &EngineStream,
        priority: i32,
        has_output_stream: bool,
    ) -> Result<Self, Error> {
        let device = compute.stream().device();
        let event = || Event::new(device);
        let parts = (|| {
            Ok::<_, CudaError>((Stream::new(device, priority)?, event()?, event()?, event()?))
        })();
        let (copies, inputs_ready, computed, done) =
            parts.map_err(|error| compute.refusal(&error))?;
        Ok(DeviceQueue {
            compute: compute.clone(),
            copies,
            has_output_stream,
            inputs_ready,
            computed,
            done,
            input_staging: Staging::new(compute.allocator().clone()),
            output_staging: Staging::new(compute.allocator().clone()),
            flight: None,
        })
    }

    /// Whether it has no batch.
    pub fn is_free(&self) -> bool {
        self.flight.is_none()
    }

    /// Takes a batch over: `work` enqueues what is to be done with it. A failure of `work` is the
    /// answer to all its requests, at once; so is that of a queue that is not free.
    pub fn enqueue(
        &mut self,
        batch: DetachedBatch,
        work: impl for<'w> FnOnce(&mut EngineWork<'w>) -> Result<(), Error>,
    ) {
        if !self.is_free() {
            return batch.finish(|_| Err(Error::internal("a queue takes one batch at a time")));
        }
        let mut flight = Flight::new(batch);
        match flight.begin(self, work) {
            Ok(()) => self.flight = Some(flight),
            Err(error) => flight.fail(error),
        }
    }

    /// Answers the batch if the device is done with it. Returns whether the queue is free.
    pub fn poll(&mut self) -> bool {
        if self.flight.is_none() {
            return true;
        }
        let reached = match self.is_done() {
            Ok(false) => return false,
            Ok(true) => Ok(()),
            Err(error) => {
                // Others may have failed before; the stream stands still all the same.
                self.drain();
                Err(self.compute.refusal(&error))
            }
        };
        if let Some(flight) = self.flight.take() {
            match reached {
                Ok(()) => flight.finish(),
                Err(error) => flight.fail(error),
            }
        }
        true
    }

    /// Whether the device is done with the batch.
    fn is_done(&self) -> Result<bool, CudaError> {
        if !self.done.is_reached()? {
            return Ok(false);
        }
        // Marks of other streams tell what failed before them.
        if self.flight.as_ref().is_some_and(Flight::has_copied_inputs) {
            self.inputs_ready.is_reached()?;
        }
        if self.has_output_stream {
            self.computed.is_reached()?;
        }
        Ok(true)
    }

    /// Waits until nothing is in flight on either stream.
    fn drain(&self) {
        // A stream that cannot be waited for is one whose context is gone, and its work with it.
        let _ = self.copies.synchronize();
        let _ = self.compute.stream().synchronize();
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        if self.flight.is_some() {
            self.drain();
        }
    }
}
