//! Sequences that end by time, by a cancelled request, or because they are ended.

use crate::sequence_batcher::tests::*;

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
