//! The start of a server: what it loads, what it refuses, and whether it is ready.

use std::sync::Arc;
use std::time::Duration;

use conch_engine::testing::Directory;
use conch_engine::{Code, Error};

use super::fake::{Host, fault};
use super::{options, row, start};
use crate::Server;
use crate::options::EngineOptions;
use crate::server_metadata::IndexRow;

#[test]
fn one_failing_model_never_hides_the_others() {
    let directory = Directory::new();
    write_failing_models(&directory);
    let (host, server) = start(options(&directory, &["r", "s"]));
    assert_eq!(server.index(false), index_of_failing_models());
    let ready: Vec<_> = server
        .index(true)
        .into_iter()
        .map(|row| (row.name, row.version))
        .collect();
    assert_eq!(
        ready,
        [
            ("a-good".into(), Some(1)),
            ("m..".into(), Some(4)),
            ("m..".into(), Some(9))
        ]
    );
    check_summary(&server);
    check_what_is_gone(&host);
    check_refusals(&server);
    let snapshot = server.registry().snapshot();
    assert_eq!(snapshot.find("m..", None).unwrap().version, 9);
    assert_eq!(snapshot.ready_versions("m..").unwrap(), [4, 9]);
    server.stop().unwrap();
    assert_eq!(host.events.all().last().unwrap(), "finalize");
}

/// Models that fail in a way of their own each, and two that do not.
fn write_failing_models(directory: &Directory) {
    let one_of_three = "instance_group [ { name: 'g' count: 3 } ]";
    let limit = "sequence_batching { } parameters \
                 { key: 'CONCH_SEQUENCE_BACKLOG_MAX' value { string_value: 'x' } }";
    let table: [(&str, &str, &[&str], String); 14] = [
        ("r", "a-good", &["1"], String::new()),
        ("r", "b-backend", &["1"], "backend: 'nosuch'".into()),
        ("r", "c-load", &["1"], fault("load")),
        ("r", "d-panic", &["1"], fault("panic")),
        (
            "r",
            "e-instance",
            &["1"],
            format!("{one_of_three} {}", fault("g_2")),
        ),
        ("r", "f-name", &["1"], "name: 'other'".into()),
        ("r", "g-syntax", &["1"], "max_batch: 4".into()),
        ("r", "h-empty", &[], String::new()),
        (
            "r",
            "i-specific",
            &["1"],
            "version_policy { specific { versions: [ 7 ] } }".into(),
        ),
        ("r", "j-limit", &["1"], limit.into()),
        (
            "r",
            "k-some",
            &["1", "2", "3"],
            format!("version_policy {{ all {{ }} }} {}", fault("load-2")),
        ),
        ("r", "l-twice", &["1"], String::new()),
        ("s", "l-twice", &["1"], String::new()),
        (
            "s",
            "m..",
            &["1", "4", "9", "010", "x"],
            "version_policy { latest { num_versions: 2 } }".into(),
        ),
    ];
    for (repository, name, versions, config) in table {
        directory.model(repository, name, versions, &config);
    }
    directory.file("s/notes.txt", "not a model");
}

fn index_of_failing_models() -> Vec<IndexRow> {
    let no_backend = "Invalid argument: unable to find backend library for backend 'nosuch', try \
                      specifying runtime on the model configuration.";
    let panic = "Internal: panic while the model was loaded";
    [
        ("a-good", Some(1), "READY", ""),
        ("b-backend", Some(1), "UNAVAILABLE", no_backend),
        (
            "c-load",
            Some(1),
            "UNAVAILABLE",
            "Internal: the weights are broken",
        ),
        ("d-panic", Some(1), "UNAVAILABLE", panic),
        (
            "e-instance",
            Some(1),
            "UNAVAILABLE",
            "Internal: no room for g_2",
        ),
        ("f-name", None, "", ""),
        ("g-syntax", None, "", ""),
        ("h-empty", None, "", ""),
        ("i-specific", None, "", ""),
        ("j-limit", None, "", ""),
        ("k-some", Some(1), "UNAVAILABLE", "unloaded"),
        (
            "k-some",
            Some(2),
            "UNAVAILABLE",
            "Unavailable: no such version",
        ),
        ("k-some", Some(3), "UNAVAILABLE", "unloaded"),
        (
            "l-twice",
            None,
            "UNAVAILABLE",
            "model appears in two or more repositories",
        ),
        ("m..", Some(4), "READY", ""),
        ("m..", Some(9), "READY", ""),
    ]
    .into_iter()
    .map(|(name, version, state, reason)| row(name, version, state, reason))
    .collect()
}

/// What the table in the log says of models that were not loaded.
fn check_summary(server: &Server) {
    let summary = server.lifecycle().summary();
    let status = |name: &str| {
        summary
            .iter()
            .find(|row| row[0] == name)
            .map(|row| (row[1].as_str(), row[2].as_str()))
    };
    assert_eq!(
        status("h-empty"),
        Some(("-", "Not loaded: No model version was found"))
    );
    assert_eq!(status("a-good"), Some(("1", "READY")));
    let (version, reason) = status("f-name").unwrap();
    assert_eq!(version, "-");
    assert_eq!(
        reason,
        "UNAVAILABLE: Invalid argument: unexpected directory name 'f-name' for model 'other', \
         directory name must equal model name"
    );
    assert!(
        status("g-syntax").unwrap().1.contains("max_batch"),
        "names the field: {summary:?}"
    );
}

