//! Ensembles in the life of models, on the fake backend: in which order they come and go, and what
//! is said of those that cannot. Refusals are worded as Triton 2.51 words them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use conch_engine::model::registry::ModelId;
use conch_engine::testing::{Directory, Recorder};
use conch_engine::{
    Code, Completion, CorrelationId, Delivery, Draft, Error, Parameter, ParameterValue, Response,
    cancel,
};

use super::control_tests::{explicit, plain, polling, settle, shown, wait_for};
use super::fake::fault;
use super::load_plan::LoadPlan;
use super::tests::{Count, options, start, submit, submit_as};
use crate::Server;
use crate::load_overrides::Overrides;
use crate::options::EngineOptions;

/// Adds an ensemble that hands IN from model to model: `name` or `name@version`.
fn ensemble(directory: &Directory, name: &str, models: &[&str]) {
    ensemble_in(directory, "r", name, models, "INT32");
}

fn ensemble_in(
    directory: &Directory,
    repository: &str,
    name: &str,
    models: &[&str],
    data_type: &str,
) {
    let mut steps = String::new();
    for (index, model) in models.iter().enumerate() {
        let (model, version) = model.split_once('@').unwrap_or((model, "-1"));
        let from = if index == 0 {
            "IN"
        } else {
            &format!("t{index}")
        };
        let to = if index + 1 == models.len() {
            "OUT"
        } else {
            &format!("t{}", index + 1)
        };
        steps += &format!(
            "step {{ model_name: '{model}' model_version: {version} input_map {{ key: 'IN' value: '{from}' }} \
             output_map {{ key: 'OUT' value: '{to}' }} }}\n"
        );
    }
    directory.folder(&format!("{repository}/{name}/1"));
    directory.file(
        &format!("{repository}/{name}/config.pbtxt"),
        &format!(
            "platform: 'ensemble' max_batch_size: 8\n\
             input {{ name: 'IN' data_type: TYPE_{data_type} dims: 1 }}\noutput {{ name: 'OUT' data_type: TYPE_{data_type} dims: 1 }}\n\
             ensemble_scheduling {{\n{steps}}}\n"
        ),
    );
}

fn serves(server: &Server, name: &str) -> bool {
    server.registry().snapshot().find(name, None).is_ok()
}

/// One request that must be answered well.
fn run(server: &Server, name: &str) {
    let count = Arc::new(Count::default());
    submit(server, name, &count).unwrap();
    wait_for("the answer", || count.0.load(Ordering::SeqCst) == 1);
}

