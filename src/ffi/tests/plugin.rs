//! A backend that errs in every way that the C API lets it, driven through the host.
//!
//! The plug-in (`plugin.cc`) is compiled here and linked against a stub, as backends in the field
//! are; it finds the C API in this test's own executable, by the same linker arguments as in the
//! server.

#[path = "plugin/bench.rs"]
mod bench;
#[path = "plugin/client.rs"]
mod client;
#[path = "plugin/examples.rs"]
mod examples;
#[path = "plugin/faults.rs"]
mod faults;
#[path = "plugin/workshop.rs"]
mod workshop;

use std::time::Duration;

use bench::Bench;
use client::Call;
use conch_engine::{BackendHost, CorrelationId, ExecutionPolicy, Parameter, ParameterValue};
use workshop::text;

/// Acts of the plug-in: one request; what its client gets; what the plug-in noted.
const ACTS: &[(&str, &str, &str)] = &[
    ("echo", "ok OUT=abc final", ""),
    ("error", "Not found: no luck final", ""),
    (
        "silent",
        "Internal: backend 'acts' released the request without a final response final",
        "",
    ),
    (
        "drop_response",
        "Internal: backend 'acts' released the request without a final response final",
        "",
    ),
    ("fail", "Invalid argument: execute failed final", ""),
    (
        "throw",
        "Internal: the plug-in threw an exception: thrown in execute final",
        "",
    ),
    (
        "throw_number",
        "Internal: the plug-in threw an exception final",
        "",
    ),
    (
        "flags",
        "Internal: expected a single response, got 0 final",
        "",
    ),
    ("then_flags", "ok OUT=abc final", ""),
    (
        "two",
        "Internal: expected a single response, got 2 final",
        "",
    ),
    ("release_first", "ok OUT=abc final", ""),
    ("late", "ok OUT=abc final", ""),
    (
        "read_back",
        "ok OUT=abc final",
        "buffers of OUT lie in 0/0, 3 bytes\nfirst OUT:2 rank 1 of 3\nby name :2 rank 1 of 3\nby \
         another name: Output name NONEnot found.\nbeyond: out of bounds index 9: response has 1 \
         outputs\n",
    ),
    ("late_release", "ok OUT=abc final", ""),
    (
        "twice",
        "ok OUT=abc final",
        "second final: a response was sent after the final one of its request\n",
    ),
    (
        "after_sending",
        "ok OUT=abc LARGE= final",
        "sent again: response is not a live handle of its kind\n\
             deleted: response is not a live handle of its kind\n\
             named: response is not a live handle of its kind\n\
             given an output: response is not a live handle of its kind\n",
    ),
    (
        "fill_after_sending",
        "ok OUT= final",
        "filled: output is not a live handle of its kind\n",
    ),
    (
        "double_release",
        "ok OUT=abc final",
        "second release: request was already released\nflags after release: request was already \
         released\n",
    ),
    (
        "release_again_later",
        "ok OUT=abc final",
        "much later: request was already released\n",
    ),
    (
        "second_buffer",
        "ok OUT=x LARGE= final",
        "second buffer: allocated buffer for output 'OUT' already exists\nlarge buffer: failed to \
         allocate 1152921504606846976 bytes for output 'LARGE': over the memory limit\nno data \
         type: output 'ODD' has invalid data type 77\n",
    ),
];

#[test]
fn every_way_to_answer_ends_in_one_answer() {
    let bench = Bench::new("acts", "model", false);
    let mut instance = bench.instance("one");
    bench.journal();
    for (act, expected, noted) in ACTS {
        // Twice, so that the second request uses the first one's shell.
        for round in 0..2 {
            let answers = bench.execute(&mut *instance, &[Call::new(act, &[b"ab", b"c"])]);
            let journal = bench.journal();
            let answers = if answers.is_empty() {
                bench.answers()
            } else {
                answers
            };
            assert_eq!(answers, [format!("0 {expected}")], "{act}, round {round}");
            assert_eq!(journal, *noted, "{act}, round {round}");
            assert_eq!(
                bench.live_count(),
                0,
                "{act}: the request's place is free again"
            );
        }
    }
    drop(instance);
    bench.assert_nothing_held();
}

