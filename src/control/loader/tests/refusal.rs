//! Refused loads and starts, in the words that clients and logs show.

use std::time::Duration;

use conch_engine::testing::Directory;
use conch_engine::{Code, Error};

use super::control::{explicit, plain};
use super::fake::{Host, fault};
use super::{options, start};
use crate::Server;
use crate::load_overrides::Overrides;
use crate::options::{ControlMode, EngineOptions};

fn words<T>(outcome: Result<T, Error>) -> Option<(Code, String)> {
    let error = outcome.err()?;
    Some((error.code, error.message.into_owned()))
}

#[test]
fn a_mode_that_does_not_allow_it_says_so() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    let load = "explicit model load / unload is not allowed if polling is enabled";
    let register = "repository registration is not allowed if model control mode is not EXPLICIT";
    let unregister =
        "repository unregistration is not allowed if model control mode is not EXPLICIT";
    let unavailable = |text: &str| Some((Code::Unavailable, text.to_owned()));
    let unsupported = |text: &str| Some((Code::Unsupported, text.to_owned()));
    for mode in [ControlMode::None, ControlMode::Poll, ControlMode::Explicit] {
        let (_, server) = start(EngineOptions {
            model_control_mode: mode,
            ..options(&directory, &["r"])
        });
        let is_explicit = mode == ControlMode::Explicit;
        let here = directory.path("r").display().to_string();
        let twice = format!("model repository '{here}' has already been registered");
        let expected = [
            (!is_explicit).then(|| unavailable(load)).flatten(),
            (!is_explicit).then(|| unavailable(load)).flatten(),
            (mode != ControlMode::Poll)
                .then(|| unavailable("polling is disabled"))
                .flatten(),
            match is_explicit {
                true => Some((Code::AlreadyExists, twice)),
                false => unsupported(register),
            },
            (!is_explicit).then(|| unsupported(unregister)).flatten(),
        ];
        let found = [
            words(plain(&server, "m")),
            words(server.unload_model("m", false)),
            words(server.poll_repositories()),
            words(server.register_repository(&here, Vec::new())),
            words(server.unregister_repository(&here)),
        ];
        assert_eq!(found, expected, "{mode:?}");
        server.stop().unwrap();
    }
}

#[test]
fn a_start_that_contradicts_itself_is_refused() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], &fault("load"));
    let settings = crate::OnDemandSettings {
        budget_bytes: 1,
        patience: Duration::from_secs(1),
        waiting_max: 1,
    };
    let on_demand = |change: fn(&mut EngineOptions)| {
        let mut options = EngineOptions {
            demand: Some(settings.clone()),
            ..explicit(&directory, &["r"])
        };
        change(&mut options);
        options
    };
    let cases = [
        (
            EngineOptions::default(),
            Code::InvalidArg,
            "--model-repository must be specified",
        ),
        (
            EngineOptions {
                executions_max: Some(1),
                limits_rate: true,
                ..explicit(&directory, &["r"])
            },
            Code::InvalidArg,
            "executions are shared among models, or limited by resources: not both",
        ),
        (
            on_demand(|options| options.model_control_mode = ControlMode::None),
            Code::InvalidArg,
            "a budget for the memory of models needs --model-control-mode=explicit",
        ),
        (
            on_demand(|options| options.namespacing = true),
            Code::InvalidArg,
            "a budget for the memory of models excludes --model-namespacing",
        ),
        (
            EngineOptions {
                startup_models: vec!["*".to_owned(), "m".to_owned()],
                exit_on_error: true,
                ..explicit(&directory, &["r"])
            },
            Code::InvalidArg,
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        (
            EngineOptions {
                exit_on_error: true,
                ..options(&directory, &["r"])
            },
            Code::Internal,
            "failed to load all models: model 'm', version 1: Internal: the weights are broken",
        ),
    ];
    for (options, code, message) in cases {
        let started = Server::start(options, std::sync::Arc::new(Host::default()));
        assert_eq!(words(started), Some((code, message.to_owned())));
    }
}

