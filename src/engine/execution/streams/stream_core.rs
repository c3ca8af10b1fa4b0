//! The core of instances that keep batches in flight: it forms the next batch while others are on
//! the device, and never blocks while anything is in flight.

use std::sync::Arc;

use conch_scheduler::SchedulerOutput;
use conch_sync::{NEVER_NS, Worker};

use crate::clock::monotonic_ns;
use crate::execution::queue::{ModelQueue, StreamTurn};
use crate::execution::seat::log_executing;
use crate::execution::streams::pause_until;
use crate::execution::streams::stream_instance::StreamInstance;
use crate::{OwnedRequest, PendingResponses};

/// A limit that has passed: look, and do not wait.
const AT_ONCE_NS: u64 = 0;

pub(crate) struct StreamCore {
    queue: Arc<ModelQueue>,
    instances: Vec<StreamInstance>,
    output: SchedulerOutput<OwnedRequest>,
    pending: PendingResponses,
    /// The instance with the next turn among those that have as few batches.
    next: usize,
}

impl StreamCore {
    pub(crate) fn new(queue: &Arc<ModelQueue>, instances: Vec<StreamInstance>) -> StreamCore {
        StreamCore {
            queue: Arc::clone(queue),
            instances,
            output: SchedulerOutput::default(),
            pending: PendingResponses::default(),
            next: 0,
        }
    }

    /// Keeps batches in flight until the queue is closed and drained, or lets this core go; then
    /// until nothing is in flight. Returns the instances.
    pub(crate) fn serve(mut self, mut worker: Worker) -> Vec<StreamInstance> {
        while self.step(&mut worker) {}
        loop {
            self.poll();
            let now_ns = monotonic_ns();
            match self.next_look_ns(now_ns) {
                NEVER_NS => return self.instances,
                look_ns => pause_until(look_ns, now_ns),
            }
        }
    }

    /// Finishes what is done, then enqueues a batch or waits for the next look. False: there will
    /// be no further batch.
    fn step(&mut self, worker: &mut Worker) -> bool {
        self.poll();
        let has_room = self.has_room();
        // What waits already goes on the device before anybody waits.
        if has_room {
            match self.turn(worker, AT_ONCE_NS) {
                StreamTurn::Batch => return true,
                StreamTurn::TimedOut => {}
                StreamTurn::Over => return false,
            }
        }
        for instance in &mut self.instances {
            instance.note_wait();
        }
        let now_ns = monotonic_ns();
        let look_ns = self.next_look_ns(now_ns);
        if has_room && look_ns > now_ns {
            return !matches!(self.turn(worker, look_ns), StreamTurn::Over);
        }
        // Without room as one that executes: no arrival is for this core.
        pause_until(look_ns, now_ns);
        true
    }

    /// Finishes what is done.
    fn poll(&mut self) {
        for instance in &mut self.instances {
            instance.poll(&mut self.pending);
        }
    }

    /// Whether an instance takes a batch, or none is left and what is queued is to be refused.
    fn has_room(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(StreamInstance::has_room)
            || self.instances.iter().all(|one| one.fault().is_some())
    }

    /// When the next batch is to be looked at; never if nothing is in flight.
    fn next_look_ns(&mut self, now_ns: u64) -> u64 {
        let in_flight = self.instances.iter_mut();
        let looks = in_flight.filter(|instance| instance.in_flight() > 0);
        let looks = looks.map(|instance| instance.next_look_ns(now_ns));
        looks.min().unwrap_or(NEVER_NS)
    }

    /// Waits until `limit_ns` for a batch, and enqueues it.
    fn turn(&mut self, worker: &mut Worker, limit_ns: u64) -> StreamTurn {
        let turn = self
            .queue
            .next_until(worker, limit_ns, &mut self.output, &mut self.pending);
        if let StreamTurn::Batch = turn {
            self.enqueue();
        }
        turn
    }

    /// The batch goes to the instance with the fewest in flight. If all are out of service, the
    /// first refuses it.
    fn enqueue(&mut self) {
        let (count, next) = (self.instances.len().max(1), self.next);
        let with_room = self.instances.iter().enumerate();
        let with_room = with_room.filter(|(_, instance)| instance.has_room());
        let place = with_room
            .min_by_key(|(place, instance)| (instance.in_flight(), (place + count - next) % count))
            .map(|(place, _)| place);
        let batch = &mut self.output.batch;
        if place.is_some() {
            log_executing(batch);
        }
        let place = place.unwrap_or(0);
        if let Some(instance) = self.instances.get_mut(place) {
            instance.enqueue(batch, &mut self.pending);
        }
        self.next = (place + 1) % count;
    }
}