#[test]
fn what_cannot_be_put_together_says_why() {
    let directory = Directory::new();
    directory.model("r", "a", &["1"], "");
    directory.model("r", "broken", &["1"], &fault("load"));
    directory.model("r", "versionless", &[], "");
    directory.model("r", "small", &["1"], "backend: 'fake' max_batch_size: 2");
    directory.file(
        "r/refused/config.pbtxt",
        "backend: 'fake' max_batch_size: -3",
    );
    ensemble(&directory, "alone", &["nobody"]);
    ensemble(&directory, "on_refused", &["refused"]);
    ensemble(&directory, "on_broken", &["a", "broken"]);
    ensemble(&directory, "on_versionless", &["versionless"]);
    ensemble(&directory, "on_seven", &["a@7"]);
    ensemble(&directory, "on_alone", &["alone"]);
    ensemble_in(&directory, "r", "other_type", &["a"], "FP32");
    ensemble(&directory, "selfish", &["selfish"]);
    ensemble(&directory, "ring1", &["a", "ring2"]);
    ensemble(&directory, "ring2", &["ring3"]);
    ensemble(&directory, "ring3", &["ring1", "a"]);
    ensemble(&directory, "at_the_ring", &["ring2"]);
    let alone = "ensemble alone contains models that are not available or ambiguous: nobody";
    let on_alone = format!(
        "ensemble 'on_alone' depends on 'alone' which is not valid. Model 'alone' failed with error: {alone}"
    );
    let table: [(&str, &str); 10] = [
        ("alone", alone),
        (
            "on_refused",
            "ensemble on_refused contains models that are not available or ambiguous: refused",
        ),
        (
            "on_broken",
            "ensemble 'on_broken' depends on 'broken' which has no loaded version. Model 'broken' loading failed with error: version 1 is at UNAVAILABLE state: Internal: the weights are broken;",
        ),
        (
            "on_versionless",
            "ensemble 'on_versionless' depends on 'versionless' which has no loaded version. Model 'versionless' loading failed with error: at least one version must be available under the version policy of model 'versionless'",
        ),
        (
            "on_seven",
            "ensemble 'on_seven' depends on 'a' whose required version 7 is not loaded.",
        ),
        ("on_alone", &on_alone),
        (
            "other_type",
            "in ensemble other_type, ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred from model other_type while TYPE_INT32 is inferred from model a",
        ),
        (
            "selfish",
            "circular dependency between ensembles: selfish -> ... -> selfish -> selfish",
        ),
        (
            "ring1",
            "circular dependency between ensembles: ring1 -> ... -> ring3 -> ring1",
        ),
        (
            "at_the_ring",
            "ensemble 'at_the_ring' depends on 'ring2' which is not valid. Model 'ring2' failed with error: circular dependency between ensembles: ring2 -> ... -> ring1 -> ring2",
        ),
    ];
    let (_, server) = start(explicit(&directory, &["r"]));
    for (name, expected) in table {
        let error = plain(&server, name).unwrap_err();
        assert_eq!(
            error.message,
            format!("load failed for model '{name}': {expected}\n")
        );
        assert!(!serves(&server, name));
        let names = shown(&server);
        assert!(
            names.contains(&name.to_owned()),
            "by its name only: {names:?}"
        );
    }
    server.stop().unwrap();
    // All at once, in whatever order.
    let (_, server) = start(options(&directory, &["r"]));
    for (name, _) in table {
        assert!(!serves(&server, name), "{name}");
    }
    assert!(serves(&server, "a"));
    server.stop().unwrap();
}

#[test]
fn an_ensemble_goes_and_comes_back_with_its_models() {
    let directory = Directory::new();
    for name in ["a", "b"] {
        directory.model("r", name, &["1"], "");
    }
    ensemble(&directory, "inner", &["a", "b"]);
    ensemble(&directory, "outer", &["inner", "b"]);
    ensemble(&directory, "only_b", &["b"]);
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "outer").unwrap();
    plain(&server, "only_b").unwrap();
    assert_eq!(host.events.count("load b"), 1);
    run(&server, "outer");
    for cascade in [false, true] {
        server.unload_model("a", cascade).unwrap();
        settle(&server);
        assert_eq!(
            shown(&server),
            [
                "a:1 unloaded",
                "b:1 READY",
                "inner:1 unloaded",
                "only_b:1 READY",
                "outer:1 unloaded"
            ],
        );
        plain(&server, "a").unwrap();
        settle(&server);
        assert!(shown(&server).iter().all(|row| row.ends_with("READY")));
        run(&server, "outer");
    }
    // Whoever is asked for brings what it needs.
    server.unload_model("a", false).unwrap();
    plain(&server, "outer").unwrap();
    run(&server, "outer");
    // What was unloaded itself stays away.
    server.unload_model("outer", false).unwrap();
    server.unload_model("a", false).unwrap();
    plain(&server, "a").unwrap();
    assert!(!serves(&server, "outer") && serves(&server, "inner"));
    server.stop().unwrap();
}

#[test]
fn polling_follows_the_models_of_an_ensemble() {
    let directory = Directory::new();
    directory.model("r", "a", &["1"], "");
    ensemble(&directory, "whole", &["a", "late"]);
    let (_, server) = start(polling(&directory, &["r"]));
    assert!(serves(&server, "a") && !serves(&server, "whole"));
    directory.model("r", "late", &["1"], "");
    server.poll_repositories().unwrap();
    run(&server, "whole");
    // Not what it was made for any more.
    directory.model(
        "r",
        "late",
        &["1"],
        "input [ { name: 'IN' data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: 'OUT' data_type: TYPE_FP32 dims: [ 1 ] } ]",
    );
    server.poll_repositories().unwrap();
    settle(&server);
    assert!(serves(&server, "late") && !serves(&server, "whole"));
    directory.model("r", "late", &["1"], "");
    server.poll_repositories().unwrap();
    run(&server, "whole");
    std::fs::remove_dir_all(directory.path("r/a")).unwrap();
    server.poll_repositories().unwrap();
    settle(&server);
    assert!(!serves(&server, "a") && !serves(&server, "whole") && serves(&server, "late"));
    std::fs::remove_dir_all(directory.path("r/whole")).unwrap();
    server.poll_repositories().unwrap();
    directory.model("r", "a", &["1"], "");
    server.poll_repositories().unwrap();
    assert!(
        serves(&server, "a") && !serves(&server, "whole"),
        "it is gone"
    );
    server.stop().unwrap();
}

