//! Sequences on a virtual clock: stories whose every step is written down, and random runs that are
//! held against the rules.

mod cores;
mod endings;
mod oldest;
mod random;

use std::collections::HashMap;
use std::rc::Rc;

use conch_config::{SequenceBatching, SequenceStrategy};
use conch_sync::NEVER_NS;

use super::{SequenceBatcher, SequenceContext, SequenceKey};
use crate::delay::SchedulerDelay;
use crate::entry::{Entry, SchedulingParams};
use crate::fake::{Fake, settings};
use crate::output::{Dismissal, SchedulerOutput};
use crate::testing::for_each_seed;

const US: u64 = 1_000;
const IDLE_US: u64 = 1_000;

fn direct(slot_count: u32) -> SequenceBatching {
    SequenceBatching {
        strategy: SequenceStrategy::Direct {
            delay_us: 0,
            utilization_min: 0.0,
        },
        slot_count,
        idle_us: IDLE_US,
        is_iterative: false,
        controls: Default::default(),
        queue_size_max: 0,
        backlog_max: None,
    }
}

fn oldest(slot_count: u32, preferred: &[u32], delay_us: u64) -> SequenceBatching {
    SequenceBatching {
        strategy: SequenceStrategy::Oldest(settings(preferred, delay_us)),
        ..direct(slot_count)
    }
}

const START: u32 = 1;
const END: u32 = 2;

/// A scheduler, its clock, and all that was ever sent.
struct Stage {
    sequence: SequenceBatcher<Rc<Fake>>,
    requests: Vec<Rc<Fake>>,
    now_ns: u64,
    refused: Vec<(usize, Dismissal)>,
    called: Vec<usize>,
    ended: Vec<SequenceKey>,
    conflict_count: usize,
    /// Rows of the last direct batch.
    row_count: usize,
}

impl Stage {
    fn new(settings: &SequenceBatching, batch_size_max: u32, instances: &[usize]) -> Stage {
        Stage {
            sequence: SequenceBatcher::new(settings, batch_size_max, instances),
            requests: Vec::new(),
            now_ns: 1_000_000,
            refused: Vec::new(),
            called: Vec::new(),
            ended: Vec::new(),
            conflict_count: 0,
            row_count: 0,
        }
    }

    /// Request `flags` of sequence `id`, of this shape and with this timeout.
    fn send_with(&mut self, id: u64, flags: u32, shape: i64, timeout_us: u64) -> usize {
        let number = self.requests.len();
        let key = if id == 0 {
            SequenceKey::Generated(number as u64)
        } else {
            SequenceKey::Unsigned(id)
        };
        let facts = SchedulingParams {
            batch_count: 1,
            queued_ns: self.now_ns,
            timeout_us,
            signature: [shape].into_iter().collect(),
            ..SchedulingParams::default()
        };
        let member = SequenceContext::new(key, flags & START != 0, flags & END != 0);
        let request = Fake::new(number, facts, Some(member));
        self.requests.push(Rc::clone(&request));
        let mut output = SchedulerOutput::default();
        self.sequence.accept(request, self.now_ns, &mut output);
        self.note(&mut output);
        number
    }

    fn send(&mut self, id: u64, flags: u32) -> usize {
        self.send_with(id, flags, 0, 0)
    }

    fn cancel(&mut self, number: usize) {
        let request = Rc::clone(&self.requests[number]);
        request.is_cancelled.set(true);
        if request.is_waiting() {
            let mut output = SchedulerOutput::default();
            self.sequence.accept(request, self.now_ns, &mut output);
            self.note(&mut output);
        }
    }

    /// What `core` gets, as rows of (row, request).
    fn form(&mut self, core: usize) -> Vec<(usize, usize)> {
        let mut output = SchedulerOutput::default();
        // Who asks is not called any more.
        self.called.retain(|called| *called != core);
        let poll_state = self.sequence.form(core, self.now_ns, &mut output);
        assert!(
            poll_state.deadline_ns > self.now_ns,
            "a deadline that has passed"
        );
        assert!(!poll_state.is_ready, "cores are called by name");
        assert_eq!(output.rows.len(), output.batch.len());
        self.row_count = output.row_count;
        let batch = output
            .rows
            .iter()
            .copied()
            .zip(output.batch.iter().copied());
        let batch = batch.collect();
        self.note(&mut output);
        batch
    }

    fn expire(&mut self) -> u64 {
        let mut output = SchedulerOutput::default();
        let poll_state = self.sequence.expire(self.now_ns, &mut output);
        self.note(&mut output);
        poll_state.deadline_ns
    }

    fn release(&mut self, number: usize) {
        let request = Rc::clone(&self.requests[number]);
        self.sequence.release(&request, self.now_ns);
    }

    fn reschedule(&mut self, number: usize) {
        let request = Rc::clone(&self.requests[number]);
        request.reason.set(None);
        let mut output = SchedulerOutput::default();
        self.sequence.reschedule(request, self.now_ns, &mut output);
        self.note(&mut output);
    }

    fn note(&mut self, output: &mut SchedulerOutput<usize>) {
        self.refused.append(&mut output.refused);
        self.called.append(&mut output.called);
        self.ended.append(&mut output.ended);
        self.conflict_count += output.conflicts.len();
    }

    /// Which sequences are said to have ended, since the last look.
    fn ends(&mut self) -> Vec<u64> {
        self.expire();
        let number = |key| match key {
            SequenceKey::Unsigned(number) => number,
            other => panic!("{other:?}"),
        };
        std::mem::take(&mut self.ended)
            .into_iter()
            .map(number)
            .collect()
    }

