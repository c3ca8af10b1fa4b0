//! Schedulers on a virtual clock: the table is the specification, and a simple model checks random
//! runs.

mod batch_policy;

use std::rc::Rc;

use conch_config::{DynamicBatching, QueuePolicy, TimeoutAction};
use conch_sync::{ClaimReason, NEVER_NS};

use super::{BatchDecision, BatchPolicy, DynamicBatcher};
use crate::entry::{Entry, SchedulingParams};
use crate::fake::{Fake, settings};
use crate::fifo::Fifo;
use crate::output::SchedulerOutput;

fn fake(number: usize, facts: SchedulingParams) -> Rc<Fake> {
    Fake::new(number, facts, None)
}

/// Requests as (inferences, queued at us, shape), in order of arrival, level 0.
fn run(
    settings: &DynamicBatching,
    max: u32,
    requests: &[(u32, u64, i64)],
    now_us: u64,
) -> (Vec<usize>, Option<u64>) {
    let mut dynamic = DynamicBatcher::new(settings, max, None);
    for (number, (batch_count, queued_us, shape)) in requests.iter().enumerate() {
        dynamic.accept(fake(
            number,
            SchedulingParams {
                batch_count: *batch_count,
                queued_ns: queued_us * 1_000,
                signature: [*shape].into_iter().collect(),
                ..SchedulingParams::default()
            },
        ));
    }
    let mut output = SchedulerOutput::default();
    let poll_state = dynamic.form(now_us * 1_000, &mut output);
    (
        output.batch,
        (poll_state.deadline_ns != NEVER_NS).then_some(poll_state.deadline_ns / 1_000),
    )
}

#[test]
fn a_held_batcher_waits_for_so_many_requests_once() {
    let mut dynamic = DynamicBatcher::new(&settings(&[], 0), 4, None);
    dynamic.hold(3);
    let form = |dynamic: &mut DynamicBatcher<Rc<Fake>>, number: usize| {
        let facts = SchedulingParams {
            batch_count: 1,
            ..SchedulingParams::default()
        };
        dynamic.accept(fake(number, facts));
        let mut output = SchedulerOutput::default();
        let poll_state = dynamic.form(1_000, &mut output);
        (output.batch, poll_state.is_ready, poll_state.is_empty)
    };
    assert_eq!(form(&mut dynamic, 0), (vec![], false, false));
    assert_eq!(form(&mut dynamic, 1), (vec![], false, false));
    assert_eq!(form(&mut dynamic, 2), (vec![0, 1, 2], false, true));
    assert_eq!(form(&mut dynamic, 3), (vec![3], false, true));
}

const ONE: (u32, u64, i64) = (1, 0, 0);
const ODD: (u32, u64, i64) = (1, 0, 9);

/// Name, preferred sizes, delay (us), requests, now (us) -> requests of the batch, deadline (us).
type FormCase = (
    &'static str,
    &'static [u32],
    u64,
    &'static [(u32, u64, i64)],
    u64,
    usize,
    Option<u64>,
);

const FORM_CASES: &[FormCase] = &[
    ("nothing", &[8], 0, &[], 0, 0, None),
    (
        "no delay takes what is there",
        &[8],
        0,
        &[ONE; 3],
        0,
        3,
        None,
    ),
    ("up to the maximum", &[8], 0, &[ONE; 11], 0, 8, None),
    ("a preferred size cuts", &[4], 0, &[ONE; 6], 0, 4, None),
    (
        "the largest reached cuts",
        &[2, 4],
        0,
        &[ONE; 7],
        0,
        4,
        None,
    ),
    (
        "a smaller one cuts if the larger is out of reach",
        &[2, 6],
        0,
        &[ONE; 5],
        0,
        2,
        None,
    ),
    ("cuts without waiting", &[4], 100, &[ONE; 6], 10, 4, None),
    (
        "waits for a preferred size",
        &[4],
        100,
        &[ONE; 3],
        10,
        0,
        Some(100),
    ),
    (
        "waits from the oldest on",
        &[4],
        100,
        &[(1, 5, 0), (1, 30, 0)],
        40,
        0,
        Some(105),
    ),
    ("the delay is over", &[4], 100, &[ONE; 3], 100, 3, None),
    (
        "over the delay up to the maximum, not the preferred",
        &[4],
        100,
        &[ONE; 12],
        100,
        8,
        None,
    ),
    (
        "another shape ends it at once",
        &[4],
        100,
        &[ONE, ONE, ODD],
        10,
        2,
        None,
    ),
    (
        "a shape that ends it beyond the mark",
        &[2],
        0,
        &[ONE, ONE, ONE, ODD],
        0,
        2,
        None,
    ),
    (
        "counts inferences",
        &[8],
        0,
        &[(3, 0, 0), (3, 0, 0), (3, 0, 0)],
        0,
        2,
        None,
    ),
    (
        "would exceed the largest preferred",
        &[4],
        100,
        &[(3, 0, 0), (3, 0, 0)],
        10,
        1,
        None,
    ),
    (
        "first larger than preferred",
        &[4],
        100,
        &[(6, 0, 0)],
        10,
        1,
        None,
    ),
    (
        "full before its time",
        &[8],
        100,
        &[(5, 0, 0), (3, 0, 0)],
        10,
        2,
        None,
    ),
];