#[test]
fn a_model_is_replaced_below_an_ensemble() {
    let directory = Directory::new();
    directory.model("r", "a", &["1"], "");
    ensemble(&directory, "whole", &["a"]);
    ensemble(&directory, "fixed", &["a@1"]);
    let (_, server) = start(explicit(&directory, &["r"]));
    plain(&server, "whole").unwrap();
    plain(&server, "fixed").unwrap();
    let version = |name: &str| {
        server
            .registry()
            .snapshot()
            .find(name, None)
            .unwrap()
            .version
    };
    directory.folder("r/a/2");
    plain(&server, "a").unwrap();
    assert_eq!(version("a"), 2);
    run(&server, "whole");
    assert!(!serves(&server, "fixed"), "its version is gone");
    server.stop().unwrap();
}

#[test]
fn namespaces_of_steps() {
    let directory = Directory::new();
    for repository in ["r", "s"] {
        directory.model(repository, "both", &["1"], "");
    }
    directory.model("s", "there", &["1"], "");
    ensemble_in(&directory, "r", "own", &["both"], "INT32");
    ensemble_in(&directory, "r", "elsewhere", &["there"], "INT32");
    directory.folder("t");
    ensemble_in(&directory, "t", "unclear", &["both"], "INT32");
    let (_, server) = start(EngineOptions {
        namespacing: true,
        ..options(&directory, &["r", "s", "t"])
    });
    run(&server, "own");
    run(&server, "elsewhere");
    assert!(!serves(&server, "unclear"), "there are two");
    let snapshot = server.registry().snapshot();
    let config = |name: &str| {
        let message = &snapshot.find(name, None).unwrap().config.message;
        conch_config::ensembling(message).unwrap().steps[0]
            .namespace
            .clone()
    };
    assert_eq!(config("own"), directory.path("r").to_str().unwrap());
    assert_eq!(config("elsewhere"), directory.path("s").to_str().unwrap());
    server.stop().unwrap();
}

#[test]
fn a_load_of_an_ensemble_looks_for_its_models_again() {
    let directory = Directory::new();
    directory.folder("r");
    directory.model("s", "both", &["1"], "");
    ensemble_in(&directory, "r", "own", &["both"], "INT32");
    ensemble_in(&directory, "s", "other", &["both"], "INT32");
    let (_, server) = start(EngineOptions {
        namespacing: true,
        ..explicit(&directory, &["r", "s"])
    });
    let namespace = |name: &str| {
        let snapshot = server.registry().snapshot();
        let message = &snapshot.find(name, None).unwrap().config.message;
        conch_config::ensembling(message).unwrap().steps[0]
            .namespace
            .clone()
    };
    let [r, s] = ["r", "s"].map(|name| directory.path(name).to_str().unwrap().to_owned());
    plain(&server, "own").unwrap();
    plain(&server, "other").unwrap();
    assert_eq!([namespace("own"), namespace("other")], [&*s, &*s]);
    // The ensemble itself is as it was; one of its own repository is nearer now.
    directory.model("r", "both", &["1"], "");
    plain(&server, "own").unwrap();
    assert_eq!([namespace("own"), namespace("other")], [&*r, &*s]);
    run(&server, "own");
    server.stop().unwrap();
}

#[test]
fn what_runs_at_the_end_is_answered() {
    let directory = Directory::new();
    directory.model("r", "slow", &["1"], &fault("hold"));
    directory.model("r", "last", &["1"], "");
    ensemble(&directory, "inner", &["slow", "last"]);
    ensemble(&directory, "outer", &["inner", "last"]);
    let (host, server) = start(options(&directory, &["r"]));
    let count = Arc::new(Count::default());
    submit(&server, "outer", &count).unwrap();
    let stopping = {
        let server = Arc::clone(&server);
        std::thread::spawn(move || server.stop())
    };
    let refused = Arc::new(Count::default());
    wait_for("the end of new requests", || {
        submit(&server, "outer", &refused).is_err()
    });
    host.gate.open();
    stopping.join().unwrap().unwrap();
    let admitted = count.0.load(Ordering::SeqCst);
    assert_eq!(admitted, 1, "its later steps were let in");
}

