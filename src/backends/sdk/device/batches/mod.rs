//! Batches in flight on a device.
//!
//! [`DeviceBatches`] has a slot for each batch that may be in flight: streams, events, staging
//! memory and a state of the backend's own. [`DeviceBatches::enqueue`] takes a batch over and hands
//! a [`DeviceWork`] to the backend, which plans copies and enqueues what computes between them;
//! [`DeviceBatches::poll`] answers the batches that the device is done with. Nothing here waits for
//! the device, but after the driver refused an event, and when batches are dropped. Called by the
//! thread that drives the instance.

mod engine;
mod in_flight;
mod kernels;
mod ranges;
mod slot;
#[cfg(test)]
mod tests;
mod work;

use std::collections::VecDeque;

use conch_memory::MemoryPlace;

use super::allocator::DeviceAllocator;
use super::pending::PendingWork;
use super::stream::{DeviceStream, StreamHandle};
use super::timeline::DeviceClock;
use crate::clock::monotonic_ns;
use crate::{DetachedBatch, Error, Request, Response};
use in_flight::InFlightBatch;
use slot::BatchSlot;

pub use ranges::DeviceRange;
pub use slot::BatchStreams;
pub use work::DeviceWork;

/// The batches that an instance has in flight, with a state `S` for each: what a
/// [`StreamInstance`](crate::StreamInstance) needs beside its own settings. Dropped, it waits for
/// its streams and answers what was in flight.
pub struct DeviceBatches<S = ()> {
    slots: Vec<Slot<S>>,
    /// Slots with a batch, the oldest first.
    order: VecDeque<usize>,
    allocator: DeviceAllocator,
    place: MemoryPlace,
    /// Of the device, which is made current once for all calls of a batch.
    stream: StreamHandle,
    /// Of all slots, so that their times are in order.
    clock: DeviceClock,
}

struct Slot<S> {
    in_flight: Option<InFlightBatch>,
    resources: BatchSlot,
    state: S,
}

