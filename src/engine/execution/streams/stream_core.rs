//! The core of instances that keep batches in flight: it forms the next batch while others are on
//! the device, and never blocks while anything is in flight.

use std::sync::Arc;
use std::time::Duration;

use conch_scheduler::SchedulerOutput;
use conch_sync::{NEVER_NS, Worker};

use crate::clock::monotonic_ns;
use crate::execution::queue::{ModelQueue, StreamTurn};
use crate::execution::streams::stream_instance::StreamInstance;
use crate::model::stats::FailureReason;
use crate::request::refusal::refuse;
use crate::{Error, OwnedRequest, PendingResponses};

/// A limit that has passed: look, and do not wait.
const AT_ONCE_NS: u64 = 0;

pub(crate) struct StreamCore {
    queue: Arc<ModelQueue>,
    instances: Vec<StreamInstance>,
    output: SchedulerOutput<OwnedRequest>,
    pending: PendingResponses,
    /// Who has the next turn among instances that have as few batches.
    next: usize,
    /// Instances whose device ran out of work since the core last waited.
    idle: Vec<usize>,
}

impl StreamCore {
    pub(crate) fn new(queue: &Arc<ModelQueue>, instances: Vec<StreamInstance>) -> StreamCore {
        StreamCore {
            queue: Arc::clone(queue),
            instances,
            output: SchedulerOutput::default(),
            pending: PendingResponses::default(),
            next: 0,
            idle: Vec::new(),
        }
    }

    /// Keeps batches in flight until the queue is closed and drained, or lets this core go; then
    /// until nothing is in flight.
    pub(crate) fn serve(&mut self, mut worker: Worker) {
        loop {
            self.poll();
            let is_room = self.has_room();
            // What waits already goes on the device before anybody waits.
            if is_room {
                match self.turn(&mut worker, AT_ONCE_NS) {
                    StreamTurn::Batch => continue,
                    StreamTurn::TimedOut => {}
                    StreamTurn::Over => break,
                }
            }
            self.idle.clear();
            let look_ns = self.next_look_ns();
            match look_ns {
                look_ns if look_ns <= monotonic_ns() => std::hint::spin_loop(),
                // As one that executes: no arrival is for this core.
                look_ns if !is_room => sleep_until(look_ns),
                look_ns => {
                    if let StreamTurn::Over = self.turn(&mut worker, look_ns) {
                        break;
                    }
                }
            }
        }
        for instance in &mut self.instances {
            instance.wait(&mut self.pending);
        }
    }

    /// Finishes what is done.
    fn poll(&mut self) {
        for (place, instance) in self.instances.iter_mut().enumerate() {
            if instance.poll(&mut self.pending) > 0 && instance.in_flight() == 0 {
                self.idle.push(place);
            }
        }
    }

    /// Whether an instance takes a batch, or none is left and what is queued is to be refused.
    fn has_room(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(StreamInstance::has_room) || self.is_out_of_service()
    }

    fn is_out_of_service(&self) -> bool {
        !self.instances.iter().any(StreamInstance::is_there)
    }

    /// When the next batch is to be looked at.
    fn next_look_ns(&mut self) -> u64 {
        let now_ns = monotonic_ns();
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

    /// The batch goes to the instance with the fewest in flight.
    fn enqueue(&mut self) {
        let count = self.instances.len();
        let next = self.next;
        let with_room = self.instances.iter().enumerate();
        let with_room = with_room.filter(|(_, instance)| instance.has_room());
        let place = with_room
            .min_by_key(|(place, instance)| (instance.in_flight(), (place + count - next) % count))
            .map(|(place, _)| place);
        let Some((place, instance)) =
            place.and_then(|place| Some((place, self.instances.get_mut(place)?)))
        else {
            self.refuse();
            return;
        };
        if self.idle.contains(&place) {
            instance.note_idle();
            self.idle.retain(|idle| *idle != place);
        }
        instance.enqueue(&mut self.output.batch, &mut self.pending);
        self.next = (place + 1) % count;
    }

    /// Answers a batch that no instance is left for.
    fn refuse(&mut self) {
        let fault = self.queue.fault().cloned();
        let error = fault.unwrap_or_else(|| Error::internal("the core has no instance"));
        for live in self.output.batch.drain(..) {
            refuse(live, FailureReason::Other, error.clone(), &mut self.pending);
        }
        self.pending.flush();
    }
}

fn sleep_until(at_ns: u64) {
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(monotonic_ns())));
}
