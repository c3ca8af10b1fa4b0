//! Repositories, and what a check says of them: the same as a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_engine::testing::Directory;

use super::{CheckReport, CheckState, examine};
use crate::loader::tests::fake::{Host, fault};
use crate::loader::tests::options;
use crate::options::{ControlMode, EngineOptions};
use crate::{PluginHost, Server};

const ENSEMBLE: &str = "backend: '' platform: 'ensemble' \
                        input { name: 'IN' data_type: TYPE_INT32 dims: 1 } \
                        output { name: 'OUT' data_type: TYPE_INT32 dims: 1 } ";

fn ensemble(model: &str) -> String {
    format!(
        "{ENSEMBLE} ensemble_scheduling {{ step {{ model_name: '{model}' model_version: -1 \
         input_map {{ key: 'IN' value: 'IN' }} output_map {{ key: 'OUT' value: 'OUT' }} }} }}"
    )
}

/// A repository `r` with faults of all kinds.
fn repository() -> Directory {
    let directory = Directory::new();
    let rows: [(&str, &[&str], String); 14] = [
        ("good", &["1", "3"], String::new()),
        ("both", &["1", "3"], "version_policy { all { } }".into()),
        (
            "batch",
            &["1"],
            "dynamic_batching { preferred_batch_size: 9 }".into(),
        ),
        ("bodiless", &[], String::new()),
        ("ensemble", &["1"], ensemble("good")),
        ("circle", &["1"], ensemble("circle")),
        (
            "gpu",
            &["1"],
            "instance_group { kind: KIND_GPU gpus: 7 }".into(),
        ),
        ("lost", &["1"], ensemble("nothing")),
        (
            "many",
            &["1"],
            "instance_group { kind: KIND_CPU count: 2000 }".into(),
        ),
        ("no_backend", &["1"], "backend: 'other'".into()),
        ("open", &["1"], "input { name: 'IN' }".into()),
        ("onto_bad", &["1"], ensemble("no_backend")),
        ("onto_open", &["1"], ensemble("open")),
        ("text", &["1"], "\n  no_such: 1".into()),
    ];
    for (name, versions, extra) in rows {
        directory.model("r", name, versions, &extra);
    }
    directory
}

fn examined(options: &EngineOptions) -> (Arc<Host>, CheckReport) {
    let host = Arc::new(Host::default());
    let report = examine(options, Arc::clone(&host) as Arc<dyn PluginHost>);
    (host, report)
}

/// `ok` or `READY` with versions, or the reasons, of each model.
fn lines(report: &CheckReport) -> BTreeMap<String, String> {
    let line = |model: &super::ModelReport| match model.state {
        CheckState::Ok => format!("ok {:?}", model.versions),
        CheckState::Ready => format!("READY {:?}", model.versions),
        CheckState::Failed => {
            let errors = model.errors.iter().map(|fault| fault.message.clone());
            errors.collect::<Vec<_>>().join("; ")
        }
    };
    let models = report.models.iter();
    models
        .map(|model| (model.name.clone(), line(model)))
        .collect()
}

const VERSION: &str = "version 1: Invalid argument: ";
const NO_BACKEND: &str = "unable to find backend library for backend 'other', try specifying \
                          runtime on the model configuration.";

#[test]
fn every_model_has_its_reason_and_no_backend_is_opened() {
    let directory = repository();
    let (host, report) = examined(&options(&directory, &["r"]));
    assert_eq!(host.events.all(), [""; 0]);
    assert!(!report.is_good());
    let expected = [
        ("good", "ok [3]".to_owned()),
        ("both", "ok [1, 3]".to_owned()),
        (
            "batch",
            "dynamic batching preferred size must be <= max batch size for batch".to_owned(),
        ),
        (
            "bodiless",
            "at least one version must be available under the version policy of model 'bodiless'"
                .to_owned(),
        ),
        ("ensemble", "ok [1]".to_owned()),
        (
            "circle",
            "circular dependency between ensembles: circle -> ... -> circle -> circle".to_owned(),
        ),
        ("gpu", "ok [1]".to_owned()),
        (
            "lost",
            "ensemble lost contains models that are not available or ambiguous: nothing".to_owned(),
        ),
        (
            "many",
            format!("{VERSION}model 'many' asks for 2000 instances, at most 1024 are allowed"),
        ),
        ("no_backend", format!("{VERSION}{NO_BACKEND}")),
        ("open", "ok [1]".to_owned()),
        (
            "onto_bad",
            format!(
                "ensemble 'onto_bad' depends on 'no_backend' which has no loaded version. Model \
                 'no_backend' loading failed with error: version 1 is at UNAVAILABLE state: \
                 Invalid argument: {NO_BACKEND};"
            ),
        ),
        ("onto_open", "ok []".to_owned()),
        (
            "text",
            "Message type \"inference.ModelConfig\" has no field named \"no_such\".".to_owned(),
        ),
    ];
    let expected: BTreeMap<String, String> = expected
        .map(|(name, line)| (name.to_owned(), line))
        .into_iter()
        .collect();
    assert_eq!(lines(&report), expected);
    let of_name = |name: &str| {
        report
            .models
            .iter()
            .find(|model| model.name == name)
            .unwrap()
    };
    for name in ["open", "onto_open", "gpu"] {
        assert_eq!(of_name(name).notes.len(), 1, "{name}");
    }
    let fault = &of_name("text").errors[0];
    assert_eq!(fault.file, Some(directory.path("r/text/config.pbtxt")));
    assert_eq!((fault.line, fault.column), (Some(3), Some(3)));
}