/// Whatever came up beside a failure is gone again, and instances go before their model.
fn check_what_is_gone(host: &Host) {
    let events = host.events.all();
    for (model, instances) in [("k-some:1", 1), ("k-some:3", 1), ("e-instance:1", 2)] {
        let gone = events
            .iter()
            .position(|event| *event == format!("drop model {model}"))
            .expect(model);
        assert_eq!(
            host.events.count(&format!("drop instance {model}")),
            instances,
            "{model}"
        );
        assert!(
            events
                .iter()
                .skip(gone)
                .all(|event| !event.starts_with(&format!("drop instance {model}"))),
            "{events:?}"
        );
    }
}

fn check_refusals(server: &Server) {
    let snapshot = server.registry().snapshot();
    let refused = |name: &str, version| snapshot.find(name, version).map(|_| ()).unwrap_err();
    let table = [
        (
            "nosuch",
            None,
            Code::NotFound,
            "Request for unknown model: 'nosuch' is not found",
        ),
        (
            "f-name",
            None,
            Code::NotFound,
            "Request for unknown model: 'f-name' is not found",
        ),
        (
            "l-twice",
            None,
            Code::NotFound,
            "Request for unknown model: 'l-twice' is not found",
        ),
        (
            "h-empty",
            None,
            Code::NotFound,
            "Request for unknown model: 'h-empty' has no available versions",
        ),
        (
            "k-some",
            None,
            Code::NotFound,
            "Request for unknown model: 'k-some' has no available versions",
        ),
        (
            "k-some",
            Some(2),
            Code::Unavailable,
            "Request for unknown model: 'k-some' version 2 is not at ready state",
        ),
        (
            "k-some",
            Some(5),
            Code::NotFound,
            "Request for unknown model: 'k-some' version 5 is not found",
        ),
        (
            "m..",
            Some(1),
            Code::NotFound,
            "Request for unknown model: 'm..' version 1 is not found",
        ),
    ];
    for (name, version, code, message) in table {
        let error = refused(name, version);
        assert_eq!((error.code, &*error.message), (code, message));
    }
}

#[test]
fn readiness_follows_the_strict_rule() {
    let table = [
        (("good", ""), true),
        (("bad", "nonsense: 1"), true),
        (("failing", &*fault("load")), false),
        (
            (
                "versionless",
                "version_policy { specific { versions: [ 9 ] } }",
            ),
            false,
        ),
    ];
    for ((name, extra), is_ready) in table {
        let directory = Directory::new();
        directory.model("r", "other", &["1"], "");
        directory.model("r", name, &["1"], extra);
        let (_, strict) = start(options(&directory, &["r"]));
        assert_eq!(strict.readiness().wait(), is_ready, "{name}");
        let (_, lenient) = start(EngineOptions {
            strict_readiness: false,
            ..options(&directory, &["r"])
        });
        assert!(lenient.readiness().wait() && lenient.is_live(), "{name}");
        strict.stop().unwrap();
        lenient.stop().unwrap();
        assert!(
            !lenient.readiness().wait() && !lenient.is_live() && lenient.is_stopping(),
            "{name}"
        );
    }
}

#[test]
fn a_failure_at_the_start_ends_the_server_if_so_asked() {
    let directory = Directory::new();
    directory.model("r", "good", &["1"], "");
    directory.model("r", "bad", &["1"], &fault("load"));
    let host = Arc::new(Host::default());
    let options = EngineOptions {
        exit_on_error: true,
        ..options(&directory, &["r"])
    };
    let error =
        Server::start(options, Arc::clone(&host) as Arc<dyn crate::PluginHost>).unwrap_err();
    let expected =
        "failed to load all models: model 'bad', version 1: Internal: the weights are broken";
    assert_eq!((error.code, &*error.message), (Code::Internal, expected));
    let events = host.events.all();
    assert_eq!(
        events[events.len() - 3..],
        [
            "drop instance good:1 good_0",
            "drop model good:1",
            "finalize"
        ]
    );
    let host = Arc::new(Host::default());
    let error = Server::start(EngineOptions::default(), host).unwrap_err();
    assert_eq!(
        (error.code, &*error.message),
        (Code::InvalidArg, "--model-repository must be specified")
    );
}