fn answer(deliveries: &[Delivery]) -> Result<&Response, &Error> {
    let [delivery] = deliveries else {
        panic!("{deliveries:?}")
    };
    assert!(delivery.is_final);
    delivery.outcome.as_ref().unwrap().as_ref()
}

#[test]
fn a_step_is_asked_as_the_ensemble_was() {
    let directory = Directory::new();
    directory.model("r", "a", &["1"], &fault("tell"));
    ensemble(&directory, "inner", &["a", "a"]);
    ensemble(&directory, "outer", &["inner"]);
    let (host, server) = start(options(&directory, &["r"]));
    let recorder = Arc::new(Recorder::default());
    let completion = Arc::clone(&recorder) as Arc<dyn Completion>;
    let parameter = Parameter {
        name: "key".into(),
        value: ParameterValue::Int(7),
    };
    let draft = Draft {
        id: "me",
        correlation_id: CorrelationId::Text("talk".into()),
        sequence_flags: 3,
        priority: 5,
        timeout_us: 1_000_000,
        parameters: vec![parameter],
        ..Draft::default()
    };
    submit_as(&server, "outer", &completion, draft).unwrap();
    let deliveries = recorder.wait(1);
    let response = answer(&deliveries).unwrap();
    assert_eq!(&*response.model.name, "outer");
    assert_eq!(response.outputs[0].data.as_slice(), Some(&[1, 0, 0, 0][..]));
    let told: Vec<&ParameterValue> = response.parameters.iter().map(|p| &p.value).collect();
    let expected = [
        ParameterValue::Text("talk".into()),
        ParameterValue::Bool(true),
        ParameterValue::Bool(true),
    ];
    assert_eq!(told, expected.iter().collect::<Vec<_>>());
    let asked: Vec<String> = host
        .events
        .all()
        .into_iter()
        .filter(|e| e.starts_with("asked"))
        .collect();
    // Its model has no levels of priority.
    let expected = "asked a:1 id=me Text(\"talk\") flags=3 priority=0 timeout=1000000 [Parameter { name: \"key\", value: Int(7) }] outputs=[0]";
    assert_eq!(asked, [expected; 2]);
    server.stop().unwrap();
}

#[test]
fn an_ensemble_that_comes_to_nothing_says_so() {
    let directory = Directory::new();
    directory.model("r", "a", &["1"], &fault("silent"));
    ensemble(&directory, "whole", &["a", "a"]);
    let (_, server) = start(options(&directory, &["r"]));
    let recorder = Arc::new(Recorder::default());
    let completion = Arc::clone(&recorder) as Arc<dyn Completion>;
    submit_as(&server, "whole", &completion, Draft::default()).unwrap();
    let deliveries = recorder.wait(1);
    assert_eq!(
        answer(&deliveries).unwrap_err(),
        &Error::invalid(
            "in ensemble 'whole', [request id: <id_unknown>] unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
        )
    );
    server.stop().unwrap();
}