#[test]
fn batches_form_as_upstream_forms_them() {
    for &(name, preferred, delay_us, requests, now_us, count, expected_us) in FORM_CASES {
        let (batch, deadline_us) = run(&settings(preferred, delay_us), 8, requests, now_us);
        assert_eq!(batch, (0..count).collect::<Vec<_>>(), "{name}");
        assert_eq!(deadline_us, expected_us, "{name}");
    }
}

#[test]
fn a_model_without_batching_executes_one_at_a_time() {
    assert_eq!(run(&settings(&[], 0), 0, &[(1, 0, 0); 3], 0).0, [0]);
    let mut fifo = Fifo::default();
    let mut output = SchedulerOutput::default();
    let entries: Vec<_> = (0..3)
        .map(|number| {
            fake(
                number,
                SchedulingParams {
                    batch_count: 1,
                    ..SchedulingParams::default()
                },
            )
        })
        .collect();
    entries
        .iter()
        .for_each(|entry| fifo.accept(Rc::clone(entry)));
    entries[0].reason.set(Some(ClaimReason::Cancel));
    assert!(fifo.form(&mut output).is_ready);
    assert_eq!(output.batch, [1], "0 was cancelled");
    let poll_state = fifo.form(&mut output);
    assert_eq!(
        (output.batch, poll_state.is_empty, poll_state.is_ready),
        (vec![1, 2], true, false)
    );
}

fn policy(action: TimeoutAction, timeout_us: u64, allow_override: bool) -> QueuePolicy {
    QueuePolicy {
        timeout_action: action,
        default_timeout_us: timeout_us,
        allow_timeout_override: allow_override,
        queue_size_max: 0,
    }
}

/// Action, override allowed, default timeout and the second request's own (us), now (us) -> batch,
/// expired, deadline (us).
type TimeoutCase = (
    TimeoutAction,
    bool,
    u64,
    u64,
    u64,
    &'static [usize],
    &'static [usize],
    Option<u64>,
);

#[test]
fn timeouts_reject_or_delay() {
    let cases: [TimeoutCase; 9] = [
        (TimeoutAction::Reject, false, 50, 0, 49, &[], &[], Some(50)),
        (
            TimeoutAction::Reject,
            false,
            50,
            0,
            50,
            &[],
            &[0, 1, 2],
            None,
        ),
        (TimeoutAction::Reject, false, 50, 10, 20, &[], &[], Some(50)),
        (TimeoutAction::Reject, true, 50, 10, 20, &[], &[1], Some(50)),
        (
            TimeoutAction::Reject,
            true,
            50,
            90,
            60,
            &[],
            &[0, 1, 2],
            None,
        ),
        (TimeoutAction::Reject, true, 0, 10, 20, &[], &[1], Some(100)),
        (TimeoutAction::Reject, false, 0, 10, 20, &[], &[], Some(100)),
        (TimeoutAction::Delay, true, 50, 10, 20, &[], &[], Some(50)),
        (
            TimeoutAction::Delay,
            true,
            50,
            10,
            100,
            &[1, 0, 2],
            &[],
            None,
        ),
    ];
    for (action, allow_override, default_us, own_us, now_us, batch, expired, deadline_us) in cases {
        let mut settings = settings(&[8], 100);
        settings.default_policy = policy(action, default_us, allow_override);
        let mut dynamic = DynamicBatcher::new(&settings, 8, None);
        for number in 0..3 {
            let timeout_us = if number == 1 { own_us } else { 0 };
            dynamic.accept(fake(
                number,
                SchedulingParams {
                    batch_count: 1,
                    timeout_us,
                    ..SchedulingParams::default()
                },
            ));
        }
        let mut output = SchedulerOutput::default();
        let mut poll_state = dynamic.form(20_000.min(now_us * 1_000), &mut output);
        if now_us > 20 {
            poll_state = dynamic.form(now_us * 1_000, &mut output);
        }
        let label = format!(
            "{action:?} override {allow_override} default {default_us} own {own_us} now {now_us}"
        );
        output.expired.sort_unstable();
        assert_eq!(
            (&output.batch[..], &output.expired[..]),
            (batch, expired),
            "{label}"
        );
        assert_eq!(
            (poll_state.deadline_ns != NEVER_NS).then_some(poll_state.deadline_ns / 1_000),
            deadline_us,
            "{label}"
        );
    }
}