impl<S> DeviceBatches<S> {
    /// None may be in flight yet. Copies are staged in memory that `stream` has its own from.
    /// Blocks until the device is done with `stream` and has told its time.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn new(stream: &DeviceStream) -> Result<Self, Error> {
        let clock = DeviceClock::new(&stream.stream);
        Ok(DeviceBatches {
            slots: Vec::new(),
            order: VecDeque::new(),
            allocator: stream.allocator.clone(),
            place: stream.place(),
            stream: stream.handle(),
            clock: clock.map_err(|error| stream.refusal(&error))?,
        })
    }

    /// One more batch may be in flight, on these streams.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses, or if the streams are of another device.
    pub fn add_slot(&mut self, streams: BatchStreams, state: S) -> Result<(), Error> {
        if !streams.are_of(self.place) {
            return Err(Error::internal("streams of a batch are of another GPU"));
        }
        self.slots.push(Slot {
            in_flight: None,
            resources: BatchSlot::new(streams, &self.allocator)?,
            state,
        });
        self.order.reserve(self.slots.len());
        Ok(())
    }

    /// Batches that may be in flight.
    pub fn depth_max(&self) -> usize {
        self.slots.len()
    }

    /// Takes over a batch and enqueues its work; does not wait for it. `respond` begins the
    /// response of a request; one for which it fails is answered with that error when the batch is
    /// done. `plan` gets the slot's state, which is left alone until the batch is done, and says
    /// what is copied and computed. Its error is the answer to all requests, as is having too many
    /// batches in flight.
    pub fn enqueue(
        &mut self,
        mut batch: DetachedBatch,
        mut respond: impl for<'b> FnMut(Request<'b>) -> Result<Response<'b>, Error>,
        plan: impl for<'m> FnOnce(&'m mut S, &mut DeviceWork<'m>) -> Result<(), Error>,
    ) {
        let enqueued_ns = monotonic_ns();
        // What fails here fails in each call as well, and is told there.
        let _current = self.stream.current();
        let newest = self.order.back().and_then(|index| self.slots.get(*index));
        let newest = newest.and_then(|slot| slot.in_flight.as_ref());
        let not_before_ns = newest.map_or(0, |newest| newest.due_ns).max(enqueued_ns);
        let mut free = self.slots.iter_mut().enumerate();
        let Some((index, slot)) = free.find(|(_, slot)| slot.in_flight.is_none()) else {
            let error = Error::internal("more batches than the instance can have in flight");
            return batch.finish(|_| Err(error));
        };
        let Slot {
            resources, state, ..
        } = slot;
        let enqueued = batch.with(|batch| {
            let mut pending = PendingWork::default();
            let mut responses = Vec::with_capacity(batch.len());
            for (owner, request) in batch.requests().enumerate() {
                let response = respond(request);
                responses.push(response.map_err(|error| pending.fail(owner, error)).ok());
            }
            let mut work = DeviceWork::new(resources, batch, &responses, pending);
            let planned = plan(state, &mut work);
            // Waits, as dropping it does, if nothing else can tell when the device is done.
            let enqueued = work.end(planned);
            // In every case: copies may be on their way into them.
            for response in responses.into_iter().flatten() {
                response.keep();
            }
            enqueued
        });
        let in_flight = InFlightBatch::new(batch, enqueued, enqueued_ns, not_before_ns);
        let is_done = in_flight.is_done();
        slot.in_flight = Some(in_flight);
        match is_done {
            true => slot.finish(&mut self.clock, Ok(()), monotonic_ns()),
            false => self.order.push_back(index),
        }
    }

    /// Answers the batches that the device is done with, in order; returns how many are in flight.
    /// Does not wait.
    pub fn poll(&mut self) -> usize {
        let _current = self.stream.current();
        while let Some(slot) = self.order.front().and_then(|at| self.slots.get_mut(*at)) {
            let Some((outcome, now_ns)) = slot.poll() else {
                break;
            };
            self.order.pop_front();
            slot.finish(&mut self.clock, outcome, now_ns);
        }
        self.order.len()
    }

    /// Waits for all batches and answers them, then drops the slots with their states.
    pub fn clear(&mut self) {
        while let Some(index) = self.order.pop_front() {
            if let Some(slot) = self.slots.get_mut(index) {
                let outcome = slot.wait();
                slot.finish(&mut self.clock, outcome, monotonic_ns());
            }
        }
        self.slots.clear();
    }
}

impl<S> Slot<S> {
    /// How its batch ended, and when that was noticed; none if it did not yet.
    fn poll(&self) -> Option<(Result<(), Error>, u64)> {
        let in_flight = self.in_flight.as_ref()?;
        let outcome = match in_flight.is_marked {
            true => self.resources.poll()?,
            false => Ok(()),
        };
        let now_ns = monotonic_ns();
        (outcome.is_err() || now_ns >= in_flight.due_ns).then_some((outcome, now_ns))
    }

    /// Waits for the device, not for the time at which the batch is due.
    fn wait(&self) -> Result<(), Error> {
        match &self.in_flight {
            Some(in_flight) if in_flight.is_marked => self.resources.wait(),
            _ => Ok(()),
        }
    }

    /// Answers its batch, of which nothing is on the device any more.
    fn finish(&mut self, clock: &mut DeviceClock, outcome: Result<(), Error>, now_ns: u64) {
        let Some(in_flight) = self.in_flight.take() else {
            return;
        };
        let has_times = in_flight.is_marked && outcome.is_ok();
        let enqueued_ns = in_flight.enqueued_ns;
        let marks = &mut self.resources.marks.stages;
        let marked = in_flight.marked();
        let timeline = has_times.then(|| clock.read(marks, marked, enqueued_ns, now_ns));
        in_flight.finish(outcome, timeline, now_ns);
        self.resources.reset();
    }
}

impl<S> Drop for DeviceBatches<S> {
    fn drop(&mut self) {
        self.clear();
    }
}