/// A load that brings the configuration of an ensemble.
fn described(name: &str, steps: &str) -> Overrides {
    let tensor =
        |name: &str| format!(r#"[{{"name":"{name}","data_type":"TYPE_INT32","dims":[1]}}]"#);
    Overrides {
        config: Some(format!(
            r#"{{"name":"{name}","platform":"ensemble","max_batch_size":8,"input":{},"output":{},"ensemble_scheduling":{{"step":[{steps}]}}}}"#,
            tensor("IN"),
            tensor("OUT")
        )),
        files: Vec::new(),
    }
}

/// What a load of `name` says.
fn refused(server: &Server, name: &str) -> String {
    plain(server, name).unwrap_err().message.into_owned()
}

#[test]
fn a_load_that_closes_a_circle_is_refused_and_what_serves_goes_on() {
    let directory = Directory::new();
    for name in ["a", "b"] {
        directory.model("r", name, &["1"], "");
    }
    ensemble(&directory, "inner", &["b"]);
    ensemble(&directory, "outer", &["a", "inner"]);
    let (_, server) = start(explicit(&directory, &["r"]));
    plain(&server, "outer").unwrap();
    run(&server, "outer");
    // Through one model, through two, and through itself.
    for (needed, last) in [("inner", "inner"), ("outer", "inner"), ("b", "b")] {
        ensemble(&directory, "b", &["a", needed]);
        assert_eq!(
            refused(&server, "b"),
            format!(
                "load failed for model 'b': circular dependency between ensembles: b -> ... -> {last} -> b\n"
            )
        );
        for name in ["b", "inner", "outer"] {
            run(&server, name);
        }
    }
    // Not by a request that brings the configuration, either.
    let steps = r#"{"model_name":"outer","model_version":-1,"input_map":{"IN":"IN"},"output_map":{"OUT":"OUT"}}"#;
    let error = server.load_model("b", described("b", steps)).unwrap_err();
    assert!(
        error.message.contains("b -> ... -> inner -> b"),
        "{}",
        error.message
    );
    run(&server, "outer");
    // Once the others do without it, it may need them: both change at once.
    ensemble(&directory, "b", &["a", "outer"]);
    ensemble(&directory, "inner", &["a"]);
    plain(&server, "inner").unwrap();
    plain(&server, "b").unwrap();
    run(&server, "b");
    // An ensemble that became a plain model is none that others could meet again.
    std::fs::remove_dir_all(directory.path("r/inner")).unwrap();
    directory.model("r", "inner", &["1"], "");
    plain(&server, "inner").unwrap();
    ensemble(&directory, "a", &["inner"]);
    plain(&server, "a").unwrap();
    run(&server, "b");
    server.stop().unwrap();
}

#[test]
fn a_poll_that_would_close_a_circle_keeps_what_serves() {
    let directory = Directory::new();
    for name in ["a", "b", "c"] {
        directory.model("r", name, &["1"], "");
    }
    ensemble(&directory, "whole", &["a", "b"]);
    let (_, server) = start(polling(&directory, &["r"]));
    run(&server, "whole");
    ensemble(&directory, "b", &["whole"]);
    server.poll_repositories().unwrap();
    for name in ["b", "whole"] {
        run(&server, name);
    }
    // Both turn round in one poll: no circle before, none after.
    ensemble(&directory, "whole", &["a", "c"]);
    server.poll_repositories().unwrap();
    server.poll_repositories().unwrap();
    settle(&server);
    run(&server, "b");
    let needs = |name: &str| {
        let snapshot = server.registry().snapshot();
        conch_config::needed_models(&snapshot.find(name, None).unwrap().config.message)
    };
    assert!(needs("b").contains("whole") && !needs("whole").contains("b"));
    server.stop().unwrap();
}

#[test]
fn two_loads_at_once_leave_no_circle() {
    for _ in 0..20 {
        let directory = Directory::new();
        for name in ["x", "y"] {
            directory.model("r", name, &["1"], "");
        }
        let (_, server) = start(explicit(&directory, &["r"]));
        for name in ["x", "y"] {
            plain(&server, name).unwrap();
        }
        let step = |model: &str| {
            format!(
                r#"{{"model_name":"{model}","model_version":-1,"input_map":{{"IN":"IN"}},"output_map":{{"OUT":"OUT"}}}}"#
            )
        };
        std::thread::scope(|scope| {
            let load = |name: &'static str, needed: &str| {
                let overrides = described(name, &step(needed));
                let server = &server;
                scope.spawn(move || drop(server.load_model(name, overrides)))
            };
            for load in [load("x", "y"), load("y", "x")] {
                load.join().unwrap();
            }
        });
        // A load may also have taken the other model back to what lies in the repository: then both
        // succeed.
        let snapshot = server.registry().snapshot();
        let is_ensemble = |name: &str| {
            let config = &snapshot.find(name, None).unwrap().config.message;
            !conch_config::needed_models(config).is_empty()
        };
        assert!(!(is_ensemble("x") && is_ensemble("y")), "a circle serves");
        for name in ["x", "y"] {
            run(&server, name);
        }
        server.stop().unwrap();
    }
}

