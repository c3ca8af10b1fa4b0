//! Sequences on a virtual clock: stories whose every step is written down, and random runs that are
//! held against the rules.

use std::collections::HashMap;
use std::rc::Rc;

use conch_config::{SequenceBatching, SequenceStrategy};
use conch_sync::NEVER_NS;

use super::{SequenceBatcher, SequenceContext, SequenceKey};
use crate::delay::SchedulerDelay;
use crate::entry::{Entry, SchedulingParams};
use crate::fake::{Fake, settings};
use crate::output::{Dismissal, SchedulerOutput};

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
fn a_hand_over_lists_what_is_under_way_and_tells_what_ends() {
    for settings in [direct(3), oldest(3, &[1], 0)] {
        let mut stage = Stage::new(&settings, 3, &[1]);
        for id in 1..=5 {
            stage.send(id, START);
        }
        stage.send(2, END);
        assert_eq!(stage.ends(), [0; 0], "nobody wants to know");
        let mut under_way = stage.sequence.hand_over();
        under_way.sort_by_key(|key| format!("{key:?}"));
        // 4 and 5 wait for a slot.
        let expected: Vec<SequenceKey> = [1, 3, 4, 5]
            .into_iter()
            .map(SequenceKey::Unsigned)
            .collect();
        assert_eq!(under_way, expected);
        // By its end; not if it begins anew before anybody looks.
        stage.send(1, END);
        stage.send(1, START);
        stage.send(3, END);
        stage.send(6, START | END);
        assert_eq!(stage.ends(), [3, 6]);
        stage.cancel(3);
        assert_eq!(stage.ends(), [4]);
        // By a word: what waits is executed, and nothing joins it.
        stage.sequence.end(&SequenceKey::Unsigned(5), stage.now_ns);
        stage.sequence.end(&SequenceKey::Unsigned(9), stage.now_ns);
        assert_eq!(stage.ends(), [5]);
        stage.refused.clear();
        let late = stage.send(5, 0);
        assert_eq!(stage.refusals(), [(late, Dismissal::NotStarted)]);
        let mut order = Vec::new();
        for _ in 0..10 {
            for (_, number) in stage.form(0) {
                order.push(number);
                if stage.sequence.awaits() {
                    stage.release(number);
                }
            }
        }
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
        // By itself.
        assert_eq!(stage.sequence.open_count(), 1);
        stage.pass(2 * IDLE_US);
        stage.form(0);
        stage.pass(2 * IDLE_US);
        assert_eq!(stage.ends(), [1]);
        assert_eq!(stage.sequence.open_count(), 0);
    }
}

#[test]
fn a_core_that_comes_takes_what_waits_and_what_starts() {
    for settings in [direct(1), oldest(1, &[1], 0)] {
        let mut stage = Stage::new(&settings, 1, &[1]);
        for id in 1..=4 {
            stage.send(id, START);
        }
        assert_eq!(stage.form(0), [(0, 0)]);
        // Numbers may be left out, and come in any order.
        assert_eq!(stage.form(3), [(0, 1)]);
        assert_eq!(stage.form(2), [(0, 2)]);
        stage.send(5, START);
        assert_eq!(stage.form(4), [(0, 3)], "in the order in which they wait");
        for core in 0..5 {
            assert_eq!(stage.form(core), [], "only core 1 is new");
            if core == 0 {
                assert_eq!(stage.form(1), [(0, 4)]);
            }
        }
        stage.send(2, 0);
        if stage.sequence.awaits() {
            stage.release(1);
        }
        assert_eq!(stage.calls(), [3], "a sequence stays where it is");
        assert_eq!(stage.form(3), [(0, 5)]);
    }
}

