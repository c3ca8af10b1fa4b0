//! The oldest strategy, and iterative requests.

use crate::sequence_batcher::tests::*;

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
