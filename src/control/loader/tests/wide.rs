//! Ensembles that have more to do at a time than a shard's turn allows.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use conch_engine::ensemble::TURN_MAX;
use conch_engine::testing::{Directory, Recorder, until};
use conch_engine::{Code, Completion, Draft, cancel};

use super::fake::fault;
use super::{Count, options, start, submit, submit_as};
use crate::Server;

/// An ensemble in which `count` steps of `model` read the input. Each of their outputs, of which
/// the model has `made`, is one of the ensemble's.
fn wide(directory: &Directory, name: &str, (model, made): (&str, usize), count: usize) {
    let output = |number: usize| match number {
        0 => "OUT".to_owned(),
        number => format!("OUT{number}"),
    };
    let (mut outputs, mut steps) = (String::new(), String::new());
    for number in 0..count * made {
        outputs += &format!(
            "output {{ name: '{}' data_type: TYPE_INT32 dims: 1 }}\n",
            output(number)
        );
    }
    for step in 0..count {
        let maps = (0..made).map(|number| {
            format!(
                "output_map {{ key: '{}' value: '{}' }}\n",
                output(number),
                output(step * made + number)
            )
        });
        steps += &format!(
            "step {{ model_name: '{model}' model_version: -1 input_map {{ key: 'IN' value: 'IN' }} \
             {} }}\n",
            maps.collect::<String>()
        );
    }
    directory.folder(&format!("r/{name}/1"));
    directory.file(
        &format!("r/{name}/config.pbtxt"),
        &format!(
            "platform: 'ensemble' max_batch_size: 8\ninput {{ name: 'IN' data_type: TYPE_INT32 \
             dims: 1 }}\n{outputs}ensemble_scheduling {{\n{steps}}}\n"
        ),
    );
}

fn live_count(server: &Server, name: &str) -> u64 {
    let snapshot = server.registry().snapshot();
    snapshot.find(name, None).unwrap().live_count()
}

/// Submits a request to ensemble `name`, whose `step_count` steps are all of model `m` and may all
/// start at once.
fn check(step_count: usize, make: impl FnOnce(&Directory)) {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], &fault("hold"));
    make(&directory);
    let (host, server) = start(options(&directory, &["r"]));
    // The thread that would go on with what is left is busy.
    let (release, released) = mpsc::channel::<()>();
    let (busy, is_busy) = mpsc::channel();
    server
        .lifecycle()
        .placement
        .timer_thread
        .call_at(0, move |_| {
            busy.send(()).unwrap();
            let _ = released.recv();
        });
    is_busy.recv().unwrap();
    let count = Arc::new(Count::default());
    submit(&server, "e", &count).unwrap();
    assert!(live_count(&server, "m") <= TURN_MAX as u64);
    assert!(live_count(&server, "m") > 0);
    drop(release);
    until("all steps", || {
        live_count(&server, "m") == step_count as u64
    });
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    host.gate.open();
    until("the answer", || count.0.load(Ordering::SeqCst) == 1);
    until("the end", || live_count(&server, "e") == 0);
}

#[test]
fn many_first_steps_take_several_turns() {
    check(200, |directory| wide(directory, "e", ("m", 1), 200));
    check(TURN_MAX, |directory| {
        wide(directory, "e", ("m", 1), TURN_MAX)
    });
}

#[test]
fn so_do_those_of_ensembles_that_are_steps() {
    check(300, |directory| {
        wide(directory, "inner", ("m", 1), 30);
        wide(directory, "e", ("inner", 30), 10);
    });
}

#[test]
fn what_has_not_started_is_over_with_the_request() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], &fault("hold"));
    wide(&directory, "e", ("m", 1), 200);
    let (host, server) = start(options(&directory, &["r"]));
    let recorder = Arc::new(Recorder::default());
    let completion = Arc::clone(&recorder) as Arc<dyn Completion>;
    let handle = submit_as(&server, "e", &completion, Draft::default()).unwrap();
    assert!(cancel(&handle).into_error().is_none(), "it is under way");
    host.gate.open();
    let outcome = recorder.wait(1).remove(0).into_outcome().unwrap();
    assert_eq!(outcome.unwrap_err().code, Code::Cancelled);
    until("the end", || {
        live_count(&server, "e") == 0 && live_count(&server, "m") == 0
    });
}