#[test]
fn a_core_leaves_when_its_sequences_have_ended() {
    for settings in [direct(2), oldest(2, &[1], 0)] {
        let mut stage = Stage::new(&settings, 1, &[1, 1]);
        let run = |stage: &mut Stage, core: usize| {
            let batch = stage.form(core);
            for (_, number) in &batch {
                if stage.sequence.awaits() {
                    stage.release(*number);
                }
            }
            batch
        };
        for id in 1..=5 {
            stage.send(id, START);
        }
        // 2 and 4 are on core 1, 5 waits.
        assert!(!stage.sequence.drain(1));
        while !run(&mut stage, 1).is_empty() {}
        stage.send(2, END);
        assert_eq!(run(&mut stage, 1), [(0, 5)]);
        assert_eq!(run(&mut stage, 1), [], "what waits is not for it");
        assert!(!stage.sequence.drain(1), "4 is under way");
        stage.send(4, END);
        let batch = stage.form(1);
        assert_eq!(batch, [(1, 6)]);
        assert!(!stage.sequence.drain(1), "it executes");
        if stage.sequence.awaits() {
            stage.release(6);
        }
        assert_eq!(stage.form(1), []);
        assert!(stage.sequence.drain(1));
        // What waited gets the next slot of the other.
        stage.send(1, END);
        let mut order = Vec::new();
        while let batch = run(&mut stage, 0)
            && !batch.is_empty()
        {
            order.extend(batch.into_iter().map(|(_, number)| number));
        }
        order.sort_unstable();
        assert_eq!(order, [0, 2, 4, 7]);
        assert_eq!(stage.refusals(), []);
    }
}

#[test]
fn what_a_leaving_core_has_may_be_ended() {
    let mut stage = Stage::new(&direct(2), 2, &[1, 1]);
    for id in 1..=4 {
        stage.send(id, START);
    }
    assert_eq!(stage.form(1), [(0, 1), (1, 3)]);
    assert_eq!(stage.form(1), []);
    stage.send(4, 0);
    assert!(!stage.sequence.drain(1));
    assert_eq!(stage.sequence.end_all(1, stage.now_ns), 2);
    assert_eq!(
        stage.sequence.end_all(1, stage.now_ns),
        0,
        "they have ended"
    );
    assert_eq!(stage.form(1), [(1, 4)], "what waits is executed");
    assert_eq!(stage.form(1), []);
    assert!(stage.sequence.drain(1));
    let late = stage.send(2, 0);
    assert_eq!(stage.refusals(), [(late, Dismissal::NotStarted)]);
    assert_eq!(stage.form(0), [(0, 0), (1, 2)]);
}

#[test]
fn a_sequence_that_is_ended_idle_frees_its_slot_at_once() {
    let mut stage = Stage::new(&direct(1), 1, &[1]);
    stage.send(1, START);
    stage.send(2, START);
    assert_eq!(stage.form(0), [(0, 0)]);
    assert_eq!(stage.form(0), []);
    stage.sequence.end(&SequenceKey::Unsigned(1), stage.now_ns);
    assert_eq!(stage.calls(), [0]);
    assert_eq!(stage.form(0), [(0, 1)]);
}

#[test]
fn a_held_scheduler_waits_for_requests_in_slots_and_without() {
    let mut stage = Stage::new(&direct(1), 1, &[1, 1]);
    stage.sequence.hold(SchedulerDelay {
        request_count: 3,
        backlog_count: 2,
    });
    for id in 1..=3 {
        stage.send(id, START);
    }
    stage.calls();
    assert_eq!(stage.form(0), []);
    assert_eq!(stage.calls(), [0; 0], "it is not to ask again and again");
    stage.send(3, 0);
    assert_eq!(stage.form(1), [], "two wait in slots");
    stage.send(2, 0);
    // Whoever looks lets all go.
    assert_eq!(stage.form(0), [(0, 0)]);
    assert_eq!(stage.calls(), [0, 1]);
    assert_eq!(stage.form(1), [(0, 1)]);
    assert_eq!(stage.form(1), [(0, 4)]);
    stage.send(1, END);
    assert_eq!(stage.form(0), [(0, 5)]);
}

#[test]
fn a_held_candidate_waits_for_others() {
    let mut stage = Stage::new(&oldest(4, &[4], 0), 4, &[1]);
    stage.sequence.hold(SchedulerDelay {
        request_count: 2,
        backlog_count: 0,
    });
    stage.send(1, START);
    stage.send(1, 0);
    assert_eq!(stage.form(0), [], "only one of a sequence is a candidate");
    stage.send(2, START);
    assert_eq!(stage.form(0), [(0, 0), (1, 2)]);
    stage.release(0);
    assert_eq!(stage.form(0), [(0, 1)]);
}

