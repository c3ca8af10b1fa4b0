//! Batching libraries through the host: what they see of requests, and what they may not do with
//! them.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "sdk_backends/bench.rs"]
mod bench;

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bench::Bench;
use conch_engine::OwnedRequest;
use conch_sync::ClaimReason;
use libloading::os::unix::Library;

const MODEL: &str = r#"
    max_batch_size: 8
    input { name: "IN" data_type: TYPE_INT32 dims: 1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
    dynamic_batching { }
"#;

/// A model directory with the test's strategy in its version directory, one per test, since a
/// library keeps one journal.
fn model_with_strategy(name: &str, definitions: &[&str]) -> PathBuf {
    let model = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("strategy")
        .join(name);
    let version = model.join("1");
    std::fs::create_dir_all(&version).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/strategy.c");
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../abi/include");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"])
        .args(definitions)
        .args(["-I", headers, source, "-o"])
        .arg(version.join("batchstrategy.so"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    model
}

/// The strategy's notes. Keeps the library, and so the notes, beyond its model.
struct Journal(Library);

impl Journal {
    fn of(model: &Path) -> Journal {
        // SAFETY: the library has no constructors.
        Journal(unsafe { Library::new(model.join("1/batchstrategy.so")) }.unwrap())
    }

    /// Those since the last look.
    fn take(&self) -> Vec<String> {
        // SAFETY: the function has this type in strategy.c, and its result stays until the next
        // call.
        let text = unsafe {
            let journal = self
                .0
                .get::<unsafe extern "C" fn() -> *const c_char>("strategy_journal")
                .unwrap();
            CStr::from_ptr(journal()).to_str().unwrap().to_owned()
        };
        text.lines().map(str::to_owned).collect()
    }
}

fn limit(limit: i32) -> String {
    format!("{MODEL} parameters {{ key: 'LIMIT' value {{ string_value: '{limit}' }} }}")
}

fn request(bench: &Bench, id: &str, number: i32) -> OwnedRequest {
    let handle = bench.admit(0, id, &vec![("IN", vec![1, 1], vec![number])]);
    handle.claim(ClaimReason::Execute, None).unwrap()
}

#[test]
fn a_library_decides_by_what_is_in_the_requests() {
    let directory = model_with_strategy("decides", &[]);
    let journal = Journal::of(&directory);
    let bench = Bench::at("square", &limit(10), &directory);
    assert_eq!(journal.take(), ["begin model"]);
    let mut strategy = bench.model().batch_strategy().unwrap();
    for _ in 0..2 {
        strategy.begin();
        let mut joined = Vec::new();
        for (id, number) in [("a", 6), ("b", 4), ("c", 1), ("d", 0)] {
            let (live, joins) = strategy.includes(request(&bench, id, number));
            assert_eq!(live.batch_count(), 1, "the request is as it was");
            joined.push(joins);
        }
        strategy.end();
        assert_eq!(joined, [true, true, false, true]);
        assert_eq!(
            journal.take(),
            ["begin", "joins a", "joins b", "stays c", "joins d", "end"]
        );
    }
    assert_eq!(bench.version.live_count(), 0, "all were dropped");
    // A strategy that outlives its model asks nobody.
    let version = Arc::clone(&bench.version);
    let late = request(&bench, "late", 100);
    drop(bench);
    assert_eq!(journal.take(), ["end model"]);
    strategy.begin();
    assert!(strategy.includes(late).1);
    strategy.end();
    assert_eq!(journal.take(), [""; 0]);
    assert_eq!(version.live_count(), 0);
}

#[test]
fn a_library_may_fail_and_may_only_read() {
    let directory = model_with_strategy("fails", &[]);
    let journal = Journal::of(&directory);
    let bench = Bench::at("square", &limit(10), &directory);
    let mut strategy = bench.model().batch_strategy().unwrap();
    journal.take();
    strategy.begin();
    let mut asked = |id, number| strategy.includes(request(&bench, id, number)).1;
    assert!(!asked("fail", 1), "not included unless it says so");
    assert!(asked("insist", 1), "as upstream: what it wrote counts");
    assert!(asked("meddle", 1));
    let refusal = "the request is not executing: a batching strategy may only read it";
    assert_eq!(
        journal.take(),
        [
            "begin".to_owned(),
            format!("response: {refusal}"),
            format!("factory: {refusal}"),
            format!("release: {refusal}"),
            "joins meddle".to_owned()
        ]
    );
    assert_eq!(bench.taken(), [""; 0], "nobody was answered");
    strategy.end();
}

#[test]
fn what_a_library_throws_is_an_error() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("strategy/throws");
    let library = directory.join("1/batchstrategy.so");
    std::fs::create_dir_all(library.parent().unwrap()).unwrap();
    let compile = |definitions: &[&str]| {
        // Another file each time: the loader knows a library by it.
        let _ = std::fs::remove_file(&library);
        let compiled = Command::new("c++")
            .args(["-std=c++17", "-shared", "-fPIC", "-O1", "-Wall", "-Werror"])
            .args(definitions)
            .arg("-I")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../abi/include"))
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/strategy_throws.cc"
            ))
            .arg("-o")
            .arg(&library)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
    };
    compile(&["-DTHROWS_AT_START"]);
    let error = Bench::load("square", &limit(1), &directory).err().unwrap();
    assert_eq!(
        error.to_string(),
        "Internal: the plug-in threw an exception: thrown by BatcherInitialize"
    );
    compile(&[]);
    let bench = Bench::at("square", &limit(1), &directory);
    let mut strategy = bench.model().batch_strategy().unwrap();
    for _ in 0..2 {
        strategy.begin();
        let (live, joins) = strategy.includes(request(&bench, "a", 1));
        assert!(!joins && live.batch_count() == 1);
        strategy.end();
    }
}

#[test]
fn a_library_that_cannot_be_used_fails_the_load() {
    let directory = model_with_strategy("negative", &[]);
    let journal = Journal::of(&directory);
    let error = Bench::load("square", &limit(-1), &directory).err().unwrap();
    assert_eq!(
        error.to_string(),
        "Invalid argument: LIMIT must not be negative"
    );
    assert_eq!(
        journal.take(),
        ["begin model", "end model"],
        "what failed frees what it made"
    );

    let directory = model_with_strategy(
        "partial",
        &[
            "-DTRITONBACKEND_ModelBatchFinalize=something_else",
            "-Wno-missing-declarations",
        ],
    );
    let error = Bench::load("square", &limit(1), &directory).err().unwrap();
    let library = directory.join("1/batchstrategy.so");
    assert_eq!(
        error.to_string(),
        format!(
            "Invalid argument: {} does not define all required custom batching functions for model \
             model",
            library.display()
        )
    );

    std::fs::write(&library, "not a library").unwrap();
    let error = Bench::load("square", &limit(1), &directory).err().unwrap();
    let words = "Not found: unable to load shared library: ";
    assert!(error.to_string().starts_with(words), "{error}");

    // One without any of the functions is none.
    std::fs::remove_file(&library).unwrap();
    let empty = directory.join("empty.c");
    std::fs::write(&empty, "int nothing;\n").unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC"])
        .arg(&empty)
        .arg("-o")
        .arg(&library)
        .status();
    assert!(compiled.unwrap().success());
    let bench = Bench::at("square", &limit(1), &directory);
    assert!(bench.model().batch_strategy().is_none());
}