#[test]
fn without_one_of_its_repositories_a_server_serves_nothing() {
    let directory = Directory::new();
    directory.model("r", "good", &["1"], "");
    directory.file("file", "");
    for (missing, words) in [
        ("missing", "failed to stat file "),
        ("file", "failed to open directory "),
    ] {
        let path = directory.path(missing).display().to_string();
        let refused = Server::start(
            EngineOptions {
                exit_on_error: true,
                ..options(&directory, &["r", missing])
            },
            Arc::new(Host::default()),
        )
        .unwrap_err();
        assert_eq!(refused.code, Code::Internal);
        assert!(
            refused.message.starts_with(&format!("{words}{path}")),
            "{refused}"
        );
        let (host, server) = start(options(&directory, &[missing, "r"]));
        assert!(!server.is_live() && !server.readiness().wait());
        assert_eq!(host.events.count("load good:1"), 0);
        let not_ready = |outcome: Result<(), Error>| {
            let error = outcome.unwrap_err();
            assert_eq!(
                (error.code, &*error.message),
                (Code::Unavailable, "Server not ready")
            );
        };
        not_ready(server.check_serving());
        not_ready(server.registry().snapshot().find("good", None).map(|_| ()));
        not_ready(server.model_readiness("good", None).map(|_| ()));
        not_ready(server.load_model("good", crate::Overrides::default()));
        server.stop().unwrap();
    }
}

#[test]
fn versions_load_concurrently_and_again_after_a_failure() {
    let directory = Directory::new();
    directory.model("r", "one", &["1"], &fault("meet"));
    directory.model("r", "two", &["1"], &fault("meet"));
    directory.model("r", "third", &["1"], &fault("flaky"));
    let (host, server) = start(EngineOptions {
        model_load_thread_count: 2,
        model_load_retry_count: 2,
        ..options(&directory, &["r"])
    });
    assert!(server.readiness().wait(), "{:?}", server.index(false));
    assert_eq!(host.events.count("load third:1"), 3);
    assert!(
        server
            .registry()
            .snapshot()
            .find("one", None)
            .unwrap()
            .load_duration()
            > Duration::ZERO
    );
    server.stop().unwrap();
}

#[test]
fn the_backend_completes_what_the_file_leaves_open() {
    let directory = Directory::new();
    directory.file(
        "r/partial/config.pbtxt",
        &format!("backend: 'fake' max_batch_size: 2 {}", fault("complete")),
    );
    directory.folder("r/partial/1");
    directory.file(
        "r/incomplete/config.pbtxt",
        "backend: 'fake' input [ { name: 'X' } ]",
    );
    directory.folder("r/incomplete/1");
    let (_, server) = start(options(&directory, &["r"]));
    let snapshot = server.registry().snapshot();
    let config = Arc::clone(&snapshot.find("partial", None).unwrap().config);
    assert_eq!(
        (&*config.inputs[0].name, config.inputs[0].dims.as_slice()),
        ("X", &[4_i64][..])
    );
    assert_eq!(config.instance_groups[0].count, 1);
    let error = snapshot.find("incomplete", Some(1)).unwrap_err();
    assert_eq!(error.code, Code::Unavailable, "{error}");
    let rows = server.index(false);
    assert!(
        rows[0]
            .reason
            .starts_with("Invalid argument: model input 'X'")
            || rows[0].reason.contains("data_type"),
        "{rows:?}"
    );
    server.stop().unwrap();
    let (_, strict) = start(EngineOptions {
        auto_complete: false,
        ..options(&directory, &["r"])
    });
    let rows = strict.index(false);
    assert!(
        rows.iter().all(|row| row.state != "READY"),
        "nothing may be left open: {rows:?}"
    );
    strict.stop().unwrap();
}

#[test]
fn crowded_and_strange_directories_do_no_harm() {
    let directory = Directory::new();
    directory.model("r", "crowded", &["1", "3"], "");
    for index in 0..3_000 {
        directory.folder(&format!("r/crowded/junk-{index}"));
        directory.file(&format!("r/crowded/3/file-{index}"), "");
    }
    directory.folder("r/config-is-a-directory/config.pbtxt");
    directory.folder("r/config-is-a-directory/1");
    directory.file("r/binary/config.pbtxt", "\u{0}\u{1}\u{2}");
    directory.folder("r/binary/1");
    directory.folder("r/looping");
    std::os::unix::fs::symlink("config.pbtxt", directory.path("r/looping/config.pbtxt")).unwrap();
    directory.model("outside", "target", &["1"], "");
    std::os::unix::fs::symlink(directory.path("outside/target"), directory.path("r/target"))
        .unwrap();
    for name in ["...", "..model", "a\nb", "größe", "mode l"] {
        directory.model("r", name, &["1"], "");
    }
    let (_, server) = start(options(&directory, &["r"]));
    let ready: Vec<_> = server.index(true).into_iter().map(|row| row.name).collect();
    assert_eq!(
        ready,
        [
            "...", "..model", "a\nb", "crowded", "größe", "mode l", "target"
        ]
    );
    assert_eq!(
        server
            .registry()
            .snapshot()
            .find("crowded", None)
            .unwrap()
            .version,
        3
    );
    for name in ["config-is-a-directory", "binary", "looping"] {
        let rows: Vec<_> = server
            .index(false)
            .into_iter()
            .filter(|row| row.name == name)
            .collect();
        assert_eq!(rows, [row(name, None, "", "")]);
    }
    server.stop().unwrap();
}