#[test]
fn a_backlogged_sequence_times_out_as_a_whole() {
    let mut stage = Stage::new(&direct(1), 1, &[1]);
    stage.send(1, START);
    // Its request has a slot: its timeout means nothing.
    stage.send_with(1, 0, 0, 5);
    stage.send_with(2, START, 0, 100);
    stage.pass(10);
    stage.send_with(2, 0, 0, 50);
    stage.send_with(3, START, 0, 200);
    stage.pass(49);
    assert_eq!(stage.form(0), [(0, 0)]);
    assert_eq!(stage.refusals(), []);
    stage.pass(1);
    stage.expire();
    assert_eq!(
        stage.refusals(),
        [(2, Dismissal::TimedOut), (3, Dismissal::TimedOut)]
    );
    stage.send(2, 0);
    assert_eq!(stage.refusals(), [(5, Dismissal::NotStarted)]);
    // The next one in the backlog lives.
    stage.send(1, END);
    assert_eq!(stage.form(0), [(0, 1)]);
    assert_eq!(stage.form(0), [(0, 6)]);
    assert_eq!(stage.form(0), [(0, 4)]);
    stage.pass(1_000);
    stage.expire();
    assert_eq!(stage.refusals(), []);
}

#[test]
fn an_idle_sequence_loses_its_slot_but_not_while_it_works() {
    let mut stage = Stage::new(&direct(1), 1, &[1]);
    stage.send(1, START);
    stage.send(2, START | END);
    stage.send(2, START);
    assert_eq!(stage.form(0), [(0, 0)]);
    // It executes all the while.
    stage.pass(5 * IDLE_US);
    stage.expire();
    assert_eq!(stage.form(0), [], "the execution ended just now");
    stage.pass(IDLE_US - 1);
    let deadline_ns = stage.expire();
    assert_eq!(deadline_ns, stage.now_ns + US);
    assert_eq!(stage.calls(), [0; 0]);
    stage.pass(1);
    assert_eq!(stage.calls(), [0], "the next of the backlog has the slot");
    assert_eq!(stage.form(0), [(0, 1)]);
    stage.send(1, 0);
    assert_eq!(stage.refusals(), [(3, Dismissal::NotStarted)]);
    // What waits is not idle, however long.
    assert_eq!(stage.form(0), [(0, 2)]);
    stage.send(2, 0);
    stage.pass(3 * IDLE_US);
    stage.expire();
    assert_eq!(stage.form(0), [(0, 4)]);
}