#[test]
fn deadlines_order_a_level_where_the_model_wants_it() {
    // Level, arrival, the client's deadline, its timeout; 0 for none. Times in us.
    let requests = [
        (2, 0, 10, 0),
        (1, 1, 0, 0),
        (1, 2, 900, 0),
        (1, 3, 500, 0),
        (1, 4, 0, 400),
        (1, 5, 500, 0),
        (1, 6, 800, 200),
        (1, 7, 0, 0),
    ];
    let order = |is_by_deadline, action, now_us: u64| {
        let mut settings = settings(&[1], 0);
        settings.priority_levels = 2;
        settings.is_by_deadline = is_by_deadline;
        settings.default_policy = policy(action, 0, true);
        let mut dynamic = DynamicBatcher::new(&settings, 1, None);
        for (number, (level, queued_us, deadline_us, timeout_us)) in
            requests.into_iter().enumerate()
        {
            dynamic.accept(fake(
                number,
                SchedulingParams {
                    batch_count: 1,
                    level,
                    queued_ns: queued_us * 1_000,
                    timeout_us,
                    deadline_ns: if deadline_us == 0 {
                        NEVER_NS
                    } else {
                        deadline_us * 1_000
                    },
                    ..SchedulingParams::default()
                },
            ));
        }
        let mut output = SchedulerOutput::default();
        while !dynamic.form(now_us * 1_000, &mut output).is_empty {}
        output.batch
    };
    let (reject, delay) = (TimeoutAction::Reject, TimeoutAction::Delay);
    assert_eq!(order(false, reject, 10), [1, 2, 3, 4, 5, 6, 7, 0]);
    // Due at 206, 404, 500, 500, 900, and never; equal ones, and those, as they came.
    assert_eq!(order(true, reject, 10), [6, 4, 3, 5, 2, 1, 7, 0]);
    // A client's deadline orders and does no more: who it passes for is withdrawn by others.
    assert_eq!(order(true, delay, 300), [4, 3, 5, 2, 1, 7, 6, 0]);
}

#[test]
fn priorities_go_first_and_claimed_ones_are_made_up_for() {
    let mut settings = settings(&[3], 0);
    settings.priority_levels = 3;
    let mut dynamic = DynamicBatcher::new(&settings, 3, None);
    let levels = [3, 2, 1, 2, 1, 3];
    let entries: Vec<_> = levels
        .into_iter()
        .enumerate()
        .map(|(number, level)| {
            fake(
                number,
                SchedulingParams {
                    batch_count: 1,
                    level,
                    ..SchedulingParams::default()
                },
            )
        })
        .collect();
    entries
        .iter()
        .for_each(|entry| dynamic.accept(Rc::clone(entry)));
    entries[4].reason.set(Some(ClaimReason::Cancel));
    let mut batches = Vec::new();
    loop {
        let mut output = SchedulerOutput::default();
        let poll_state = dynamic.form(0, &mut output);
        if output.batch.is_empty() {
            assert!(poll_state.is_empty);
            break;
        }
        batches.push(output.batch);
    }
    assert_eq!(batches, [vec![2, 1, 3], vec![0, 5]]);
}