#[test]
fn namespaces_tell_models_of_a_circle_apart() {
    let directory = Directory::new();
    directory.model("r", "b", &["1"], "");
    directory.model("s", "leaf", &["1"], "");
    ensemble_in(&directory, "s", "b", &["leaf"], "INT32");
    // In r: whole needs r's b, a plain model. In s: b, an ensemble, needs whole, which is only in
    // r.
    ensemble_in(&directory, "r", "whole", &["b"], "INT32");
    let options = EngineOptions {
        namespacing: true,
        ..polling(&directory, &["r", "s"])
    };
    let (_, server) = start(options);
    ensemble_in(&directory, "s", "b", &["whole", "leaf"], "INT32");
    server.poll_repositories().unwrap();
    let needs = |name: &str, needed: &str| {
        server
            .registry()
            .snapshot()
            .ready_models()
            .iter()
            .any(|model| {
                let needs = conch_config::needed_models(&model.config.message);
                *model.name == *name && needs.contains(needed)
            })
    };
    assert!(needs("b", "whole"), "one b needs it, the other is needed");
    run(&server, "whole");
    // Here the circle is one: s's leaf would need s's b, which needs it.
    ensemble_in(&directory, "s", "leaf", &["b"], "INT32");
    server.poll_repositories().unwrap();
    assert!(!needs("leaf", "b"));
    run(&server, "leaf");
    ensemble_in(&directory, "s", "b", &["leaf"], "INT32");
    directory.model("s", "leaf", &["1"], "");
    server.poll_repositories().unwrap();
    settle(&server);
    server.stop().unwrap();
}

/// By their names alone they would need each other: `a` of r needs r's `b`, `b` of s needs s's `a`.
#[test]
fn namespaces_tell_models_apart_when_they_load_and_stop() {
    let directory = Directory::new();
    for (repository, inner, outer) in [("r", "b", "a"), ("s", "a", "b")] {
        directory.model(repository, &format!("leaf_{repository}"), &["1"], "");
        ensemble_in(
            &directory,
            repository,
            inner,
            &[&format!("leaf_{repository}")],
            "INT32",
        );
        ensemble_in(&directory, repository, outer, &[inner], "INT32");
    }
    let options = EngineOptions {
        namespacing: true,
        ..options(&directory, &["r", "s"])
    };
    let (_, server) = start(options);
    let snapshot = server.registry().snapshot();
    assert_eq!(snapshot.ready_models().len(), 6);
    let planned: BTreeMap<ModelId, LoadPlan> = {
        let models = server.lifecycle().table.lock();
        let blueprints = models
            .iter()
            .filter_map(|(id, entry)| Some((id.clone(), (**entry.blueprint.as_ref()?).clone())));
        blueprints.collect()
    };
    let stages = server.lifecycle().stages(planned);
    let names: Vec<Vec<String>> = stages
        .iter()
        .map(|stage| stage.iter().map(|plan| plan.id.to_string()).collect())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(
        names[0]
            .iter()
            .all(|name| name.ends_with("r::b") || name.ends_with("s::a"))
    );
    // Without a budget of time: all of them must close in the first pass.
    server.stop().unwrap();
}

#[test]
fn ensembles_in_ensembles_without_end() {
    let directory = Directory::new();
    directory.model("r", "e0", &["1"], "");
    let deepest = conch_engine::ensemble::NESTING_MAX + 1;
    let names: Vec<String> = (0..=deepest).map(|n| format!("e{n}")).collect();
    for pair in names.windows(2) {
        ensemble(&directory, &pair[1], &[&pair[0], "e0"]);
    }
    let (_, server) = start(options(&directory, &["r"]));
    run(&server, "e400");
    let statistics = server.statistics(Some("e0"), None).unwrap();
    assert_eq!(statistics[0].inference_count, 401);
    run(&server, &format!("e{}", deepest - 1));
    let recorder = Arc::new(Recorder::default());
    let completion = Arc::clone(&recorder) as Arc<dyn Completion>;
    let draft = Draft::default();
    let _handle = submit_as(&server, &format!("e{deepest}"), &completion, draft).unwrap();
    let deliveries = recorder.wait(1);
    let error = answer(&deliveries).unwrap_err();
    assert_eq!(error.code, Code::InvalidArg);
    let words = format!("ensembles are nested more than {} deep", deepest - 1);
    assert!(error.message.ends_with(&words), "{}", error.message);
    // Comes down in order, too.
    server.stop().unwrap();
}

