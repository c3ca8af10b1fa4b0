//! Loads of what is loaded already, on the fake backend: what changes, what stays, and what becomes
//! of requests and counts meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use conch_engine::testing::{Directory, until};

use super::control::{config, explicit, plain, settle, shown, with_files};
use super::fake::fault;
use super::{Count, start, submit};
use crate::Server;
use crate::load_overrides::Overrides;
use crate::options::EngineOptions;

#[test]
fn a_failed_reload_keeps_the_old_one() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    let count = Arc::new(Count::default());
    let before = Arc::clone(server.registry().snapshot().find("m", None).unwrap());
    for extra in [fault("load"), "no_such_field: 1".to_owned()] {
        directory.model("r", "m", &["1"], &extra);
        plain(&server, "m").unwrap_err();
        assert!(server.readiness().wait(), "{extra}");
        let now = Arc::clone(server.registry().snapshot().find("m", None).unwrap());
        assert!(Arc::ptr_eq(&before, &now), "{extra}");
        submit(&server, "m", &count).unwrap();
    }
    // A further version that fails does not take the good one along.
    directory.model(
        "r",
        "m",
        &["1", "2"],
        &format!("version_policy {{ all {{ }} }} {}", fault("load-2")),
    );
    plain(&server, "m").unwrap_err();
    assert_eq!(
        shown(&server),
        ["m:1 READY", "m:2 Unavailable: no such version"]
    );
    // What failed is tried again, and then takes the place.
    std::fs::remove_dir(directory.path("r/m/2")).unwrap();
    directory.model("r", "m", &["1"], "");
    plain(&server, "m").unwrap();
    let now = Arc::clone(server.registry().snapshot().find("m", Some(1)).unwrap());
    assert!(Arc::ptr_eq(&before, &now), "as it was");
    directory.file("r/m/1/weights", "new");
    plain(&server, "m").unwrap();
    settle(&server);
    let now = Arc::clone(server.registry().snapshot().find("m", Some(1)).unwrap());
    assert!(!Arc::ptr_eq(&before, &now));
    assert!(host.events.count("drop model m:1") >= 1);
    server.stop().unwrap();
}

#[test]
fn an_override_lasts_until_the_files_change() {
    let directory = Directory::new();
    directory.model("r", "m", &["1", "2"], "");
    let (host, server) = start(explicit(&directory, &["r"]));
    let all = r#","version_policy":{"all":{}}"#;
    server.load_model("m", config("m", all)).unwrap();
    assert_eq!(shown(&server), ["m:1 READY", "m:2 READY"]);
    for _ in 0..2 {
        plain(&server, "m").unwrap();
        assert_eq!(shown(&server), ["m:1 READY", "m:2 READY"]);
    }
    assert_eq!(host.events.count("load m:1"), 1);
    // Another configuration comes in its place, and one that fails changes nothing.
    let first = r#","version_policy":{"specific":{"versions":[1]}}"#;
    server.load_model("m", config("m", first)).unwrap();
    server.load_model("m", config("m", "}")).unwrap_err();
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(shown(&server), ["m:1 READY", "m:2 unloaded"]);
    directory.file("r/m/labels.txt", "a");
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(shown(&server), ["m:1 unloaded", "m:2 READY"]);
    // Nor does it outlive its model.
    server.load_model("m", config("m", all)).unwrap();
    server.unload_model("m", false).unwrap();
    settle(&server);
    plain(&server, "m").unwrap();
    assert_eq!(shown(&server), ["m:1 unloaded", "m:2 READY"]);
    server.stop().unwrap();
}

