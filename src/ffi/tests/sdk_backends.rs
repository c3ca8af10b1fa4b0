//! The backends `repeat` and `square` through the host: many responses to a request, after its
//! execution and from a thread of the backend's own. The backend `forward`, whose models call
//! others, without a server that could take the calls. The backend `overlap`, whose batches go on
//! beyond their call.

#[path = "sdk_backends/bench.rs"]
mod bench;

use std::time::Duration;

use bench::{Bench, Request};
use conch_sync::ClaimReason;

const REPEAT: &str = r#"
    input { name: "IN" data_type: TYPE_INT32 dims: -1 }
    input { name: "DELAY" data_type: TYPE_UINT32 dims: -1 }
    input { name: "WAIT" data_type: TYPE_UINT32 dims: 1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
    output { name: "IDX" data_type: TYPE_UINT32 dims: 1 }
"#;
const SQUARE: &str = r#"
    max_batch_size: 4
    input { name: "IN" data_type: TYPE_INT32 dims: 1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
    parameters { key: "CUSTOM_FAIL_COUNT" value { string_value: "2" } }
    parameters { key: "CUSTOM_EMPTY_COUNT" value { string_value: "1" } }
    parameters { key: "CUSTOM_INFER_DELAY_NS" value { string_value: "2000000" } }
    parameters { key: "CUSTOM_OUTPUT_DELAY_NS" value { string_value: "1000000" } }
"#;
const FORWARD: &str = r#"
    input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
    parameters { key: "model_name" value { string_value: "other" } }
"#;

fn repeat(values: &[i32], delays: &[i32], wait: i32) -> Request {
    vec![
        ("IN", vec![values.len()], values.to_vec()),
        ("DELAY", vec![delays.len()], delays.to_vec()),
        ("WAIT", vec![1], vec![wait]),
    ]
}

fn square(count: i32) -> Request {
    vec![("IN", vec![1, 1], vec![count])]
}

#[test]
fn responses_follow_after_the_execution_from_another_thread() {
    let bench = Bench::new("repeat", REPEAT);
    let mut instance = bench.instance();
    bench.execute(&mut *instance, &[repeat(&[7, 8, -9], &[100, 0, 10], 0)]);
    assert_eq!(bench.taken(), [""; 0], "nothing was sent yet");
    assert_eq!(
        bench.version.live_count(),
        1,
        "the request was released, but has its place until its last response"
    );
    assert_eq!(
        bench.wait(4),
        [
            "0 OUT=7 IDX=0",
            "0 OUT=8 IDX=1",
            "0 OUT=-9 IDX=2",
            "0 end final"
        ]
    );
    let threads = bench.threads();
    assert_eq!(threads.len(), 1, "one thread sends them all");
    assert!(!threads.contains(&std::thread::current().id()));
    drop(instance);
    assert_eq!(bench.version.live_count(), 0);
    let statistics = bench.version.model_statistics();
    assert_eq!(
        (statistics.inference_count, statistics.execution_count),
        (1, 1),
        "one inference, however many responses"
    );
}

#[test]
fn responses_do_not_wait_for_the_execution() {
    let bench = Bench::new("repeat", REPEAT);
    let mut instance = bench.instance();
    bench.execute(&mut *instance, &[repeat(&[1, 2], &[0, 1], 1_000)]);
    assert_eq!(
        bench.taken(),
        ["0 OUT=1 IDX=0", "0 OUT=2 IDX=1", "0 end final"]
    );
    // None at all, and requests that cannot be.
    bench.execute(
        &mut *instance,
        &[repeat(&[], &[], 0), repeat(&[1], &[1, 2], 0)],
    );
    let mut answers = bench.wait(2);
    answers.sort();
    assert_eq!(
        answers,
        [
            "0 end final",
            "1 Invalid argument: expected IN and DELAY shape to match, got [1] and [2] final"
        ]
    );
}

#[test]
fn streams_of_several_requests_mix() {
    let bench = Bench::new("repeat", REPEAT);
    let mut instance = bench.instance();
    // Slow enough for the quick one to end first, however late a busy machine begins it.
    let slow = repeat(&[1, 2], &[0, 1_000], 0);
    let quick = repeat(&[3, 4], &[50, 50], 0);
    bench.execute(&mut *instance, &[slow, quick]);
    assert_eq!(
        bench.wait(6),
        [
            "0 OUT=1 IDX=0",
            "1 OUT=3 IDX=0",
            "1 OUT=4 IDX=1",
            "1 end final",
            "0 OUT=2 IDX=1",
            "0 end final"
        ]
    );
}

#[test]
fn the_end_of_an_instance_waits_for_its_responses() {
    let bench = Bench::new("repeat", REPEAT);
    let mut instance = bench.instance();
    bench.execute(&mut *instance, &[repeat(&[5, 6], &[50, 50], 0)]);
    drop(instance);
    assert_eq!(
        bench.taken(),
        ["0 OUT=5 IDX=0", "0 OUT=6 IDX=1", "0 end final"]
    );
    bench.assert_nothing_held();
}

#[test]
fn a_cancelled_request_gets_no_more_responses() {
    let bench = Bench::new("repeat", REPEAT);
    let mut instance = bench.instance();
    let request = repeat(&[1, 2], &[0, 3_600_000], 0);
    let handles = bench.execute(&mut *instance, &[request]);
    assert_eq!(bench.wait(1), ["0 OUT=1 IDX=0"]);
    assert!(
        handles[0].claim(ClaimReason::Cancel, None).is_none(),
        "too late"
    );
    assert_eq!(
        bench.wait(1),
        ["0 Cancelled: request has been cancelled final"]
    );
}

#[test]
fn responses_are_counted_by_their_index() {
    let bench = Bench::new("square", SQUARE);
    let mut instance = bench.instance();
    bench.execute(&mut *instance, &[square(5), square(4), square(-1)]);
    let mut answers = bench.wait(10);
    // The sort is stable: within a slot the order stays.
    answers.sort_by_key(|line| line.chars().next());
    let failure = "Unknown: simulated failure";
    assert_eq!(
        answers,
        [
            "0 OUT=5",
            "0 OUT=5",
            &format!("0 {failure}"),
            &format!("0 {failure}"),
            "0 end final",
            "1 OUT=4",
            &format!("1 {failure}"),
            &format!("1 {failure}"),
            "1 end final",
            "2 Invalid argument: IN must not be negative, got -1 final",
        ]
    );
    let handles = bench.execute(&mut *instance, &[square(100)]);
    bench.wait(2);
    handles[0].claim(ClaimReason::Cancel, None);
    // What is on its way still comes, then the end.
    while bench.wait(1) != ["0 end final"] {}
    drop((instance, handles));

    let statistics = bench.version.model_statistics();
    let figures: Vec<_> = statistics
        .responses
        .iter()
        .map(|(index, figures)| {
            (
                *index,
                figures.success.count,
                figures.fail.count,
                figures.empty_response.count,
                figures.compute_infer.count,
                figures.compute_output.count,
            )
        })
        .collect();
    // The third request is a success at these indices, unless it was cancelled there.
    assert_eq!(figures[0], (0, 3, 0, 0, 3, 3));
    assert_eq!(figures[1], (1, 2, 1, 0, 3, 3));
    assert_eq!((figures[2].2, figures[3].2, figures[3].3), (2, 1, 1));
    assert_eq!((figures[4].2, figures[4].3), (0, 1));
    let cancelled: u64 = statistics
        .responses
        .iter()
        .map(|(_, figures)| figures.cancel.count)
        .sum();
    assert_eq!(cancelled, 1);
    let first = &statistics.responses[0].1;
    assert!(Duration::from_nanos(first.compute_infer.duration_ns) >= Duration::from_millis(6));
    assert!(Duration::from_nanos(first.compute_output.duration_ns) >= Duration::from_millis(3));
    bench.assert_nothing_held();
}

#[test]
fn a_call_that_cannot_be_sent_is_answered() {
    let bench = Bench::new("forward", FORWARD);
    let mut instance = bench.instance();
    for _ in 0..2 {
        bench.execute(&mut *instance, &[vec![("INPUT0", vec![2], vec![1, 2])]]);
        assert_eq!(bench.wait(1), ["0 Unavailable: Server not ready final"]);
    }
    drop(instance);
    bench.assert_nothing_held();
}

/// `more` is further configuration.
fn overlap(more: &str) -> Bench {
    let config = format!(
        "max_batch_size: 4 input {{ name: 'INPUT0' data_type: TYPE_INT32 dims: 1 }} \
         output {{ name: 'OUTPUT0' data_type: TYPE_INT32 dims: 1 }} {more}"
    );
    Bench::new("overlap", &config)
}

fn value(value: i32) -> Request {
    vec![("INPUT0", vec![1, 1], vec![value])]
}

#[test]
fn batches_go_on_beyond_their_call() {
    let bench = overlap("");
    let mut instance = bench.instance();
    bench.execute(&mut *instance, &[value(10), value(11)]);
    assert_eq!(bench.taken(), [""; 0], "the batch is kept");
    assert_eq!(bench.version.live_count(), 2);
    bench.execute(&mut *instance, &[value(20)]);
    assert_eq!(
        bench.wait(2),
        ["0 OUTPUT0=10 final", "1 OUTPUT0=11 final"],
        "while the second is kept"
    );
    assert_eq!(bench.taken(), [""; 0]);
    drop(instance);
    assert_eq!(bench.taken(), ["0 OUTPUT0=20 final"], "the end waited");
    assert!(!bench.threads().contains(&std::thread::current().id()));
    assert_eq!(bench.version.live_count(), 0);
    let statistics = bench.version.model_statistics();
    assert_eq!(
        (statistics.inference_count, statistics.execution_count),
        (3, 2)
    );
    bench.assert_nothing_held();
}

#[test]
fn batches_that_fail_beyond_their_call_fail_alone() {
    let bench = overlap("");
    let mut instance = bench.instance();
    bench.execute(&mut *instance, &[value(10), value(1), value(11)]);
    bench.execute(&mut *instance, &[value(12), value(2)]);
    bench.execute(&mut *instance, &[value(13)]);
    drop(instance);
    let mut answers = bench.taken();
    answers.sort();
    assert_eq!(
        answers,
        [
            "0 OUTPUT0=10 final",
            "0 OUTPUT0=12 final",
            "0 OUTPUT0=13 final",
            "1 Internal: panic in the backend: as ordered, in a thread final",
            "1 Invalid argument: as ordered final",
            "2 Invalid argument: as ordered final",
        ]
    );
    assert_eq!(bench.version.live_count(), 0);
    bench.assert_nothing_held();
}

#[test]
fn batches_that_nobody_finishes_are_answered() {
    for end in ["drop", "panic"] {
        let bench = overlap(&format!(
            "parameters {{ key: 'end' value {{ string_value: '{end}' }} }}"
        ));
        let mut instance = bench.instance();
        bench.execute(&mut *instance, &[value(10), value(11)]);
        assert_eq!(
            bench.taken(),
            [
                "0 Internal: the backend gave no response final",
                "1 Internal: the backend gave no response final"
            ],
            "{end}"
        );
        drop(instance);
        assert_eq!(bench.version.live_count(), 0);
        let statistics = bench.version.model_statistics();
        assert_eq!(
            (statistics.inference_count, statistics.execution_count),
            (0, 0)
        );
    }
}