/// What a server says of the same repository, as far as that depends on no backend.
#[test]
fn a_server_says_the_same() {
    let directory = repository();
    let options = options(&directory, &["r"]);
    let (_, report) = examined(&options);
    let host = Arc::new(Host::default());
    let server = Server::start(options, host as Arc<dyn PluginHost>).unwrap();
    let told: Vec<[String; 3]> = server.lifecycle().summary();
    for model in report.models.iter().filter(|model| !model.is_good()) {
        let rows = told.iter().filter(|[name, ..]| *name == model.name);
        let statuses: Vec<&str> = rows.map(|[.., status]| status.as_str()).collect();
        for fault in &model.errors {
            let reason = fault.message.trim_start_matches("version 1: ");
            let is_told = statuses.iter().any(|status| status.contains(reason));
            // The table of models has a sentence of its own for this one.
            let is_versionless = reason.starts_with("at least one version");
            assert!(is_told || is_versionless, "{reason}: {statuses:?}");
        }
    }
    server.stop().unwrap();
}

#[test]
fn repositories_have_faults_of_their_own() {
    let directory = Directory::new();
    directory.model("a", "one", &["1"], "");
    directory.model("a", "same", &["1"], "");
    directory.model("b", "same", &["1"], "");
    directory.folder("empty");
    directory.file("file", "");
    let with = |repositories: &[&str]| options(&directory, repositories);
    let (_, report) = examined(&with(&["a", "b", "empty", "file", "missing"]));
    let told: Vec<String> = report
        .errors
        .iter()
        .map(|fault| fault.message.clone())
        .collect();
    let parts = [
        "a model repository is a directory",
        "it is given as a model repository",
        "there is no model in the model repository",
    ];
    assert_eq!(told.len(), parts.len(), "{told:?}");
    for (told, part) in told.iter().zip(parts) {
        assert!(told.contains(part), "{told}");
    }
    let duplicate = "model appears in two or more repositories";
    assert_eq!(
        lines(&report),
        BTreeMap::from([
            ("one".to_owned(), "ok [1]".to_owned()),
            ("same".to_owned(), format!("{duplicate}; {duplicate}")),
        ])
    );
    // Apart they are two models.
    let apart = EngineOptions {
        namespacing: true,
        ..with(&["a", "b"])
    };
    let (_, report) = examined(&apart);
    assert!(report.is_good());
    assert_eq!(report.models.len(), 3);
}

#[test]
fn startup_models_are_looked_at_with_what_they_need() {
    let directory = repository();
    let explicit = EngineOptions {
        model_control_mode: ControlMode::Explicit,
        startup_models: vec!["ensemble".into(), "none".into()],
        ..options(&directory, &["r"])
    };
    let (_, report) = examined(&explicit);
    assert!(lines(&report).keys().eq(["ensemble", "good"]));
    let [fault] = report.errors.as_slice() else {
        panic!("{:?}", report.errors);
    };
    assert!(fault.message.starts_with("failed to poll model 'none'"));
}

#[test]
fn loads_are_apart_and_leave_nothing() {
    let directory = Directory::new();
    directory.model("r", "good", &["1", "2"], "version_policy { all { } }");
    directory.model("r", "broken", &["1"], &fault("load"));
    directory.model(
        "r",
        "half",
        &["1", "2"],
        &("version_policy { all { } }".to_owned() + &fault("load-2")),
    );
    directory.model("r", "panics", &["1"], &fault("panic"));
    directory.model("r", "cramped", &["1"], &fault("cramped_0"));
    directory.model("r", "completed", &["1"], &(fault("complete") + "input [ ]"));
    directory.model("r", "ensemble", &["1"], &ensemble("good"));
    directory.model("r", "onto_broken", &["1"], &ensemble("broken"));
    directory.model("r", "text", &["1"], "no_such: 1");
    let options = options(&directory, &["r"]);
    let (_, mut report) = examined(&options);
    let host = Arc::new(Host::default());
    let explicit = EngineOptions {
        model_control_mode: ControlMode::Explicit,
        ..options
    };
    let server = Server::start(explicit, Arc::clone(&host) as Arc<dyn PluginHost>).unwrap();
    let mut told = Vec::new();
    server.check_models(&mut report, &mut |model| told.push(model.name.clone()));
    assert_eq!(told.len(), 9);
    let lines = lines(&report);
    let ends = [
        ("good", "READY [1, 2]"),
        ("broken", "version 1: Internal: the weights are broken"),
        ("half", "version 2: Unavailable: no such version"),
        (
            "panics",
            "version 1: Internal: panic while the model was loaded",
        ),
        ("cramped", "version 1: Internal: no room for cramped_0"),
        ("completed", "READY [1]"),
        ("ensemble", "READY [1]"),
        ("onto_broken", "Internal: the weights are broken;"),
        ("text", "has no field named \"no_such\"."),
    ];
    for (name, end) in ends {
        assert!(lines[name].ends_with(end), "{name}: {}", lines[name]);
    }
    let (loads, drops) = (host.events.count("bind"), host.events.count("drop model"));
    assert!(loads <= drops, "{:?}", host.events.all());
    assert!(server.index(true).is_empty());
    server.stop().unwrap();
}
