//! Cores that come and go, and what a successor is told.

use crate::sequence_batcher::tests::*;

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
