//! Model control on the fake backend: what is loaded, and what an operation answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use conch_engine::testing::{Directory, until};
use conch_engine::{Code, Error};

use super::fake::{Host, fault};
use super::{Count, options, row, start, submit};
use crate::Server;
use crate::load_overrides::Overrides;
use crate::options::{ControlMode, EngineOptions};
use crate::server_metadata::IndexRow;

pub(super) fn explicit(directory: &Directory, repositories: &[&str]) -> EngineOptions {
    EngineOptions {
        model_control_mode: ControlMode::Explicit,
        ..options(directory, repositories)
    }
}

pub(super) fn polling(directory: &Directory, repositories: &[&str]) -> EngineOptions {
    EngineOptions {
        model_control_mode: ControlMode::Poll,
        ..options(directory, repositories)
    }
}

pub(super) fn plain(server: &Server, name: &str) -> Result<(), Error> {
    server.load_model(name, Overrides::default())
}

/// `name:version STATE` or `name:version reason`, and `name` alone.
pub(super) fn shown(server: &Server) -> Vec<String> {
    let show = |row: IndexRow| match (row.version, row.reason.as_str()) {
        (None, _) => row.name,
        (Some(version), "") => format!("{}:{version} {}", row.name, row.state),
        (Some(version), reason) => format!("{}:{version} {reason}", row.name),
    };
    server.index(false).into_iter().map(show).collect()
}