#[test]
fn a_failed_execute_answers_all_that_were_not_answered() {
    let bench = Bench::new("batch", "model", false);
    let mut instance = bench.instance("one");
    let calls =
        ["echo", "release_first", "silent", "throw", "echo"].map(|act| Call::new(act, &[b"x"]));
    let thrown = "Internal: the plug-in threw an exception: thrown in execute final";
    assert_eq!(
        bench.execute(&mut *instance, &calls),
        [
            "0 ok OUT=x final",
            "1 ok OUT=x final",
            "2 Internal: backend 'batch' released the request without a final response final",
            &format!("3 {thrown}"),
            &format!("4 {thrown}"),
        ]
    );
    assert_eq!(bench.failures(), 3, "each failed request counts once");
    assert_eq!(bench.live_count(), 0);
}

#[test]
fn a_batch_departs_together_with_one_wake() {
    let bench = Bench::new("together", "model", false);
    let mut instance = bench.instance("one");
    let calls = [(); 4].map(|()| Call::new("echo", &[b"y"]));
    assert_eq!(bench.execute(&mut *instance, &calls).len(), 4);
    assert_eq!(bench.wake_count(), 1);
    let statistics = bench.version.model_statistics();
    assert_eq!(
        (statistics.inference_count, statistics.execution_count),
        (4, 1)
    );
    assert_eq!(statistics.batches[0].batch_size, 4);
    // From a foreign thread an answer leaves at once, by itself.
    bench.execute(&mut *instance, &[Call::new("late", &[b"z"])]);
    bench.journal();
    assert_eq!(bench.answers(), ["0 ok OUT=z final"]);
    assert_eq!(bench.wake_count(), 2);
}

#[test]
fn a_request_shows_all_it_has() {
    let bench = Bench::new("shows", "model", false);
    let mut instance = bench.instance("one");
    bench.journal();
    let mut call = Call::new("inspect", &[b"abcd", b"ef"]);
    call.id = "id-7";
    call.correlation_id = CorrelationId::Text("seq".into());
    call.timeout_us = 1500;
    call.requested_outputs = vec!["LARGE"];
    let extra = [
        ("i", ParameterValue::Int(-3)),
        ("b", ParameterValue::Bool(true)),
        ("d", ParameterValue::Double(1.5)),
    ];
    call.parameters.extend(extra.map(|(name, value)| Parameter {
        name: name.into(),
        value,
    }));
    let answers = bench.execute(&mut *instance, &[call]);
    assert_eq!(
        answers,
        [
            "0 ok report=id=id-7 correlation=seq flags=0 timeout=1500 wanted act=inspect i=-3 \
             b=true d=1.500000 IN:2[1,6]x6/2(2) >LARGE number=-5 final"
        ]
    );
    assert_eq!(
        bench.journal(),
        "unknown input: [request id: id-7] unknown request input name NONE\noutput out of bounds: \
         [request id: id-7] out of bounds index 99: request has 1 requested outputs\nstate: unable \
         to add state 'S'. State configuration is missing for model 'model'.\nreschedule: Request \
         is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not \
         configured to handle such a flag.\nnull: request was nullptr\n"
    );
    let answers = bench.execute(&mut *instance, &[Call::new("inspect", &[b""])]);
    assert!(answers[0].contains(
        "report=id= correlation=[request id: <id_unknown>] correlation ID in request is not a \
         string"
    ));
    assert!(
        answers[0].contains(">LARGE >OUT"),
        "asking for no output is asking for all: {}",
        answers[0]
    );
}