    fn pass(&mut self, us: u64) {
        self.now_ns += us * US;
    }

    fn refusals(&mut self) -> Vec<(usize, Dismissal)> {
        std::mem::take(&mut self.refused)
    }

    fn calls(&mut self) -> Vec<usize> {
        self.expire();
        let mut called = std::mem::take(&mut self.called);
        called.sort_unstable();
        called.dedup();
        called
    }
}

#[test]
fn four_sequences_fill_two_instances_of_two_slots() {
    let mut stage = Stage::new(&direct(2), 2, &[1, 1]);
    // Sequences spread over the instances first; each keeps its slot.
    for id in 1..=4 {
        stage.send(id, START);
    }
    assert_eq!(stage.calls(), [0, 1]);
    assert_eq!(stage.form(0), [(0, 0), (1, 2)]);
    assert_eq!(stage.form(1), [(0, 1), (1, 3)]);
    assert_eq!(stage.calls(), [0; 0]);
    // Row 0 is not there: the row of the other stays where it is.
    stage.send(3, 0);
    stage.send(2, 0);
    assert_eq!(stage.calls(), [0, 1]);
    assert_eq!(stage.form(0), [(1, 4)]);
    assert_eq!(stage.form(1), [(0, 5)]);
    // One request of a sequence per step.
    stage.send(1, 0);
    stage.send(1, END);
    assert_eq!(stage.form(0), [(0, 6)]);
    assert_eq!(stage.form(0), [(0, 7)]);
    assert_eq!(stage.form(0), []);
    // Its slot is free.
    stage.send(5, START);
    assert_eq!(stage.form(0), [(0, 8)]);
    assert_eq!(stage.refusals(), []);
}

#[test]
fn sequences_without_a_slot_wait_as_a_whole() {
    let mut stage = Stage::new(&direct(1), 1, &[1]);
    stage.send(1, START);
    stage.send(2, START);
    stage.send(3, START | END);
    stage.send(2, 0);
    stage.send(1, 0);
    stage.send(1, END);
    stage.send(2, END);
    // The name is free again at once, though the earlier one still waits.
    stage.send(2, START);
    let order: Vec<_> = (0..8)
        .flat_map(|_| stage.form(0))
        .map(|(_, number)| number)
        .collect();
    assert_eq!(order, [0, 4, 5, 1, 3, 6, 2, 7]);
    assert_eq!(stage.refusals(), []);
    // Who comes later needs to start.
    stage.send(1, 0);
    stage.send(3, END);
    assert_eq!(
        stage.refusals(),
        [(8, Dismissal::NotStarted), (9, Dismissal::NotStarted)]
    );
}

#[test]
fn a_second_start_joins_the_live_sequence() {
    let mut stage = Stage::new(&direct(2), 2, &[1]);
    stage.send(1, START);
    stage.send(1, START);
    stage.send(1, END);
    for number in 0..3 {
        assert_eq!(stage.form(0), [(0, number)]);
    }
    assert_eq!(stage.conflict_count, 1);
    stage.send(1, START);
    assert_eq!(stage.conflict_count, 1, "that one had ended");
}

#[test]
fn a_direct_batch_waits_for_enough_slots_or_the_delay() {
    let settings = SequenceBatching {
        strategy: SequenceStrategy::Direct {
            delay_us: 100,
            utilization_min: 0.5,
        },
        ..direct(4)
    };
    let mut stage = Stage::new(&settings, 4, &[1]);
    stage.send(1, START);
    assert_eq!(stage.calls(), [0]);
    assert_eq!(stage.form(0), []);
    assert_eq!(stage.expire(), stage.now_ns + 100 * US);
    stage.send(2, START);
    assert_eq!(stage.form(0), [(0, 0), (1, 1)]);
    stage.pass(10);
    stage.send(2, 0);
    stage.pass(99);
    assert_eq!(stage.form(0), []);
    stage.pass(1);
    assert_eq!(stage.calls(), [0]);
    assert_eq!(stage.form(0), [(1, 2)]);
}

#[test]
fn shapes_that_differ_wait_for_the_next_step() {
    let mut stage = Stage::new(&direct(3), 3, &[1]);
    for (id, shape) in [(1, 7), (2, 9), (3, 7)] {
        stage.send_with(id, START, shape, 0);
    }
    assert_eq!(stage.form(0), [(0, 0), (2, 2)]);
    assert_eq!(stage.row_count, 3);
    assert_eq!(stage.calls(), [0]);
    assert_eq!(stage.form(0), [(1, 1)]);
    assert_eq!(stage.row_count, 2, "nothing is ready above");
}

#[test]
fn a_batch_reaches_up_to_the_last_slot_that_is_ready() {
    let mut stage = Stage::new(&direct(4), 4, &[1]);
    for (id, shape) in [(1, 7), (2, 8), (3, 9), (4, 10)] {
        stage.send_with(id, START, shape, 0);
    }
    // Upstream's null requests fill the rows of requests that do not fit as well: 4, not 1, 2, 3
    // and 4.
    for row in 0..4 {
        assert_eq!(stage.form(0), [(row, row)]);
        assert_eq!(stage.row_count, 4);
    }
    assert_eq!(stage.form(0), []);
}

#[test]
fn a_backlog_may_be_bounded() {
    let settings = SequenceBatching {
        backlog_max: Some(1),
        ..direct(1)
    };
    let mut stage = Stage::new(&settings, 1, &[1]);
    for id in 1..=3 {
        stage.send(id, START);
    }
    assert_eq!(stage.refusals(), [(2, Dismissal::BacklogFull)]);
    stage.send(2, 0);
    assert_eq!(stage.refusals(), [], "the bound is one of sequences");
}