#[test]
fn ensembles_that_run_their_steps_too_often() {
    let directory = Directory::new();
    directory.model("r", "e0", &["1"], "");
    for n in 1..=20 {
        let inner = format!("e{}", n - 1);
        ensemble(&directory, &format!("e{n}"), &[&inner, &inner]);
    }
    let (_, server) = start(explicit(&directory, &["r"]));
    plain(&server, "e15").unwrap();
    run(&server, "e10");
    let statistics = server.statistics(Some("e0"), None).unwrap();
    assert_eq!(statistics[0].inference_count, 1 << 10);
    for name in ["e16", "e20"] {
        assert_eq!(
            refused(&server, name),
            format!(
                "load failed for model '{name}': a request of ensemble '{name}', or of one that it is part of, runs more than 65536 steps\n"
            )
        );
    }
    // Nor by what is below one that serves.
    ensemble(&directory, "e1", &["e0"; 8]);
    assert_ne!(refused(&server, "e1"), "");
    run(&server, "e10");
    server.stop().unwrap();
}

#[test]
fn a_request_is_withdrawn_wherever_its_step_waits() {
    let directory = Directory::new();
    directory.model("r", "slow", &["1"], &fault("hold"));
    directory.model("r", "after", &["1"], &fault("tell"));
    ensemble(&directory, "inner", &["slow", "after"]);
    ensemble(&directory, "outer", &["inner", "after"]);
    let (host, server) = start(options(&directory, &["r"]));
    let ask = || {
        let recorder = Arc::new(Recorder::default());
        let completion = Arc::clone(&recorder) as Arc<dyn Completion>;
        let handle = submit_as(&server, "outer", &completion, Draft::default()).unwrap();
        (recorder, handle)
    };
    let (first, executing) = ask();
    let pending = || {
        server
            .registry()
            .snapshot()
            .find("slow", None)
            .unwrap()
            .metric_totals()
            .pending_count
    };
    wait_for("the execution", || pending() == 0);
    let (second, queued) = ask();
    assert_eq!(pending(), 1);
    assert!(cancel(&queued).into_error().is_none(), "it is under way");
    let deliveries = second.wait(1);
    let error = answer(&deliveries).unwrap_err();
    assert_eq!(
        (error.code, &*error.message),
        (Code::Cancelled, "in ensemble 'outer', ")
    );
    assert_eq!(pending(), 0, "nothing of it is left in the queue");
    // What executes goes on to its end; what comes after it does not begin.
    assert!(cancel(&executing).into_error().is_none());
    host.gate.open();
    let deliveries = first.wait(1);
    assert_eq!(answer(&deliveries).unwrap_err().code, Code::Cancelled);
    assert_eq!(host.events.count("asked after"), 0);
    drop((executing, queued));
    for name in ["outer", "inner"] {
        let statistics = server.statistics(Some(name), None).unwrap();
        assert_eq!(statistics[0].inference.fail.count, 2, "{name}");
        wait_for("the places", || {
            server
                .registry()
                .snapshot()
                .find(name, None)
                .unwrap()
                .live_count()
                == 0
        });
    }
    server.stop().unwrap();
}

#[test]
fn a_step_that_is_withdrawn_leaves_its_sequence() {
    let directory = Directory::new();
    for (name, strategy) in [
        ("direct", "direct { }"),
        ("oldest", "oldest { max_candidate_sequences: 1 }"),
    ] {
        let batching = format!("sequence_batching {{ {strategy} }}\n{}", fault("hold"));
        directory.model("r", name, &["1"], &batching);
        ensemble(&directory, &format!("of_{name}"), &[name]);
    }
    for name in ["of_direct", "of_oldest"] {
        let (host, server) = start(options(&directory, &["r"]));
        let ask = |id: u64, sequence_flags: u32| {
            let recorder = Arc::new(Recorder::default());
            let completion = Arc::clone(&recorder) as Arc<dyn Completion>;
            let draft = Draft {
                correlation_id: CorrelationId::Unsigned(id),
                sequence_flags,
                ..Draft::default()
            };
            let handle = submit_as(&server, name, &completion, draft).unwrap();
            (recorder, handle)
        };
        let pending = || {
            let snapshot = server.registry().snapshot();
            let version = snapshot.find(&name["of_".len()..], None).unwrap();
            version.metric_totals().pending_count
        };
        let (executing, _held) = ask(1, START);
        wait_for("the execution", || pending() == 0);
        let (next, withdrawn) = ask(1, 0);
        let (other, _waits) = ask(2, START | END);
        assert!(cancel(&withdrawn).into_error().is_none(), "it is under way");
        host.gate.open();
        assert!(answer(&executing.wait(1)).is_ok(), "{name}");
        assert_eq!(
            answer(&next.wait(1)).unwrap_err().code,
            Code::Cancelled,
            "{name}"
        );
        // The only slot is free again, as the sequence ended with its request.
        assert!(answer(&other.wait(1)).is_ok(), "{name}");
        server.stop().unwrap();
    }
}

