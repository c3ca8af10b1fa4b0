//! Faults at every entry point: each is an error of what was asked for, a line in the log where
//! nobody is told otherwise, and nothing to anybody else.

use super::bench::{self, Bench};
use super::client::Call;
use super::workshop;

const PANICKED: &str = "Internal: the plug-in threw an exception";

fn assert_logged(line: &str) {
    let log = workshop::log();
    assert!(log.contains(line), "{line}\nis not in\n{log}");
}

#[test]
fn each_failing_step_says_why_and_leaves_nothing() {
    let cases: &[(&str, &str, &str, &str)] = &[
        (
            "fail_initialize",
            "model",
            "one",
            "Invalid argument: initialize failed",
        ),
        (
            "throw_initialize",
            "model",
            "one",
            "Internal: the plug-in threw an exception: initialize threw",
        ),
        (
            "fail_attribute",
            "model",
            "one",
            "Invalid argument: attribute failed",
        ),
        (
            "throw_attribute",
            "model",
            "one",
            "Internal: the plug-in threw an exception: attribute threw",
        ),
        (
            "models",
            "fail_model",
            "one",
            "Invalid argument: model failed",
        ),
        (
            "models",
            "throw_model",
            "one",
            "Internal: the plug-in threw an exception: model threw",
        ),
        (
            "instances",
            "model",
            "fail_instance",
            "Invalid argument: instance failed",
        ),
        (
            "instances",
            "model",
            "throw_instance",
            "Internal: the plug-in threw an exception: instance threw",
        ),
    ];
    for (backend, model, instance, expected) in cases {
        // Twice: a failure may be tried again.
        for _ in 0..2 {
            let error = bench::load_failure(backend, model, instance);
            assert_eq!(error.to_string(), *expected, "{backend} {model} {instance}");
        }
    }
}

#[test]
fn a_failing_end_is_told_and_nothing_more() {
    workshop::log();
    let cases = [
        (
            "ends_fail",
            "model",
            "fail_instance_finalize",
            "failed finalizing model instance 'fail_instance_finalize': Invalid argument: \
             instance_finalize failed",
        ),
        (
            "ends_throw",
            "model",
            "throw_instance_finalize",
            "failed finalizing model instance 'throw_instance_finalize': Internal: the plug-in \
             threw an exception: instance_finalize threw",
        ),
        (
            "model_ends",
            "fail_model_finalize",
            "one",
            "failed finalizing model 'fail_model_finalize' version 3: Invalid argument: \
             model_finalize failed",
        ),
        (
            "model_ends",
            "throw_model_finalize",
            "one",
            "failed finalizing model 'throw_model_finalize' version 3: Internal: the plug-in threw \
             an exception: model_finalize threw",
        ),
        (
            "fail_finalize",
            "model",
            "one",
            "failed finalizing backend 'fail_finalize': Invalid argument: finalize failed",
        ),
        (
            "throw_finalize",
            "model",
            "one",
            "failed finalizing backend 'throw_finalize': Internal: the plug-in threw an exception: \
             finalize threw",
        ),
    ];
    for (backend, model, instance, line) in cases {
        let bench = Bench::new(backend, model, false);
        for name in [instance, "another"] {
            let mut instance = bench.instance(name);
            assert_eq!(
                bench.execute(&mut *instance, &[Call::new("echo", &[b"x"])]),
                ["0 ok OUT=x final"]
            );
        }
        bench.end();
        assert_logged(line);
    }
}

#[test]
fn each_fault_of_an_execution_is_told() {
    workshop::log();
    let cases = [
        (
            "fail",
            "failed to execute 1 requests (instance 'one'): Invalid argument: execute failed",
        ),
        (
            "throw",
            "failed to execute 1 requests (instance 'one'): Internal: the plug-in threw an \
             exception: thrown in execute",
        ),
        (
            "throw_number",
            "failed to execute 1 requests (instance 'one'): Internal: the plug-in threw an \
             exception",
        ),
        (
            "silent",
            "released a request without a final response (model 'silent', version 3)",
        ),
        (
            "drop_response",
            "released a request without a final response (model 'drop_response', version 3)",
        ),
        (
            "two",
            "did not send exactly one response to a request (model 'two', version 3)",
        ),
        (
            "twice",
            "sent a response after the final one of its request (model 'twice', version 3)",
        ),
        (
            "double_release",
            "released a request twice (model 'double_release', version 3)",
        ),
    ];
    for (act, line) in cases {
        let backend = format!("told_{act}");
        let bench = Bench::new(&backend, act, false);
        let mut instance = bench.instance("one");
        bench.execute(&mut *instance, &[Call::new(act, &[b"x"])]);
        assert_logged(&format!("backend '{backend}' {line}"));
        assert_eq!(
            bench.execute(&mut *instance, &[Call::new("echo", &[b"y"])]),
            ["0 ok OUT=y final"],
            "{act}"
        );
        bench.journal();
        drop(instance);
        bench.assert_nothing_held();
    }
}

#[test]
fn a_rust_panic_that_gets_out_is_an_error() {
    workshop::log();
    for _ in 0..2 {
        let error = Bench::panicking("panics", "panic_model").err().unwrap();
        assert_eq!(error.to_string(), PANICKED);
    }
    let bench = Bench::panicking("panics", "model").unwrap();
    let error = bench
        .model
        .clone()
        .create_instance(Bench::instance_spec("panic_instance"))
        .err()
        .unwrap();
    assert_eq!(error.to_string(), PANICKED);
    let mut instance = bench.instance("panic_end");
    // Again and again on one thread, and with C++ exceptions in between.
    let cpp = Bench::new("beside_panics", "model", false);
    let mut thrower = cpp.instance("one");
    for _ in 0..3 {
        let calls = [(); 2].map(|()| Call::new("", &[b"x"]));
        assert_eq!(
            bench.execute(&mut *instance, &calls),
            [0, 1].map(|slot| format!("{slot} {PANICKED} final"))
        );
        assert_eq!(
            cpp.execute(&mut *thrower, &[Call::new("throw", &[b"x"])]),
            [format!("0 {PANICKED}: thrown in execute final")]
        );
    }
    assert_eq!(bench.live_count(), 0);
    drop(instance);
    // Three models, two instances, three executions, two ends.
    assert_eq!(bench.journal(), "10 of 10");
    assert_logged(
        "failed finalizing model instance 'panic_end': Internal: the plug-in threw an exception",
    );
    bench.assert_nothing_held();
}