#[test]
fn a_decoupled_model_streams() {
    let bench = Bench::new("streams", "model", true);
    let mut instance = bench.instance("one");
    let answers = bench.execute(&mut *instance, &[Call::new("stream", &[b"x"])]);
    assert_eq!(
        answers,
        ["0 ok OUT=a", "0 ok OUT=b", "0 ok OUT=c", "0 end final"]
    );
    assert_eq!(bench.wake_count(), 4, "each response leaves at once");
    bench.journal();
    // In whatever order and from whatever thread they are sent, as soon as they are.
    let mut answers = bench.execute(&mut *instance, &[Call::new("backwards", &[b"x"])]);
    bench.journal();
    answers.extend(bench.answers());
    assert_eq!(
        answers,
        ["0 ok OUT=d", "0 ok OUT=b", "0 ok OUT=c", "0 ok OUT=a final"]
    );
    let answers = bench.execute(&mut *instance, &[Call::new("final_twice", &[b"x"])]);
    assert_eq!(answers, ["0 ok OUT=end final"]);
    assert_eq!(
        bench.journal(),
        "flags after the end: a response was sent after the final one of its request\n\
         response after the end: a response was sent after the final one of its request\n"
    );
    let answers = bench.execute(&mut *instance, &[Call::new("silent", &[b"x"])]);
    assert_eq!(
        answers,
        ["0 Internal: backend 'streams' released the request without a final response final"]
    );
    drop(instance);
    bench.assert_nothing_held();
}

#[test]
fn no_export_minds_nulls() {
    let bench = Bench::new("nulls", "model", false);
    let mut instance = bench.instance("one");
    bench.journal();
    // What is left out with it was never made, or is gone: nothing that could still answer.
    assert_eq!(
        bench.execute(&mut *instance, &[Call::new("nulls", &[b"x"])]),
        ["0 Internal: backend 'nulls' released the request without a final response final"]
    );
    let journal = bench.journal();
    assert_eq!(
        journal.trim_end().lines().collect::<Vec<_>>(),
        SUCCEED_WITHOUT_HANDLES,
        "{journal}"
    );
    assert_eq!(
        bench.execute(&mut *instance, &[Call::new("echo", &[b"y"])]),
        ["0 ok OUT=y final"]
    );
    drop(instance);
    bench.assert_nothing_held();
}

/// The calls of `plugin/nulls.cc` that are no errors, in the order of the exports: those that need
/// nothing, those for which having no server and no trace is as good, and those that delete, as
/// upstream has it.
const SUCCEED_WITHOUT_HANDLES: &[&str] = &[
    "null TRITONSERVER_LogMessage",
    "null TRITONSERVER_ResponseAllocatorDelete",
    "null TRITONSERVER_MessageDelete",
    "null TRITONSERVER_MetricsDelete",
    "null TRITONSERVER_InferenceTraceReportActivity",
    "null TRITONSERVER_InferenceTraceDelete",
    "null TRITONSERVER_InferenceRequestDelete",
    "null TRITONSERVER_InferenceResponseDelete",
    "null TRITONSERVER_BufferAttributesDelete",
    "null TRITONSERVER_ServerOptionsDelete",
    "null TRITONSERVER_ServerDelete",
    "null TRITONSERVER_ServerStop",
    "null TRITONSERVER_MetricFamilyDelete",
    "null TRITONSERVER_MetricArgsDelete",
    "null TRITONSERVER_MetricDelete",
    "null TRITONBACKEND_ResponseFactoryDelete",
    "null TRITONBACKEND_ResponseDelete",
    "null TRITONBACKEND_ModelInstanceResponseStatisticsDelete",
    "good TRITONSERVER_ApiVersion",
    "good TRITONSERVER_LogMessage",
    "good TRITONSERVER_ResponseAllocatorDelete",
    "good TRITONSERVER_MessageDelete",
    "good TRITONSERVER_MetricsDelete",
    "good TRITONSERVER_InferenceTraceReportActivity",
    "good TRITONSERVER_InferenceTraceDelete",
    "good TRITONSERVER_InferenceTraceSpawnChildTrace",
    "good TRITONSERVER_InferenceRequestDelete",
    "good TRITONSERVER_InferenceResponseDelete",
    "good TRITONSERVER_BufferAttributesDelete",
    "good TRITONSERVER_ServerOptionsDelete",
    "good TRITONSERVER_ServerDelete",
    "good TRITONSERVER_ServerStop",
    "good TRITONSERVER_MetricFamilyDelete",
    "good TRITONSERVER_MetricArgsDelete",
    "good TRITONSERVER_MetricDelete",
    "good TRITONBACKEND_ApiVersion",
    "good TRITONBACKEND_ResponseFactoryDelete",
    "good TRITONBACKEND_ResponseDelete",
    "good TRITONBACKEND_ModelInstanceResponseStatisticsDelete",
    "good TRITONCACHE_ApiVersion",
    "good TRITONREPOAGENT_ApiVersion",
];

