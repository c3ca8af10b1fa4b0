//! Instances that keep batches in flight: a device that works on one batch after the other, and the
//! core's own account of it ([`InFlightBatches`], [`Depth`]).

use std::collections::VecDeque;

use crate::execution::streams::depth::Depth;
use crate::execution::streams::in_flight::InFlightBatches;
use crate::simulation::RuleResult;
use crate::simulation::cores::numbers;
use crate::simulation::request::SimulatedOwned;
use crate::simulation::world::{SimulatedEvent, Simulation};

/// One instance and its device.
pub(super) struct SimulatedStream {
    depth_max: usize,
    depth: Depth,
    pub(super) in_flight: InFlightBatches,
    /// What is on the device, in order: until when, and the requests.
    on_device: VecDeque<(u64, Vec<SimulatedOwned>)>,
    /// Numbers of batches: how many were enqueued, and how many ended.
    enqueued_count: u64,
    ended_count: u64,
    /// A look is on the agenda.
    is_looking: bool,
}

impl SimulatedStream {
    pub(super) fn new(depth_max: usize) -> SimulatedStream {
        SimulatedStream {
            depth_max,
            depth: Depth::new(depth_max),
            in_flight: InFlightBatches::new(false),
            on_device: VecDeque::new(),
            enqueued_count: 0,
            ended_count: 0,
            is_looking: false,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight.count() < self.depth.current()
    }

    /// What the device has is what the core believes, and no more than may be.
    pub(super) fn check(&self) -> RuleResult {
        let (count, known) = (self.on_device.len(), self.in_flight.count());
        if count != known {
            return Err(format!(
                "{count} batches on a device, of which {known} are known"
            ));
        }
        if count > self.depth_max {
            return Err(format!("{count} batches in flight, of {}", self.depth_max));
        }
        if count > 0 && !self.is_looking {
            return Err("nobody looks after batches in flight".into());
        }
        if self.enqueued_count - self.ended_count != count as u64 {
            return Err(format!("a batch is lost beside {count} in flight"));
        }
        Ok(())
    }

    /// Whether a batch that is done was not looked at for longer than the steps between two looks
    /// explain, where none takes longer than `execution_us_max`.
    pub(super) fn is_forgotten(&self, now_ns: u64, execution_us_max: u64) -> bool {
        // The shortest step; and what a long batch had the core learn, and a quarter.
        let late_ns_max = 100_000 + execution_us_max * 1_250;
        let front = self.on_device.front();
        front.is_some_and(|(end_ns, _)| end_ns + late_ns_max < now_ns)
    }
}

impl Simulation {
    /// The batch of a core goes on the device of the instance with the fewest in flight.
    pub(super) fn enqueue(&mut self, index: usize, core: usize) {
        let duration_ns = 1 + self
            .random
            .below(self.versions[index].setup.execution_us_max * 1_000);
        let now_ns = self.now_ns;
        let state = &mut self.versions[index].cores[core];
        let batch = std::mem::take(&mut state.batch);
        let streams = state.streams.iter().enumerate();
        let place = streams
            .filter(|(_, stream)| stream.has_room())
            .min_by_key(|(_, stream)| stream.in_flight.count())
            .map_or(0, |(place, _)| place);
        let stream = &mut state.streams[place];
        self.trace.tell(now_ns, || {
            format!(
                "core {core} of {index} enqueues {:?} behind {} on {place}",
                numbers(&batch),
                stream.in_flight.count()
            )
        });
        let free_ns = stream.on_device.back().map_or(0, |(end_ns, _)| *end_ns);
        stream
            .on_device
            .push_back((free_ns.max(now_ns) + duration_ns, batch));
        stream.in_flight.begin(now_ns, now_ns);
        stream.enqueued_count += 1;
        self.overlap_count += u64::from(stream.in_flight.count() > 1);
        self.plan_look(index, core, place);
        // It forms the next batch while this one is on the device.
        if self.versions[index].cores[core].is_idle() {
            self.look_again(index, core);
        }
    }

    fn plan_look(&mut self, index: usize, core: usize, instance: usize) {
        let now_ns = self.now_ns;
        let stream = &mut self.versions[index].cores[core].streams[instance];
        if stream.is_looking || stream.in_flight.is_empty() {
            return;
        }
        stream.is_looking = true;
        let at_ns = stream.in_flight.next_look_ns(now_ns).max(now_ns + 1_000);
        self.agenda.plan(
            at_ns,
            SimulatedEvent::Look {
                version: index,
                core,
                instance,
            },
        );
    }

    /// A core finishes what its device has done, in order.
    pub(super) fn look_after(&mut self, index: usize, core: usize, instance: usize) -> RuleResult {
        let now_ns = self.now_ns;
        let stream = &mut self.versions[index].cores[core].streams[instance];
        stream.is_looking = false;
        let is_done = |(end_ns, _): &&(u64, Vec<SimulatedOwned>)| *end_ns <= now_ns;
        let count = stream.on_device.iter().take_while(is_done).count();
        let left = stream.on_device.len() - count;
        let was_full = stream.in_flight.count() == stream.depth.current();
        let ended_now = stream.in_flight.look(now_ns, left);
        if ended_now.count != count {
            return Err(format!("{} of {count} batches end", ended_now.count));
        }
        let ended: Vec<_> = stream.on_device.drain(..count).collect();
        stream.ended_count += count as u64;
        if count > 0 {
            stream
                .depth
                .note_ended(now_ns, count, was_full, ended_now.alone_ns);
        }
        let version = &mut self.versions[index];
        let was_empty = version.model.is_empty() && version.inbox.is_empty();
        let stream = &mut version.cores[core].streams[instance];
        if count > 0 && left == 0 && !was_empty {
            stream.depth.note_idle();
        }
        for (_, batch) in ended {
            self.trace.tell(now_ns, || {
                format!("{:?} leaves the device", numbers(&batch))
            });
            self.answer_batch(index, core, batch)?;
        }
        self.plan_look(index, core, instance);
        let state = &self.versions[index].cores[core];
        if count > 0 && state.is_idle() && !state.is_rung {
            self.look_again(index, core);
        }
        Ok(())
    }
}
