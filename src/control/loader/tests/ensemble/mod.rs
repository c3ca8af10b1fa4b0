//! Ensembles in the life of models, on the fake backend: in which order they come and go, and what
//! is said of those that cannot. Refusals are worded as Triton 2.51 words them.

mod circles;
mod requests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use conch_engine::model::registry::ModelId;
use conch_engine::testing::{Directory, Recorder, until};
use conch_engine::{
    Code, Completion, CorrelationId, Delivery, Draft, Error, Parameter, ParameterValue, Response,
    SequenceFlags, cancel,
};

use crate::Server;
use crate::load_overrides::Overrides;
use crate::loader::load_plan::LoadPlan;
use crate::loader::tests::control::{explicit, plain, polling, settle, shown};
use crate::loader::tests::fake::fault;
use crate::loader::tests::{Count, options, start, submit, submit_as};
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
            "step {{ model_name: '{model}' model_version: {version} input_map {{ key: 'IN' value: \
             '{from}' }} output_map {{ key: 'OUT' value: '{to}' }} }}\n"
        );
    }
    directory.folder(&format!("{repository}/{name}/1"));
    directory.file(
        &format!("{repository}/{name}/config.pbtxt"),
        &format!(
            "platform: 'ensemble' max_batch_size: 8\ninput {{ name: 'IN' data_type: \
             TYPE_{data_type} dims: 1 }}\noutput {{ name: 'OUT' data_type: TYPE_{data_type} dims: \
             1 }}\nensemble_scheduling {{\n{steps}}}\n"
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
    until("the answer", || count.0.load(Ordering::SeqCst) == 1);
}

/// What a load of `name` says.
fn refused(server: &Server, name: &str) -> String {
    plain(server, name).unwrap_err().message.into_owned()
}

/// A load that brings the configuration of an ensemble.
fn described(name: &str, steps: &str) -> Overrides {
    let tensor =
        |name: &str| format!(r#"[{{"name":"{name}","data_type":"TYPE_INT32","dims":[1]}}]"#);
    Overrides {
        config: Some(format!(
            "{{\"name\":\"{name}\",\"platform\":\"ensemble\",\"max_batch_size\":8,\
                 \"input\":{},\"output\":{},\
                 \"ensemble_scheduling\":{{\"step\":[{steps}]}}}}",
            tensor("IN"),
            tensor("OUT")
        )),
        files: Vec::new(),
    }
}

fn answer(deliveries: &[Delivery]) -> Result<&Response, &Error> {
    let [delivery] = deliveries else {
        panic!("{deliveries:?}")
    };
    assert!(delivery.is_final());
    delivery.outcome().unwrap().as_ref()
}

/// Ensembles that cannot be put together, and their models.
fn write_unfit_ensembles(directory: &Directory) {
    directory.model("r", "a", &["1"], "");
    directory.model("r", "broken", &["1"], &fault("load"));
    directory.model("r", "versionless", &[], "");
    directory.model("r", "small", &["1"], "backend: 'fake' max_batch_size: 2");
    directory.file(
        "r/refused/config.pbtxt",
        "backend: 'fake' max_batch_size: -3",
    );
    ensemble(directory, "alone", &["nobody"]);
    ensemble(directory, "on_refused", &["refused"]);
    ensemble(directory, "on_broken", &["a", "broken"]);
    ensemble(directory, "on_versionless", &["versionless"]);
    ensemble(directory, "on_seven", &["a@7"]);
    ensemble(directory, "on_alone", &["alone"]);
    ensemble_in(directory, "r", "other_type", &["a"], "FP32");
    ensemble(directory, "selfish", &["selfish"]);
    ensemble(directory, "ring1", &["a", "ring2"]);
    ensemble(directory, "ring2", &["ring3"]);
    ensemble(directory, "ring3", &["ring1", "a"]);
    ensemble(directory, "at_the_ring", &["ring2"]);
}

#[test]
fn what_cannot_be_put_together_says_why() {
    let directory = Directory::new();
    write_unfit_ensembles(&directory);
    let alone = "ensemble alone contains models that are not available or ambiguous: nobody";
    let on_alone = format!(
        "ensemble 'on_alone' depends on 'alone' which is not valid. Model 'alone' failed with \
         error: {alone}"
    );
    let table: [(&str, &str); 10] = [
        ("alone", alone),
        (
            "on_refused",
            "ensemble on_refused contains models that are not available or ambiguous: refused",
        ),
        (
            "on_broken",
            "ensemble 'on_broken' depends on 'broken' which has no loaded version. Model 'broken' \
             loading failed with error: version 1 is at UNAVAILABLE state: Internal: the weights \
             are broken;",
        ),
        (
            "on_versionless",
            "ensemble 'on_versionless' depends on 'versionless' which has no loaded version. Model \
             'versionless' loading failed with error: at least one version must be available under \
             the version policy of model 'versionless'",
        ),
        (
            "on_seven",
            "ensemble 'on_seven' depends on 'a' whose required version 7 is not loaded.",
        ),
        ("on_alone", &on_alone),
        (
            "other_type",
            "in ensemble other_type, ensemble tensor IN: inconsistent data type: TYPE_FP32 is \
             inferred from model other_type while TYPE_INT32 is inferred from model a",
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
            "ensemble 'at_the_ring' depends on 'ring2' which is not valid. Model 'ring2' failed \
             with error: circular dependency between ensembles: ring2 -> ... -> ring1 -> ring2",
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
        "input [ { name: 'IN' data_type: TYPE_FP32 dims: [ 1 ] } ] output [ \
         { name: 'OUT' data_type: TYPE_FP32 dims: [ 1 ] } ]",
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
            "{{\"model_name\":\"{model}\",\"model_version\":-1,\
                 \"input_map\":{{\"IN\":\"IN\"}},\"output_map\":{{\"OUT\":\"OUT\"}}}}"
        )
    };
    server.load_model("whole", config(&step("b"))).unwrap();
    run(&server, "whole");
    let error = server
        .load_model("whole", config(&step("nobody")))
        .unwrap_err();
    assert_eq!(
        error.message,
        "load failed for model 'whole': ensemble whole contains models that are not available or \
         ambiguous: nobody\n"
    );
    // A model that comes with its load changes below the ensembles that need it.
    plain(&server, "fixed").unwrap();
    let of_floats = Overrides {
        config: Some(
            concat!(
                r#"{"name":"a","backend":"fake","max_batch_size":8,"input":[{"name":"IN","#,
                r#""data_type":"TYPE_FP32","dims":[1]}],"output":[{"name":"OUT","#,
                r#""data_type":"TYPE_FP32","dims":[1]}]}"#
            )
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
