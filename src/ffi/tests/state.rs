//! Implicit states through the host: a C backend sums up a sequence, whose states this test
//! attaches to its requests as a scheduler would.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "sdk_backends/bench.rs"]
mod bench;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use conch_engine::Instance;
use conch_engine::model::states::{InitialStates, SequenceStates};
use conch_memory::{Budget, Pool};
use conch_sync::ClaimReason;

use bench::Bench;

const MODEL: &str = r#"
    max_batch_size: 4
    input { name: "IN" data_type: TYPE_INT32 dims: 1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
    sequence_batching {
      iterative_sequence: true
      state {
        input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: -1
        initial_state { name: "start" data_type: TYPE_INT32 dims: 1 data_file: "start" }
      }
    }
"#;

/// A model directory with the backend in it.
fn directory() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("state");
        std::fs::create_dir_all(&directory).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/state.c");
        let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../abi/include");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"])
            .args(["-I", headers, source, "-o"])
            .arg(directory.join("libtriton_stateful.so"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
        directory
    };
    DIRECTORY.get_or_init(make).clone()
}

struct Sequence {
    bench: Bench,
    instance: Box<dyn Instance>,
    states: Arc<Mutex<SequenceStates>>,
}

impl Sequence {
    fn new() -> Sequence {
        let bench = Bench::at("stateful", MODEL, &directory());
        let specs = conch_config::states(&bench.version.config).unwrap();
        let start = InitialStates::new(specs, &Budget::new(1 << 20), |path| {
            assert_eq!(path, "initial_state/start");
            Ok(100_i32.to_le_bytes().to_vec())
        });
        let states = SequenceStates::new(&start.unwrap(), &Pool::new(1 << 20));
        Sequence {
            instance: bench.instance(),
            states: Arc::new(Mutex::new(states)),
            bench,
        }
    }

    /// What the next request of the sequence brings back.
    fn request(&mut self, id: &str, number: i32) -> String {
        let states = Arc::clone(&self.states);
        self.run(id, number, Some(&states))
    }

    fn run(
        &mut self,
        id: &str,
        number: i32,
        states: Option<&Arc<Mutex<SequenceStates>>>,
    ) -> String {
        let request = vec![("IN", vec![1, 1], vec![number])];
        let handle = self.bench.admit(0, id, &request);
        let mut live = handle.claim(ClaimReason::Execute, None).unwrap();
        if let Some(states) = states {
            live.attach_states(states);
        }
        self.bench.run(&mut *self.instance, &mut vec![live]);
        let answers = self.bench.taken();
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers[0].clone()
    }
}

#[test]
fn a_state_goes_from_request_to_request() {
    let mut sequence = Sequence::new();
    let said = "said=found 4 bytes;attributes 0/0;attributes 4/0;";
    for (number, sum) in [(1, 101), (2, 103), (-3, 100)] {
        assert_eq!(
            sequence.request("", number),
            format!("0 OUT={sum} {said} final")
        );
    }
    // A value that is not updated has no effect, nor has one that was left in the making.
    assert!(sequence.request("forget", 1000).contains("OUT=1100 "));
    assert!(sequence.request("", 0).contains("OUT=100 "));
    // Another size than before, and back.
    let grown = "said=found 4 bytes;attributes 0/0;attributes 12/0;";
    assert_eq!(
        sequence.request("grow", 1),
        format!("0 OUT=101 {grown} final")
    );
    let shrunk = "said=found 12 bytes;attributes 0/0;attributes 4/0;";
    assert_eq!(sequence.request("", 1), format!("0 OUT=102 {shrunk} final"));
    // The next sequence of the slot begins anew.
    sequence.states.lock().unwrap().restart();
    assert!(sequence.request("", 1).contains("OUT=101 "));
    drop(sequence.instance);
    assert_eq!(Arc::strong_count(&sequence.states), 1, "no request has it");
}

#[test]
fn misuse_is_refused_and_does_no_harm() {
    let mut sequence = Sequence::new();
    assert_eq!(
        sequence.request("unknown", 0),
        "0 OUT=100 said=found 4 bytes;new: state 'STATE_IN' is not a valid state name.;null: state \
         was nullptr;kind: state is not a live handle of its kind; final"
    );
    assert_eq!(
        sequence.request("twice", 1),
        "0 OUT=101 said=found 4 bytes;attributes 0/0;attributes 4/0;\
         second update: the state has no next value: it was updated, or its request is gone; final"
    );
    assert_eq!(
        sequence.request("again", 1),
        "0 OUT=102 said=found 4 bytes;attributes 0/0;attributes 4/0;\
         buffer: failed to allocate 1152921504606846976 bytes for a state; final"
    );
    assert!(sequence.request("", 0).contains("OUT=102 "), "all the same");
    // A model, or a request, without states.
    assert_eq!(
        sequence.run("", 1, None),
        "0 OUT=1 said=input: [request id: <id_unknown>] unknown request input name STATE_IN;found \
         0 bytes;new: unable to add state 'STATE_OUT'. State configuration is missing for model \
         'model'.; final"
    );
}