#[test]
fn a_cancelled_request_ends_its_sequence() {
    let mut stage = Stage::new(&direct(1), 1, &[1]);
    for _ in 0..4 {
        stage.send(1, if stage.requests.is_empty() { START } else { 0 });
    }
    stage.send(2, START);
    stage.send(2, 0);
    stage.send(3, START);
    // In the backlog: all of it, wherever the request stands.
    stage.cancel(5);
    let cancelled = |numbers: &[usize]| -> Vec<_> {
        numbers
            .iter()
            .map(|number| (*number, Dismissal::Cancelled))
            .collect()
    };
    assert_eq!(stage.refusals(), cancelled(&[4, 5]));
    assert_eq!(stage.form(0), [(0, 0)]);
    // In a slot: what stands before it is still executed.
    stage.cancel(2);
    assert_eq!(stage.refusals(), cancelled(&[2, 3]));
    stage.cancel(2);
    stage.cancel(0);
    assert_eq!(
        stage.refusals(),
        [],
        "once; and what executes is its backend's"
    );
    stage.send(1, 0);
    assert_eq!(stage.refusals(), [(7, Dismissal::NotStarted)]);
    assert_eq!(stage.form(0), [(0, 1)]);
    assert_eq!(stage.form(0), [(0, 6)], "then the slot is the next one's");
    // Cancelled before it was seen.
    stage.requests[6].is_cancelled.set(true);
    let number = stage.requests.len();
    stage.send(3, 0);
    stage.cancel(number);
    assert_eq!(stage.refusals(), cancelled(&[number]));
    assert_eq!(stage.form(0), []);
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
fn four_candidates_never_meet_their_own_sequence() {
    let mut stage = Stage::new(&oldest(4, &[2], 0), 4, &[1]);
    for id in 1..=4 {
        stage.send(id, START);
        stage.send(id, 0);
    }
    assert_eq!(stage.calls(), [0]);
    assert_eq!(stage.form(0), [(0, 0), (1, 2)]);
    assert_eq!(stage.form(0), [(2, 4), (3, 6)]);
    assert_eq!(stage.form(0), [], "their next ones wait for them");
    // In the order in which their predecessors come back.
    for number in [4, 0, 6] {
        stage.pass(1);
        stage.release(number);
    }
    assert_eq!(stage.calls(), [0]);
    assert_eq!(stage.form(0), [(2, 5), (0, 1)]);
    assert_eq!(stage.form(0), [(3, 7)]);
}

#[test]
fn the_delay_counts_from_when_a_request_became_a_candidate() {
    let mut stage = Stage::new(&oldest(4, &[4], 100), 4, &[1]);
    stage.send(1, START);
    stage.send(1, 0);
    assert_eq!(stage.form(0), []);
    stage.pass(100);
    assert_eq!(stage.form(0), [(0, 0)]);
    stage.pass(50);
    stage.release(0);
    assert_eq!(stage.form(0), []);
    assert_eq!(stage.expire(), stage.now_ns + 100 * US);
    stage.pass(100);
    assert_eq!(stage.calls(), [0]);
    assert_eq!(stage.form(0), [(0, 1)]);
}

#[test]
fn a_candidate_that_is_cancelled_ends_its_sequence() {
    let mut stage = Stage::new(&oldest(1, &[1], 0), 1, &[1]);
    stage.send(1, START);
    stage.send(1, 0);
    stage.send(2, START);
    stage.cancel(0);
    assert_eq!(
        stage.refusals(),
        [(0, Dismissal::Cancelled), (1, Dismissal::Cancelled)]
    );
    assert_eq!(stage.form(0), [(0, 2)]);
    stage.release(2);
    stage.pass(IDLE_US);
    stage.expire();
    stage.send(2, 0);
    assert_eq!(stage.refusals(), [(3, Dismissal::NotStarted)]);
}

#[test]
fn the_oldest_slot_is_refilled_when_its_end_is_nominated() {
    let mut stage = Stage::new(&oldest(1, &[1], 0), 1, &[1]);
    stage.send(1, START | END);
    stage.send(2, START);
    assert_eq!(stage.form(0), [(0, 0)]);
    assert_eq!(stage.form(0), [], "the slot's last request is still out");
    stage.release(0);
    assert_eq!(stage.form(0), [(0, 1)]);
}

#[test]
fn an_iterative_request_runs_until_it_is_released() {
    for strategy in [direct(2), oldest(2, &[2], 0)] {
        let settings = SequenceBatching {
            is_iterative: true,
            ..strategy
        };
        let mut stage = Stage::new(&settings, 2, &[1]);
        stage.send(0, START);
        stage.send(0, START);
        stage.send(0, START);
        assert_eq!(stage.form(0), [(0, 0), (1, 1)]);
        stage.reschedule(0);
        stage.release(1);
        assert_eq!(
            stage.form(0),
            [(0, 0), (1, 2)],
            "the slot that is free is the next one's"
        );
        stage.reschedule(2);
        stage.pass(10);
        stage.release(0);
        assert_eq!(stage.form(0), [(1, 2)]);
        stage.release(2);
        assert_eq!(stage.form(0), []);
        assert!(stage.sequence.open_count() == 0);
        assert_eq!(stage.refusals(), []);
        // Cancelled between two runs.
        let number = stage.send(0, START);
        assert_eq!(stage.form(0), [(0, number)]);
        stage.cancel(number);
        stage.requests[number].is_cancelled.set(true);
        stage.reschedule(number);
        assert_eq!(stage.refusals(), [(number, Dismissal::Cancelled)]);
        assert_eq!(stage.form(0), []);
    }
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

#[test]
fn instances_of_one_core_take_turns() {
    let mut stage = Stage::new(&direct(1), 1, &[2, 1]);
    for id in 1..=3 {
        stage.send(id, START);
    }
    let mut instances = Vec::new();
    for core in [0, 0, 1] {
        let mut output = SchedulerOutput::default();
        stage.sequence.form(core, stage.now_ns, &mut output);
        instances.push((output.instance, output.batch[0]));
    }
    assert_eq!(instances, [(0, 0), (1, 1), (0, 2)]);
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Random sequences, cancels, pauses and executions; after each step the rules hold, and in the end
/// everything is answered once.
#[test]
fn random_runs_keep_the_rules() {
    for seed in 0..400 {
        run_random(seed);
    }
}

fn run_random(seed: u64) {
    let random = &mut Random(seed);
    let slots = 1 + random.below(4) as u32;
    let core_count = 1 + random.below(3) as usize;
    let is_direct = random.below(2) == 0;
    let mut settings = if is_direct {
        direct(slots)
    } else {
        oldest(
            slots,
            &[1 + random.below(u64::from(slots)) as u32],
            [0, 30][random.below(2) as usize],
        )
    };
    if is_direct && random.below(2) == 0 {
        settings.strategy = SequenceStrategy::Direct {
            delay_us: 40,
            utilization_min: 0.6,
        };
    }
    settings.is_iterative = random.below(4) == 0;
    let mut stage = Stage::new(&settings, slots, &vec![1; core_count]);
    // What each core executes; which core has which sequence; the last request given out of each.
    let mut executing: Vec<Vec<usize>> = vec![Vec::new(); core_count];
    let mut last_of: HashMap<Option<u64>, usize> = HashMap::new();
    let mut ids: Vec<u64> = Vec::new();
    let mut answered: Vec<u32> = Vec::new();
    let mut called = vec![true; core_count];
    let mut step = 0;
    loop {
        let is_draining = step >= 300;
        let core = random.below(core_count as u64) as usize;
        match random.below(if is_draining { 4 } else { 10 }) {
            // A core asks if it is called, or for no reason.
            0 | 1 if executing[core].is_empty() && (called[core] || random.below(4) == 0) => {
                called[core] = false;
                let batch = stage.form(core);
                assert!(batch.len() <= slots as usize, "seed {seed} step {step}");
                let rows: Vec<_> = batch.iter().map(|(row, _)| *row).collect();
                let mut distinct = rows.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(
                    distinct.len(),
                    rows.len(),
                    "seed {seed} step {step}: a row twice"
                );
                if is_direct {
                    assert_eq!(distinct, rows, "seed {seed} step {step}: rows out of order");
                }
                for (_, number) in &batch {
                    // Its run, as a name may be used again.
                    let run_of = |number: &usize| {
                        stage.requests[*number]
                            .member
                            .as_ref()
                            .and_then(SequenceContext::run)
                    };
                    let id = run_of(number);
                    if let Some(last) = last_of.insert(id, *number) {
                        assert!(
                            last < *number || settings.is_iterative,
                            "seed {seed} step {step}: {number} of sequence {id:?} after {last}"
                        );
                    }
                    assert!(
                        executing.iter().flatten().all(|other| run_of(other) != id),
                        "seed {seed} step {step}: two of sequence {id:?} at once"
                    );
                }
                executing[core] = batch.into_iter().map(|(_, number)| number).collect();
            }
            0..4 if !executing[core].is_empty() => {
                for number in std::mem::take(&mut executing[core]) {
                    if settings.is_iterative && random.below(3) == 0 && !is_draining {
                        stage.reschedule(number);
                    } else {
                        answered[number] += 1;
                        if stage.sequence.awaits() {
                            stage.release(number);
                        }
                    }
                }
                called[core] = true;
            }
            0..4 => stage.pass(random.below(60)),
            4..8 => {
                let id = 1 + random.below(8);
                // Mostly well formed.
                let flags = [0, 0, START, END, START | END, START][random.below(6) as usize];
                ids.push(id);
                answered.push(0);
                stage.send_with(id, flags, random.below(2) as i64, random.below(3) * 40);
            }
            8 if !ids.is_empty() => {
                let number = random.below(ids.len() as u64) as usize;
                stage.cancel(number);
            }
            _ => stage.pass(random.below(2_000)),
        }
        stage.expire();
        for core in std::mem::take(&mut stage.called) {
            called[core] = true;
        }
        for (number, _) in stage.refusals() {
            answered[number] += 1;
        }
        assert!(
            answered.iter().all(|count| *count <= 1),
            "seed {seed} step {step}: answered twice"
        );
        step += 1;
        let mut output = SchedulerOutput::default();
        let poll_state = stage.sequence.expire(stage.now_ns, &mut output);
        stage.note(&mut output);
        let is_idle = executing.iter().all(Vec::is_empty);
        if is_draining && poll_state.is_empty && is_idle {
            break;
        }
        if is_draining && is_idle && !called.contains(&true) && stage.called.is_empty() {
            assert!(
                poll_state.deadline_ns != NEVER_NS,
                "seed {seed}: requests wait for nothing"
            );
            stage.now_ns = stage.now_ns.max(poll_state.deadline_ns);
        }
        assert!(step < 20_000, "seed {seed} does not end");
    }
    assert!(
        answered.iter().all(|count| *count == 1),
        "seed {seed}: not all are answered"
    );
    // Idle sequences end by themselves, and leave nothing behind.
    loop {
        let deadline_ns = stage.expire();
        if deadline_ns == NEVER_NS {
            break;
        }
        stage.now_ns = stage.now_ns.max(deadline_ns);
        for core in 0..core_count {
            assert_eq!(stage.form(core), []);
        }
    }
    assert_eq!(stage.sequence.open_count(), 0, "seed {seed}");
}
