//! The C++ example of the documentation as a decoupled model: responses from its own thread, after
//! Execute returned.

#![allow(clippy::unwrap_used, reason = "part of the tests")]

use std::time::{Duration, Instant};

use conch_engine::{Parameter, ParameterValue};
use conch_sync::ClaimReason;

use super::bench::{Bench, DECOUPLED};
use super::client::Call;
use super::workshop;

fn bench(model: &str) -> Bench {
    let config = format!(
        r#"name: "{model}" backend: "words" {DECOUPLED}
        input {{ name: "TEXT" data_type: TYPE_STRING dims: 1 }}
        output {{ name: "WORDS" data_type: TYPE_STRING dims: -1 }}
        instance_group {{ kind: KIND_CPU count: 1 name: "{model}" }}"#
    );
    Bench::of(workshop::words(), "words", model, &config)
}

/// A request for the words of `text`, which comes in two pieces.
fn call(text: &str, pause_ms: i64) -> Call {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    // A server takes a string's length in one buffer only.
    let (head, tail) = text.as_bytes().split_at(text.len() / 2);
    let head = [&length, head].concat();
    let mut call = Call::new("", &[&head, tail]);
    call.parameters.push(Parameter {
        name: "pause_ms".into(),
        value: ParameterValue::Int(pause_ms),
    });
    call
}

#[test]
fn words_follow_one_by_one() {
    let bench = bench("stream");
    let mut instance = bench.instance("one");
    let word = |word: &str| format!("0 ok WORDS={}\0\0\0{word}", char::from(word.len() as u8));
    for pause_ms in [0, 5] {
        bench.begin(&mut *instance, &[call("three small words", pause_ms)]);
        assert_eq!(
            bench.wait_for_final(),
            [
                word("three"),
                word("small"),
                word("words"),
                "0 end final".to_owned()
            ]
        );
    }
    bench.begin(&mut *instance, &[call(" ", 0)]);
    assert_eq!(bench.wait_for_final(), ["0 end final"]);
    drop(instance);
    bench.assert_nothing_held();
}

#[test]
fn a_cancelled_stream_ends_between_two_words() {
    let bench = bench("cancelled");
    let mut instance = bench.instance("one");
    let began = Instant::now();
    let handles = bench.begin(&mut *instance, &[call(&"w ".repeat(10_000), 10)]);
    assert!(
        handles[0].claim(ClaimReason::Cancel, None).is_none(),
        "too late"
    );
    let answers = bench.wait_for_final();
    assert_eq!(
        answers.last().unwrap(),
        "0 Cancelled: cancelled between two words final"
    );
    assert!(began.elapsed() < Duration::from_secs(10));
    drop((handles, instance));
    bench.assert_nothing_held();
}