#[test]
fn handles_of_the_wrong_kind_are_refused() {
    let bench = Bench::new("wrong", "model", false);
    let mut instance = bench.instance("one");
    bench.journal();
    assert_eq!(
        bench.execute(&mut *instance, &[Call::new("wrong_handles", &[b"x"])]),
        ["0 ok OUT=x final"]
    );
    assert_eq!(
        bench.journal(),
        "response as request: request is not a live handle of its kind\n\
         request as response: response is not a live handle of its kind\n\
         instance as request: request is not a live handle of its kind\n\
         request as instance: model instance is not a live handle of its kind\n\
         input as output: output is not a live handle of its kind\n\
         message as factory: response factory is not a live handle of its kind\n\
         message as model: model is not a live handle of its kind\n\
         input as message: message is not a live handle of its kind\n"
    );
    drop(instance);
    bench.assert_nothing_held();
}

#[test]
fn a_request_that_never_comes_back_does_no_harm() {
    let bench = Bench::new("keeps", "model", false);
    let mut instance = bench.instance("one");
    assert!(
        bench
            .execute(&mut *instance, &[Call::new("keep", &[b"x"])])
            .is_empty()
    );
    assert_eq!(bench.live_count(), 1);
    assert_eq!(
        bench.execute(&mut *instance, &[Call::new("echo", &[b"y"])]),
        ["0 ok OUT=y final"]
    );
    drop(instance);
    drop(bench);
    // Time must pass: harm that another thread does would show now.
    std::thread::sleep(Duration::from_millis(1));
}

#[test]
fn a_life_is_told_in_order() {
    let bench = Bench::new("life", "model", false);
    let instances = [bench.instance("one"), bench.instance("two")];
    let directory = text(&bench.model_path);
    let journal = bench.journal();
    let lines: Vec<_> = journal.lines().collect();
    assert_eq!(lines[0], "Initialize life");
    let config: serde_json::Value =
        serde_json::from_str(lines[1].strip_prefix("config ").unwrap()).unwrap();
    let cmdline = &config["cmdline"];
    for (setting, value) in [
        ("auto-complete-config", "true"),
        ("default-max-batch-size", "16"),
        ("min-compute-capability", "6.000000"),
        ("own", "1"),
        ("shared", "own"),
    ] {
        assert_eq!(cmdline[setting], value, "{setting}");
    }
    assert!(
        cmdline["backend-directory"]
            .as_str()
            .unwrap()
            .ends_with("backends")
    );
    assert_eq!(
        lines[2..],
        [
            "gpu memory: GPU memory allocation not supported",
            "GetBackendAttribute",
            &format!("ModelInitialize model 3 {directory}"),
            "config version 2: model configuration version 2 not supported, supports versions: 1",
            "batches up to 4",
            "server {\"name\":\"here\",\"",
            "InstanceInitialize one kind 1 policy {\"cpu\":{}}",
            "active profile fast device KIND_NVDLA 3",
            "profile beyond: out of bounds index 1: instance is configured with 1 profiles",
            "late config: TRITONBACKEND_ModelSetConfig may be called only during \
             TRITONBACKEND_ModelInitialize",
            "InstanceInitialize two kind 1 policy {\"cpu\":{}}",
            "active profile fast device KIND_NVDLA 3",
            "profile beyond: out of bounds index 1: instance is configured with 1 profiles",
            "late config: TRITONBACKEND_ModelSetConfig may be called only during \
             TRITONBACKEND_ModelInitialize",
        ]
    );
    let checkups: Vec<_> = instances
        .iter()
        .map(|instance| instance.readiness_check().unwrap())
        .collect();
    assert!(
        checkups
            .iter()
            .all(|readiness_check| readiness_check.check().is_ok())
    );
    drop(instances);
    assert!(
        checkups
            .iter()
            .all(|readiness_check| readiness_check.check().is_err()),
        "nobody is asked that is gone"
    );
    assert_eq!(
        bench.journal(),
        "InstanceFinalize one\nInstanceFinalize two\n"
    );
    let rest = bench.end();
    assert_eq!(rest, "ModelFinalize model\nFinalize life\n");
}