/// Waits until nothing is being unloaded any more.
pub(super) fn settle(server: &Server) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while server
        .index(false)
        .iter()
        .any(|row| row.state == "UNLOADING")
    {
        assert!(Instant::now() < deadline, "{:?}", shown(server));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A configuration of the fake backend as JSON.
pub(super) fn config(name: &str, more: &str) -> Overrides {
    let tensor =
        |name: &str| format!(r#"[{{"name":"{name}","data_type":"TYPE_INT32","dims":[1]}}]"#);
    Overrides {
        config: Some(format!(
            "{{\"name\":\"{name}\",\"backend\":\"fake\",\"max_batch_size\":8,\"input\":{},\
                 \"output\":{}{more}}}",
            tensor("IN"),
            tensor("OUT")
        )),
        files: Vec::new(),
    }
}

pub(super) fn with_files(overrides: Overrides, files: &[&str]) -> Overrides {
    Overrides {
        files: files
            .iter()
            .map(|file| ((*file).to_owned(), b"weights".to_vec()))
            .collect(),
        ..overrides
    }
}

#[test]
fn the_mode_decides_what_is_allowed() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    let path = directory.path("r").display().to_string();
    for (mode, loads, polls) in [
        (ControlMode::None, false, false),
        (ControlMode::Poll, false, true),
        (ControlMode::Explicit, true, false),
    ] {
        let (_, server) = start(EngineOptions {
            model_control_mode: mode,
            ..options(&directory, &["r"])
        });
        let code = |outcome: Result<(), Error>| outcome.map_err(|error| error.code).err();
        let refused = (!loads).then_some(Code::Unavailable);
        assert_eq!(code(plain(&server, "m")), refused, "{mode:?}");
        assert_eq!(code(server.unload_model("m", false)), refused, "{mode:?}");
        let refused = (!polls).then_some(Code::Unavailable);
        assert_eq!(code(server.poll_repositories()), refused, "{mode:?}");
        let refused = (!loads).then_some(Code::Unsupported);
        let again = code(server.register_repository(&path, Vec::new()));
        assert_eq!(again, refused.or(Some(Code::AlreadyExists)), "{mode:?}");
        assert_eq!(
            code(server.unregister_repository(&path)),
            refused,
            "{mode:?}"
        );
        server.stop().unwrap();
        let after = plain(&server, "m").unwrap_err();
        assert_eq!(after.code, Code::Unavailable, "stopped: {after}");
    }
}

#[test]
fn startup_models() {
    let directory = Directory::new();
    for name in ["a", "b", "c"] {
        directory.model("r", name, &["1"], "");
    }
    directory.model("r", "bad", &["1"], &fault("load"));
    type Row<'r> = (&'r [&'r str], Result<&'r [&'r str], &'r str>);
    let table: [Row<'_>; 6] = [
        (&[], Ok(&[])),
        (&["b"], Ok(&["b"])),
        (&["c", "a"], Ok(&["a", "c"])),
        (
            &["a", "missing"],
            Err("failed to load all models: model 'missing' is in no model repository"),
        ),
        (
            &["a", "bad"],
            Err(
                "failed to load all models: model 'bad', version 1: Internal: the weights are \
                 broken",
            ),
        ),
        (
            &["*", "a"],
            Err("Wildcard model name '*' must be the ONLY startup model if specified at all."),
        ),
    ];
    for (startup, expected) in table {
        let host = Arc::new(Host::default());
        let started = Server::start(
            EngineOptions {
                startup_models: startup.iter().map(|name| (*name).to_owned()).collect(),
                exit_on_error: true,
                ..explicit(&directory, &["r"])
            },
            Arc::clone(&host) as Arc<dyn crate::PluginHost>,
        );
        match (started, expected) {
            (Ok(server), Ok(names)) => {
                let ready = server.index(true).into_iter().map(|row| row.name);
                assert!(ready.eq(names.iter().copied()), "{startup:?}");
                assert_eq!(server.index(false).len(), 4, "others are listed by name");
                server.stop().unwrap();
            }
            (Err(error), Err(expected)) => assert_eq!(error.message, expected, "{startup:?}"),
            (started, _) => panic!("{startup:?}: {:?}", started.map(|_| ())),
        }
    }
    let (_, server) = start(EngineOptions {
        startup_models: vec!["*".to_owned()],
        ..explicit(&directory, &["r"])
    });
    assert_eq!(server.index(true).len(), 3);
    server.stop().unwrap();
}

/// Loads that are invalid, and what is said of them.
const INVALID_LOADS: [(&str, &str); 5] = [
    (
        "bad",
        "load failed for model 'bad': version 1 is at UNAVAILABLE state: Internal: the weights \
         are broken;\n",
    ),
    (
        "bare",
        "load failed for model 'bare': at least one version must be available under the version \
         policy of model 'bare'\n",
    ),
    (
        " ",
        "Model name cannot be empty. Please enter a valid name to deploy.",
    ),
    (
        "../r/m",
        "invalid model name '../r/m', model name must not contain path traversal characters",
    ),
    (
        "..",
        "invalid model name '..', model name must not contain path traversal characters",
    ),
];

#[test]
fn what_loads_and_unloads_answer() {
    let directory = Directory::new();
    directory.model("r", "m", &["1", "2"], "version_policy { all { } }");
    directory.model("r", "bad", &["1"], &fault("load"));
    directory.model("r", "bare", &[], "");
    directory.model("r", "twice", &["1"], "");
    directory.model("s", "twice", &["1"], "");
    directory.file("r/odd/config.pbtxt", "no_such_field: 1");
    let (host, server) = start(explicit(&directory, &["r", "s"]));
    assert!(server.readiness().wait(), "an empty start is a good one");
    for name in ["m", "m"] {
        assert_eq!(plain(&server, name), Ok(()), "{name}");
    }
    for name in ["missing", "odd", "twice"] {
        let not_polled = Error::internal(format!(
            "failed to load '{name}', failed to poll from model repository"
        ));
        assert_eq!(plain(&server, name), Err(not_polled), "{name}");
    }
    for (name, message) in INVALID_LOADS {
        let invalid = Error::invalid(message.to_owned());
        assert_eq!(plain(&server, name), Err(invalid), "{name}");
    }
    assert_eq!(host.events.count("load m:1"), 1, "no change, no load");
    assert_eq!(
        shown(&server),
        [
            "bad:1 Internal: the weights are broken",
            "bare",
            "m:1 READY",
            "m:2 READY",
            "odd",
            "twice"
        ]
    );
    for name in ["m", "m", "bad", "missing", "bare", ""] {
        assert_eq!(server.unload_model(name, false), Ok(()), "{name}");
    }
    settle(&server);
    assert_eq!(
        shown(&server)[2..4],
        ["m:1 unloaded".to_owned(), "m:2 unloaded".to_owned()]
    );
    assert_eq!(host.events.count("drop model m"), 2);
    let gone = server.registry().snapshot().find("m", None).map(|_| ());
    assert_eq!(gone.unwrap_err().code, Code::NotFound);
    plain(&server, "m").unwrap();
    assert_eq!(host.events.count("load m:1"), 2, "unloaded, so loaded anew");
    server.stop().unwrap();
}

#[test]
fn polling_follows_the_repositories() {
    let directory = Directory::new();
    for name in ["kept", "changed", "gone", "doubled"] {
        directory.model("r", name, &["1"], "");
    }
    directory.folder("s");
    let (host, server) = start(polling(&directory, &["r", "s"]));
    server.poll_repositories().unwrap();
    assert_eq!(host.events.count("load"), 4, "nothing changed");
    directory.folder("r/changed/2");
    std::fs::remove_dir_all(directory.path("r/gone")).unwrap();
    directory.model("s", "doubled", &["1"], "");
    directory.model("s", "new", &["3"], "");
    directory.file("s/broken/config.pbtxt", "no_such_field: 1");
    server.poll_repositories().unwrap();
    settle(&server);
    assert_eq!(
        shown(&server),
        [
            "broken",
            "changed:1 unloaded",
            "changed:2 READY",
            "doubled",
            "kept:1 READY",
            "new:3 READY"
        ]
    );
    until("all are dropped", || host.events.count("drop model") == 3);
    assert_eq!(host.events.count("load kept"), 1);

    // A broken configuration, a failing load and a repository out of sight keep what serves.
    directory.file("r/kept/config.pbtxt", "no_such_field: 1");
    directory.model("s", "new", &["3"], &fault("load"));
    server.poll_repositories().unwrap();
    let ready = |name: &str| server.registry().snapshot().find(name, None).is_ok();
    assert!(ready("kept") && ready("new"));
    std::fs::rename(directory.path("r"), directory.path("hidden")).unwrap();
    server.poll_repositories().unwrap();
    assert!(ready("kept") && ready("changed"));
    std::fs::rename(directory.path("hidden"), directory.path("r")).unwrap();
    // What the second repository no longer doubles comes back.
    std::fs::remove_dir_all(directory.path("s/doubled")).unwrap();
    server.poll_repositories().unwrap();
    assert!(ready("doubled"));
    server.stop().unwrap();
}

#[test]
fn repositories_come_and_go() {
    let directory = Directory::new();
    directory.folder("r");
    directory.model("s", "directory", &["1"], "");
    let (_, server) = start(explicit(&directory, &["r"]));
    let path = directory.path("s").display().to_string();
    plain(&server, "directory").unwrap_err();
    let mapping = vec![("directory".to_owned(), "name".to_owned())];
    server.register_repository(&path, mapping).unwrap();
    assert_eq!(shown(&server), ["name"]);
    plain(&server, "directory").unwrap_err();
    plain(&server, "name").unwrap();
    let version = Arc::clone(server.registry().snapshot().find("name", None).unwrap());
    assert_eq!(version.config.message.name, "name");
    server.unregister_repository(&path).unwrap();
    assert!(shown(&server).is_empty());
    assert!(server.registry().snapshot().find("name", None).is_ok());
    server.unload_model("name", false).unwrap();
    server.stop().unwrap();
}

#[test]
fn namespaces_tell_models_apart() {
    let directory = Directory::new();
    for (repository, versions) in [("r", &["1"]), ("s", &["2"])] {
        directory.model(repository, "same", versions, "");
    }
    directory.model("s", "own", &["1"], "");
    let (_, server) = start(EngineOptions {
        namespacing: true,
        ..options(&directory, &["r", "s"])
    });
    assert!(server.readiness().wait());
    assert_eq!(server.index(true).len(), 3);
    let snapshot = server.registry().snapshot();
    assert!(snapshot.find("own", None).is_ok());
    assert_eq!(
        snapshot.find("same", None).unwrap_err().code,
        Code::InvalidArg
    );
    let label = format!(
        "model=\"same\",namespace=\"{}\"",
        directory.path("r").display()
    );
    assert!(server.metrics_text().contains(&label));
    server.stop().unwrap();
}

#[test]
fn requests_in_flight_hold_the_unloading_up_but_not_the_caller() {
    let directory = Directory::new();
    directory.model("r", "slow", &["1"], &fault("hold"));
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "slow").unwrap();
    let count = Arc::new(Count::default());
    submit(&server, "slow", &count).unwrap();
    submit(&server, "slow", &count).unwrap();
    server.unload_model("slow", false).unwrap();
    assert_eq!(shown(&server), ["slow:1 UNLOADING"]);
    assert!(submit(&server, "slow", &count).is_err());
    // A new one beside the old one that still drains: it turns UNLOADING into READY, and is not
    // taken for the old one at its end.
    plain(&server, "slow").unwrap();
    assert_eq!(shown(&server), ["slow:1 READY"]);
    assert_eq!(host.events.count("drop model"), 0);
    host.gate.open();
    until("the old one is gone", || {
        host.events.count("drop model") == 1
    });
    assert_eq!(count.0.load(Ordering::SeqCst), 2);
    assert_eq!(shown(&server), ["slow:1 READY"]);
    server.stop().unwrap();
}

#[test]
fn different_models_load_at_once_and_one_model_in_turn() {
    let directory = Directory::new();
    directory.model("r", "one", &["1"], &fault("meet"));
    directory.model("r", "two", &["1"], &fault("meet"));
    directory.model("r", "same", &["1"], "");
    let (host, server) = start(explicit(&directory, &["r"]));
    std::thread::scope(|scope| {
        let loads: Vec<_> = ["one", "two"]
            .into_iter()
            .chain(["same"; 8])
            .map(|name| {
                let server = &server;
                scope.spawn(move || plain(server, name))
            })
            .collect();
        for load in loads {
            load.join().unwrap().unwrap();
        }
    });
    assert_eq!(
        host.events.count("load same"),
        1,
        "the others found it loaded"
    );
    assert_eq!(server.index(true).len(), 3);
    server.stop().unwrap();
}

#[test]
fn an_ensemble_brings_its_models_along_and_takes_them() {
    let directory = Directory::new();
    for name in ["a", "b", "shared"] {
        directory.model("r", name, &["1"], "");
    }
    let ensemble = |steps: &[&str]| {
        let step = |name: &&str| {
            format!(
                "step {{ model_name: '{name}' model_version: -1 input_map {{ key: 'IN' value: 'IN' \
                 }} output_map {{ key: 'OUT' value: 'OUT' }} }}"
            )
        };
        let steps: Vec<String> = steps.iter().map(step).collect();
        format!(
            "platform: 'ensemble' max_batch_size: 8 input [ {{ name: 'IN' data_type: TYPE_INT32 \
             dims: [ 1 ] }} ] output [ {{ name: 'OUT' data_type: TYPE_INT32 dims: [ 1 ] }} ] \
             ensemble_scheduling {{ {} }}",
            steps.join(" ")
        )
    };
    directory.file("r/whole/config.pbtxt", &ensemble(&["a"]));
    directory.folder("r/whole/1");
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "whole").unwrap();
    assert_eq!(host.events.count("load a"), 1);
    assert_eq!(host.events.count("load b"), 0);
    let serves = |name: &str| server.registry().snapshot().find(name, None).is_ok();
    assert!(serves("a") && serves("whole"));
    let count = Arc::new(Count::default());
    submit(&server, "whole", &count).unwrap();
    until("the answer", || count.0.load(Ordering::SeqCst) == 1);
    server.unload_model("whole", false).unwrap();
    assert!(serves("a") && !serves("whole"), "only with its dependents");
    plain(&server, "whole").unwrap();
    server.unload_model("whole", true).unwrap();
    assert!(!serves("a"));
    plain(&server, "a").unwrap();
    plain(&server, "whole").unwrap();
    server.unload_model("whole", true).unwrap();
    assert!(serves("a"), "somebody asked for it");
    server.stop().unwrap();
}

