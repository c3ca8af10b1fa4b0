//! The part of a core that is one model's: it forms the model's next batch while others are on the
//! device, and never blocks while anything is in flight. Which thread calls it, and when, is up to
//! [`device_core`](crate::execution::streams::device_core).

use std::sync::Arc;

use conch_scheduler::SchedulerOutput;
use conch_sync::{NEVER_NS, Spin, Worker, park_current_until};

use crate::clock::{Monotonic, monotonic_ns};
use crate::execution::instance_usage::StreamUsage;
use crate::execution::queue::{ModelQueue, StreamTurn};
use crate::execution::seat::log_executing;
use crate::execution::streams::sharing::ApartReason;
use crate::execution::streams::stream_instance::StreamInstance;
use crate::sequence::sequence_inputs::SequenceInputs;
use crate::{OwnedRequest, PendingResponses};

pub(crate) struct StreamCore {
    queue: Arc<ModelQueue>,
    worker: Worker,
    instances: Vec<StreamInstance>,
    output: SchedulerOutput<OwnedRequest>,
    pending: PendingResponses,
    /// The instance with the next turn among those that have as few batches.
    next: usize,
    /// Of a model with sequences, which has one instance here.
    sequence_inputs: Option<SequenceInputs>,
    /// There will be no further batch: the queue is closed and drained.
    is_over: bool,
    /// While it is in the idle set of its queue: until when.
    listed_ns: Option<u64>,
    usage: StreamUsage,
}

/// What a turn left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamStep {
    /// There may be more to do at once.
    Busy,
    /// Only time, the device or an arrival brings more.
    Idle,
    /// Nothing is in flight, and nothing will be.
    Ended,
}

impl StreamCore {
    pub(crate) fn new(
        queue: &Arc<ModelQueue>,
        worker: Worker,
        instances: Vec<StreamInstance>,
        sequence_inputs: Option<SequenceInputs>,
    ) -> StreamCore {
        StreamCore {
            queue: Arc::clone(queue),
            usage: StreamUsage::new(
                &queue.usage,
                instances.iter().map(|one| one.name().into()).collect(),
            ),
            worker,
            instances,
            output: SchedulerOutput::default(),
            pending: PendingResponses::default(),
            next: 0,
            sequence_inputs,
            is_over: false,
            listed_ns: None,
        }
    }

    /// Keeps batches in flight on the calling thread alone, until the queue is closed and drained,
    /// or lets this core go, and nothing is in flight. Returns the instances.
    pub(crate) fn serve(mut self, mut spin: Spin) -> Vec<StreamInstance> {
        loop {
            match self.step() {
                StreamStep::Busy => continue,
                StreamStep::Idle => {}
                StreamStep::Ended => return self.instances,
            }
            match self.begin_wait() {
                Some(until_ns) => {
                    park_current_until(until_ns, &Monotonic, &mut spin, || self.is_called());
                }
                None => std::hint::spin_loop(),
            }
            self.end_wait();
        }
    }

    /// The queue, and the number of this core there.
    pub(crate) fn address(&self) -> (&Arc<ModelQueue>, usize) {
        (&self.queue, self.worker.core())
    }

    /// The instances, once it has ended.
    pub(crate) fn into_instances(self) -> Vec<StreamInstance> {
        self.instances
    }

    /// Makes the calling thread that of this core.
    pub(crate) fn move_here(&mut self) {
        self.queue.move_here(&self.worker);
        self.end_wait();
    }

    /// Why others must not share its thread any more, if they must not. Tells it once.
    pub(crate) fn take_apart_reason(&mut self) -> Option<ApartReason> {
        let mut instances = self.instances.iter_mut();
        instances.find_map(StreamInstance::take_apart_reason)
    }

    /// One turn: finishes what is done, then enqueues one batch.
    pub(crate) fn step(&mut self) -> StreamStep {
        for instance in &mut self.instances {
            instance.poll(&mut self.pending);
        }
        self.note_usage();
        if self.takes_batch() {
            let turn =
                self.queue
                    .next_in_flight(&mut self.worker, &mut self.output, &mut self.pending);
            match turn {
                Some(StreamTurn::Batch) => {
                    self.enqueue();
                    return StreamStep::Busy;
                }
                Some(StreamTurn::Over) => self.is_over = true,
                Some(StreamTurn::Listed(_)) | None => {}
            }
        }
        for instance in &mut self.instances {
            instance.note_wait();
        }
        match self.is_over && self.instances.iter().all(|one| one.in_flight() == 0) {
            true => StreamStep::Ended,
            false => StreamStep::Idle,
        }
    }

    /// Begins a wait: with room, in the idle set of the queue. Returns until when the thread may
    /// sleep; none if it is to look again at once. [`StreamCore::end_wait`] follows in any case.
    pub(crate) fn begin_wait(&mut self) -> Option<u64> {
        let now_ns = monotonic_ns();
        let look_ns = self.next_look_ns(now_ns);
        if look_ns <= now_ns {
            return None;
        }
        // Without room it is to the queue as one that executes: no arrival is for it, and a call
        // that came too late must not keep the thread awake.
        if !self.takes_batch() {
            self.queue.clear_call(self.worker.core());
            return Some(look_ns);
        }
        match self
            .queue
            .next_or_list(&mut self.worker, &mut self.output, &mut self.pending)
        {
            StreamTurn::Batch => {
                self.enqueue();
                None
            }
            StreamTurn::Listed(until_ns) => {
                self.listed_ns = Some(until_ns);
                Some(look_ns.min(until_ns))
            }
            StreamTurn::Over => {
                self.is_over = true;
                None
            }
        }
    }

    pub(crate) fn end_wait(&mut self) {
        if let Some(until_ns) = self.listed_ns.take() {
            self.queue.end_wait(&mut self.worker, until_ns);
        }
    }

    fn is_called(&self) -> bool {
        self.queue.is_called(self.worker.core())
    }

    /// Whether an instance takes a batch, or none is left and what is queued is to be refused.
    fn takes_batch(&self) -> bool {
        let mut instances = self.instances.iter();
        !self.is_over
            && (instances.any(StreamInstance::has_room)
                || self.instances.iter().all(|one| one.fault().is_some()))
    }

    /// When the next batch is to be looked at; never if nothing is in flight.
    fn next_look_ns(&mut self, now_ns: u64) -> u64 {
        let in_flight = self.instances.iter_mut();
        let looks = in_flight.filter(|instance| instance.in_flight() > 0);
        let looks = looks.map(|instance| instance.next_look_ns(now_ns));
        looks.min().unwrap_or(NEVER_NS)
    }

    /// The batch goes to the instance with the fewest in flight. If all are out of service, the
    /// first refuses it.
    fn enqueue(&mut self) {
        if let Some(inputs) = &mut self.sequence_inputs {
            inputs.prepare(&mut self.output, &mut self.pending);
            if self.output.batch.is_empty() {
                self.pending.flush();
                return;
            }
        }
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
        self.note_usage();
    }

    fn note_usage(&mut self) {
        for (place, instance) in self.instances.iter().enumerate() {
            self.usage.note(place, instance.in_flight() > 0);
        }
    }
}