#[test]
fn attributes_and_policy_are_read() {
    let bench = Bench::new("device", "model", false);
    assert_eq!(
        bench.backend.execution_policy(),
        ExecutionPolicy::DeviceBlocking
    );
    assert!(bench.backend.allows_parallel_instances());
    let groups: Vec<_> = bench
        .backend
        .preferred_groups()
        .iter()
        .map(|group| (group.kind, group.count, group.device_ids.clone()))
        .collect();
    assert_eq!(
        groups,
        [
            (Some(conch_config::InstanceKind::Gpu), 2, vec![0, 1]),
            (None, 1, vec![])
        ]
    );
    for (name, reason) in [
        ("fail_ready", Some("ready failed")),
        (
            "throw_ready",
            Some("the plug-in threw an exception: ready threw"),
        ),
        ("fine", None),
    ] {
        let answer = bench.instance(name).readiness_check().unwrap().check();
        let told = answer.err().map(|error| error.message.into_owned());
        assert_eq!(told.as_deref(), reason, "{name}");
    }
}

#[test]
fn a_backend_completes_the_configuration() {
    let bench = Bench::completing("completes", "model");
    let config = bench.model.config();
    assert_eq!(config.max_batch_size, 8);
    assert_eq!(
        (
            config.inputs[0].dims.as_slice(),
            config.outputs[0].dims.as_slice()
        ),
        ([2].as_slice(), [3].as_slice())
    );
    assert!(bench.journal().contains("broken config refused"));
}

#[test]
fn a_failed_initialize_is_finalized_and_closed() {
    // The journal dies with the library, so what is left is that nothing is: the file is not mapped
    // any more.
    bench::load_failure("fail_initialize", "model", "one");
    assert!(!workshop::is_mapped("libtriton_fail_initialize.so"));
    let _bench = Bench::new("stays", "model", false);
    assert!(workshop::is_mapped("libtriton_stays.so"));
}

#[test]
fn unusable_libraries_are_refused() {
    let error = bench::open_file("garbage", b"not a library");
    assert!(
        error
            .to_string()
            .starts_with("Not found: unable to load shared library: "),
        "{error}"
    );
    let error = bench::open_stub("empty");
    let expected = "Not found: unable to find required entrypoint \
                    'TRITONBACKEND_ModelInstanceExecute' in shared library: ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn one_backend_serves_all_models_and_outlives_them() {
    let bench = Bench::new("shared", "first", false);
    drop(bench.open_again());
    assert_eq!(bench.host_list(), ["shared"]);
    assert_eq!(bench.journal().matches("Initialize shared").count(), 1);
    // By default the backend is finalised at the end of the server, not after its last model.
    let (host, journal) = bench.unload_all();
    assert_eq!(journal(), "ModelFinalize first\n");
    host.finalize_all();
    assert_eq!(journal(), "Finalize shared\n");
}

#[test]
fn an_unloading_backend_goes_with_its_last_model() {
    let bench = Bench::new("unloads", "model", false);
    assert!(workshop::is_mapped("libtriton_unloads.so"));
    bench.unload_without_journal();
    assert!(!workshop::is_mapped("libtriton_unloads.so"));
}

#[test]
fn backends_are_finalized_in_reverse_order() {
    assert_eq!(
        bench::finalize_order(&["early", "middle", "late"]),
        ["late", "middle", "early"]
    );
}