const START: u32 = 1;
const END: u32 = 2;

#[test]
fn many_requests_and_few_places() {
    let directory = Directory::new();
    directory.model(
        "r",
        "a",
        &["1"],
        "instance_group { count: 3 kind: KIND_CPU }",
    );
    ensemble(&directory, "inner", &["a", "a", "a"]);
    ensemble(&directory, "outer", &["inner", "a", "inner"]);
    for name in ["inner", "outer"] {
        let file = directory.path(&format!("r/{name}/config.pbtxt"));
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace(
            "ensemble_scheduling {",
            "ensemble_scheduling { max_inflight_requests: 2",
        );
        std::fs::write(file, text).unwrap();
    }
    let (_, server) = start(options(&directory, &["r"]));
    const THREADS: usize = 4;
    const EACH: usize = 300;
    let done = Arc::new(Count::default());
    let cancelled = Arc::new(Recorder::default());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for index in 0..EACH {
                    submit(&server, "outer", &done).unwrap();
                    // One in three is given up at once, wherever it is by then.
                    if index % 3 == 0 {
                        let completion = Arc::clone(&cancelled) as Arc<dyn Completion>;
                        let draft = Draft::default();
                        let handle = submit_as(&server, "outer", &completion, draft).unwrap();
                        assert!(cancel(&handle).into_error().is_none());
                    }
                }
            });
        }
    });
    wait_for("the answers", || {
        done.0.load(Ordering::SeqCst) == THREADS * EACH
    });
    // Each is answered once, with what it has come to.
    assert_eq!(cancelled.wait(THREADS * EACH / 3).len(), THREADS * EACH / 3);
    server.stop().unwrap();
}

#[test]
fn an_ensemble_that_comes_with_its_load_brings_its_models() {
    let directory = Directory::new();
    for name in ["a", "b"] {
        directory.model("r", name, &["1"], "");
    }
    directory.folder("r/whole/1");
    ensemble(&directory, "fixed", &["a"]);
    let (_, server) = start(explicit(&directory, &["r"]));
    let config = |steps: &str| described("whole", steps);
    let step = |model: &str| {
        format!(
            r#"{{"model_name":"{model}","model_version":-1,"input_map":{{"IN":"IN"}},"output_map":{{"OUT":"OUT"}}}}"#
        )
    };
    server.load_model("whole", config(&step("b"))).unwrap();
    run(&server, "whole");
    let error = server
        .load_model("whole", config(&step("nobody")))
        .unwrap_err();
    assert_eq!(
        error.message,
        "load failed for model 'whole': ensemble whole contains models that are not available or ambiguous: nobody\n"
    );
    // A model that comes with its load changes below the ensembles that need it.
    plain(&server, "fixed").unwrap();
    let of_floats = Overrides {
        config: Some(
            r#"{"name":"a","backend":"fake","max_batch_size":8,"input":[{"name":"IN","data_type":"TYPE_FP32","dims":[1]}],"output":[{"name":"OUT","data_type":"TYPE_FP32","dims":[1]}]}"#
                .to_owned(),
        ),
        files: Vec::new(),
    };
    server.load_model("a", of_floats).unwrap();
    assert!(!serves(&server, "fixed"));
    directory.file("r/a/labels.txt", "changed");
    plain(&server, "a").unwrap();
    run(&server, "fixed");
    server.stop().unwrap();
}