#[test]
fn a_model_that_cannot_be_scheduled_is_refused() {
    let directory = Directory::new();
    let sequence = |state: &str| {
        format!(
            "sequence_batching {{ state {{ input_name: 'S' output_name: 'T' data_type: TYPE_INT32 \
             dims: [ 1 ] {state} }} }}"
        )
    };
    let own = |key: &str| format!("parameters {{ key: '{key}' value {{ string_value: 'true' }} }}");
    let order = own(conch_config::DEADLINE_ORDER);
    let cases = [
        (
            "instances",
            "instance_group [ { count: 1025 kind: KIND_CPU } ]".to_owned(),
            "Invalid argument: model 'instances' asks for 1025 instances, at most 1024 are allowed",
        ),
        (
            "order",
            order.clone(),
            "Invalid argument: parameter 'CONCH_DEADLINE_ORDER' of model 'order' needs \
             dynamic_batching",
        ),
        (
            "both_orders",
            format!("{order} dynamic_batching {{ preserve_ordering: true }}"),
            "Invalid argument: parameter 'CONCH_DEADLINE_ORDER' of model 'both_orders' excludes \
             preserve_ordering",
        ),
        (
            "states",
            sequence("initial_state { } initial_state { }"),
            "Invalid argument: initial_state field for state input 'S' must contain exactly one or \
             zero element. Found '2' elements.",
        ),
        (
            "proposed",
            fault("ensemble"),
            "Invalid argument: ensemble scheduling cannot be set for model 'proposed' whose \
             platform is not ensemble",
        ),
        (
            "backend",
            "backend: 'none'".to_owned(),
            "Invalid argument: unable to find backend library for backend 'none', try specifying \
             runtime on the model configuration.",
        ),
    ];
    for (name, extra, _) in &cases {
        directory.model("r", name, &["1"], extra);
    }
    let levels = format!(
        "dynamic_batching {{ priority_levels: {} default_priority_level: 1 }}",
        u64::MAX
    );
    directory.model("r", "most_levels", &["1"], &levels);
    let (_, server) = start(explicit(&directory, &["r"]));
    plain(&server, "most_levels").unwrap();
    for (name, _, reason) in cases {
        let message = format!(
            "load failed for model '{name}': version 1 is at UNAVAILABLE state: {reason};\n"
        );
        assert_eq!(
            words(plain(&server, name)),
            Some((Code::InvalidArg, message))
        );
    }
    server.stop().unwrap();
}

#[test]
fn overrides_that_make_no_model_are_refused() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    let (_, server) = start(explicit(&directory, &["r"]));
    let good = concat!(
        r#"{"backend":"fake","input":[{"name":"IN","data_type":"TYPE_INT32","dims":[1]}],"#,
        r#""output":[{"name":"OUT","data_type":"TYPE_INT32","dims":[1]}]}"#
    );
    let overrides = |config: Option<&str>, file: Option<&str>| Overrides {
        config: config.map(str::to_owned),
        files: file
            .map(|file| (file.to_owned(), Vec::new()))
            .into_iter()
            .collect(),
    };
    let not_polled = "failed to load 'm', failed to poll from model repository";
    // The code, what the client reads, and what the log says where that is more.
    let cases = [
        (
            None,
            Some("file:1/x"),
            "Load parameter 'config' must be specified for model file override",
        ),
        (Some("{"), None, "Invalid config override: "),
        (
            Some(r#"{"no_such_field":1}"#),
            None,
            "Invalid config override: ",
        ),
        (
            Some(good),
            Some("file:"),
            "Invalid file parameter 'file:', it names no file",
        ),
    ];
    for (config, file, logged) in cases {
        let planned = server
            .lifecycle()
            .plan_from_request("m", overrides(config, file));
        let (code, message) = words(planned).unwrap();
        assert_eq!(code, Code::InvalidArg, "{message}");
        assert!(message.starts_with(logged), "{message}");
        let refused = words(server.load_model("m", overrides(config, file)));
        assert_eq!(
            refused,
            Some((Code::Internal, not_polled.to_owned())),
            "{logged}"
        );
    }
    server.stop().unwrap();
}