#[test]
fn an_override_may_last_until_the_next_plain_load() {
    let directory = Directory::new();
    directory.model("r", "m", &["1", "2"], "");
    let (host, server) = start(EngineOptions {
        loads_config_once: true,
        ..explicit(&directory, &["r"])
    });
    let all = r#","version_policy":{"all":{}}"#;
    let refused = [
        (
            Overrides {
                config: Some("{".into()),
                files: Vec::new(),
            },
            "no JSON",
        ),
        (config("m", r#","no_such_field":1"#), "unknown field"),
        (config("other", ""), "another name"),
        (
            with_files(Overrides::default(), &["file:1/x"]),
            "files alone",
        ),
        (with_files(config("m", ""), &["file:../x"]), "outside"),
    ];
    for (overrides, what) in refused {
        let error = server.load_model("m", overrides).unwrap_err();
        assert!(
            error
                .message
                .ends_with("failed to poll from model repository"),
            "{what}: {error}"
        );
    }
    assert_eq!(shown(&server), ["m"]);
    for _ in 0..2 {
        server.load_model("m", config("m", all)).unwrap();
    }
    assert_eq!(shown(&server), ["m:1 READY", "m:2 READY"]);
    assert_eq!(host.events.count("load m:1"), 1, "the same again");
    let more = r#","version_policy":{"all":{}},"metric_tags":{"a":"b"}"#;
    server.load_model("m", config("m", more)).unwrap();
    assert_eq!(host.events.count("load m:1"), 2);
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(shown(&server), ["m:1 unloaded", "m:2 READY"]);
    plain(&server, "m").unwrap();
    assert_eq!(
        host.events.count("load m:2"),
        3,
        "and the next plain one changes nothing"
    );

    // Files: only those, in a directory that lives as long as the model.
    server
        .load_model("m", with_files(config("m", ""), &["file:7/a/weights"]))
        .unwrap();
    settle(&server);
    assert_eq!(shown(&server)[2], "m:7 READY");
    let path = host.paths.lock().unwrap().last().cloned().unwrap();
    assert_eq!(std::fs::read(path.join("7/a/weights")).unwrap(), b"weights");
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(shown(&server)[1..], ["m:2 READY", "m:7 unloaded"]);
    until("the directory goes with the model", || !path.exists());

    // A model that lies nowhere serves, but is not listed.
    server
        .load_model("fresh", with_files(config("fresh", ""), &["1/weights"]))
        .unwrap();
    assert!(server.registry().snapshot().find("fresh", None).is_ok());
    assert!(shown(&server).iter().all(|row| !row.starts_with("fresh")));
    plain(&server, "fresh").unwrap_err();
    assert!(server.registry().snapshot().find("fresh", None).is_ok());
    server.stop().unwrap();
}

#[test]
fn only_what_changed_is_loaded_anew() {
    let directory = Directory::new();
    let policy =
        |versions: &str| format!("version_policy {{ specific {{ versions: [ {versions} ] }} }}");
    directory.model("r", "m", &["1", "2", "3"], &policy("1, 2"));
    let (host, server) = start(explicit(&directory, &["r"]));
    let loads = || [1, 2, 3].map(|version| host.events.count(&format!("load m:{version}")));
    plain(&server, "m").unwrap();
    assert_eq!(loads(), [1, 1, 0]);
    directory.model("r", "m", &[], &policy("2, 3"));
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(loads(), [1, 1, 1], "another policy");
    assert_eq!(shown(&server), ["m:1 unloaded", "m:2 READY", "m:3 READY"]);
    directory.file("r/m/3/weights", "new");
    plain(&server, "m").unwrap();
    assert_eq!(loads(), [1, 1, 2], "one version's files");
    directory.file("r/m/labels.txt", "new");
    plain(&server, "m").unwrap();
    assert_eq!(loads(), [1, 2, 3], "files of all");
    directory.model(
        "r",
        "m",
        &[],
        &format!("{} metric_tags {{ key: 'a' value: 'b' }}", policy("2, 3")),
    );
    plain(&server, "m").unwrap();
    assert_eq!(loads(), [1, 3, 4], "the configuration");
    // What is kept serves on while another version fails, and is not taken down with it.
    directory.model(
        "r",
        "m",
        &[],
        &format!("{} metric_tags {{ key: 'a' value: 'b' }}", policy("2")),
    );
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(
        shown(&server),
        ["m:1 unloaded", "m:2 READY", "m:3 unloaded"]
    );
    assert_eq!(loads(), [1, 3, 4]);
    server.stop().unwrap();
    assert_eq!(host.events.count("drop model"), 8);
}

#[test]
fn metrics_count_on_through_reloads_and_statistics_anew() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    let (_, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    let count = Arc::new(Count::default());
    let infer = |total: usize| {
        submit(&server, "m", &count).unwrap();
        until("the answer", || count.0.load(Ordering::SeqCst) == total);
    };
    let shown = || {
        let text = server.metrics_text();
        let prefix = "nv_inference_count{model=\"m\",version=\"1\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(prefix));
        let statistics = server.statistics(Some("m"), None).unwrap();
        (line.map(str::to_owned), statistics[0].inference_count)
    };
    let line = |number: u64| Some(number.to_string());
    for round in 0..3_u64 {
        infer(round as usize * 2 + 1);
        infer(round as usize * 2 + 2);
        assert_eq!(shown(), (line(round * 2 + 2), 2), "round {round}");
        directory.file(&format!("r/m/1/file-{round}"), "");
        plain(&server, "m").unwrap();
        assert_eq!(shown(), (line(round * 2 + 2), 0), "reloaded");
    }
    server.unload_model("m", false).unwrap();
    settle(&server);
    plain(&server, "m").unwrap();
    assert_eq!(shown(), (line(0), 0), "unloaded in between");
    server.stop().unwrap();
}

/// Submits requests one after the other; returns how many.
fn submit_until(server: &Server, count: &Arc<Count>, is_over: &AtomicBool) -> usize {
    let mut submitted = 0;
    while !is_over.load(Ordering::Relaxed) {
        // As a shard does: look again if the version was retired in between.
        match submit(server, "m", count) {
            Ok(()) => submitted += 1,
            Err(error) => assert!(error.message.ends_with("is not at ready state"), "{error}"),
        }
        if submitted % 64 == 0 {
            std::thread::yield_now();
        }
    }
    submitted
}

#[test]
fn no_request_fails_while_models_are_reloaded() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    let is_over = AtomicBool::new(false);
    let count = Arc::new(Count::default());
    let submitted: usize = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..3)
            .map(|_| {
                let (server, count, is_over) = (&server, &count, &is_over);
                scope.spawn(move || submit_until(server, count, is_over))
            })
            .collect();
        for index in 0..25 {
            let tag = format!(r#","metric_tags":{{"load":"{index}"}}"#);
            server.load_model("m", config("m", &tag)).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        senders
            .into_iter()
            .map(|sender| sender.join().unwrap())
            .sum()
    });
    until("every request is answered", || {
        count.0.load(Ordering::SeqCst) == submitted
    });
    until("all old ones are gone", || {
        host.events.count("drop model m:1") == 25
    });
    server.stop().unwrap();
}