#[test]
fn stopping_ends_what_is_being_loaded_and_unloaded() {
    let directory = Directory::new();
    directory.model("r", "slow", &["1"], &fault("hold"));
    directory.model("r", "other", &["1"], "");
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "slow").unwrap();
    plain(&server, "other").unwrap();
    let count = Arc::new(Count::default());
    submit(&server, "slow", &count).unwrap();
    server.unload_model("slow", false).unwrap();
    let stopping = {
        let server = Arc::clone(&server);
        std::thread::spawn(move || server.stop())
    };
    until("the stop has begun", || server.is_stopping());
    host.gate.open();
    stopping.join().unwrap().unwrap();
    assert_eq!(host.events.count("drop model"), 2);
    assert_eq!(host.events.all().last().unwrap(), "finalize");
    assert_eq!(
        server.index(false),
        [
            row("other", Some(1), "UNAVAILABLE", "unloaded"),
            row("slow", Some(1), "UNAVAILABLE", "unloaded")
        ]
    );
}

#[test]
fn a_load_that_takes_too_long_is_given_up() {
    let directory = Directory::new();
    directory.model("r", "stuck", &["1"], &fault("stuck"));
    directory.model("r", "a", &["1"], "");
    let options = EngineOptions {
        model_load_timeout: Some(Duration::from_secs(2)),
        model_load_thread_count: 1,
        model_load_retry_count: 3,
        ..explicit(&directory, &["r"])
    };
    let (host, server) = start(options);
    for expected in [
        "Unavailable: the load took longer than 2 seconds (--model-load-timeout-secs) and was \
         given up while it was initializing the model;",
        "Unavailable: its backend has not returned yet from a load that was given up after 2 \
         seconds;",
    ] {
        assert_eq!(
            plain(&server, "stuck").unwrap_err().message,
            format!(
                "load failed for model 'stuck': version 1 is at UNAVAILABLE state: {expected}\n"
            )
        );
    }
    assert_eq!(
        host.events.count("load stuck:1"),
        1,
        "nothing is tried again"
    );
    // Neither its permit nor its turn is gone.
    plain(&server, "a").unwrap();
    server.unload_model("stuck", false).unwrap();
    host.gate.open();
    until("what came too late", || {
        host.events.count("drop model stuck:1") == 1
    });
    until("a load that is no longer overdue", || {
        plain(&server, "stuck").is_ok()
    });
    server.stop().unwrap();
}

#[test]
fn a_start_that_is_not_wanted_any_more_loads_nothing_more() {
    let directory = Directory::new();
    for name in ["a", "b", "c"] {
        directory.model("r", name, &["1"], &fault("stuck"));
    }
    let options = EngineOptions {
        model_load_thread_count: 1,
        exit_on_error: false,
        ..options(&directory, &["r"])
    };
    let stop_request = Arc::clone(&options.stop_request);
    let host = Arc::new(Host::default());
    let error = std::thread::scope(|scope| {
        let starting = Arc::clone(&host) as Arc<dyn crate::PluginHost>;
        let start = scope.spawn(|| Server::start(options, starting).err());
        until("the first load", || host.events.count("load ") == 1);
        stop_request.store(true, Ordering::Relaxed);
        host.gate.open();
        start.join().unwrap()
    });
    assert_eq!(
        error,
        Some(Error::unavailable("stopped while models were loaded"))
    );
    assert_eq!(host.events.count("load "), 1);
}
