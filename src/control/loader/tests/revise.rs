//! Updates in place, on the fake backend.

use conch_engine::SequenceFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use conch_engine::testing::{Directory, until};

use super::control::{explicit, plain, settle, shown};
use super::fake::{Host, fault};
use super::{Count, start, submit, submit_as};
use crate::Server;

fn groups(text: &str) -> String {
    format!("instance_group [ {text} ]")
}

fn instances(host: &Host) -> Vec<String> {
    let events = host.events.all();
    let made = events
        .iter()
        .filter_map(|event| event.strip_prefix("instance m:1 "));
    let mut present: Vec<String> = made.map(str::to_owned).collect();
    for gone in events
        .iter()
        .filter_map(|event| event.strip_prefix("drop instance m:1 "))
    {
        let place = present.iter().position(|name| name == gone);
        present.remove(place.expect("it was made"));
    }
    present
}

fn answered(count: &Count, total: usize) {
    until("the answer", || count.0.load(Ordering::SeqCst) == total);
}

fn version(server: &Server) -> Arc<conch_engine::ModelVersion> {
    let snapshot = server.registry().snapshot();
    Arc::clone(snapshot.find("m", None).unwrap())
}

fn shown_groups(server: &Server) -> usize {
    version(server).reported_config().instance_groups.len()
}

#[test]
fn instances_come_and_go_and_equal_ones_stay() {
    let directory = Directory::new();
    let cpu = "{ kind: KIND_CPU count: 2 }";
    directory.model("r", "m", &["1"], &groups(cpu));
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    let before = version(&server);
    for (text, expected, made_count) in [
        // One more; the others stay.
        (
            "{ kind: KIND_CPU count: 3 }",
            &["m_0_0", "m_0_1", "m_0_2"][..],
            3,
        ),
        // Their name is not what they are.
        ("{ name: 'other' count: 1 }", &["m_0_0"], 3),
        (
            "{ kind: KIND_CPU }, { kind: KIND_MODEL }",
            &["m_0_0", "m_1_0"],
            4,
        ),
        // Another host policy makes another instance.
        (
            "{ kind: KIND_CPU host_policy: 'p' }, { kind: KIND_MODEL }",
            &["m_1_0", "m_0_0"],
            5,
        ),
        (
            "{ kind: KIND_CPU passive: true }, { kind: KIND_MODEL }",
            &["m_1_0", "m_0_0"],
            6,
        ),
        ("{ kind: KIND_MODEL }", &["m_1_0"], 6),
    ] {
        directory.model("r", "m", &[], &groups(text));
        plain(&server, "m").unwrap();
        assert_eq!(
            instances(&host),
            expected,
            "{text}: those that leave are gone"
        );
        assert_eq!(host.events.count("instance m:1"), made_count, "{text}");
        assert_eq!(host.events.count("load m:1"), 1, "{text}");
        assert!(Arc::ptr_eq(&before, &version(&server)), "{text}");
        let count = Arc::new(Count::default());
        submit(&server, "m", &count).unwrap();
        answered(&count, 1);
    }
    assert_eq!(shown_groups(&server), 1);
    assert_eq!(
        before.statistics.totals().inference_count,
        6,
        "it counts on"
    );
    // Nobody left who would execute: that takes a load.
    directory.model("r", "m", &[], &groups("{ kind: KIND_CPU passive: true }"));
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(host.events.count("load m:1"), 2);
    // As does anything else that changes with them.
    let more = format!("{} metric_tags {{ key: 'a' value: 'b' }}", groups(cpu));
    directory.model("r", "m", &[], &more);
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(host.events.count("load m:1"), 3);
    server.stop().unwrap();
    assert_eq!(instances(&host), [""; 0]);
    assert_eq!(host.events.count("drop model"), 3);
}

#[test]
fn what_cannot_be_made_changes_nothing() {
    let directory = Directory::new();
    let versions = "version_policy { all { } }";
    let more = |text: &str| format!("{versions} {} {}", fault("m_0_1"), groups(text));
    directory.model("r", "m", &["1"], &more("{ kind: KIND_CPU }"));
    let (_, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    let before = version(&server);
    directory.model("r", "m", &[], &more("{ kind: KIND_CPU count: 3 }"));
    for _ in 0..2 {
        let error = plain(&server, "m").unwrap_err();
        assert_eq!(
            error.message,
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no room for \
             m_0_1;\n"
        );
        assert_eq!(shown(&server), ["m:1 READY"]);
        assert!(Arc::ptr_eq(&before, &version(&server)));
        assert_eq!(shown_groups(&server), 1);
        assert_eq!(before.reported_config().instance_groups[0].count, 1);
    }
    let count = Arc::new(Count::default());
    submit(&server, "m", &count).unwrap();
    answered(&count, 1);
    server.stop().unwrap();
}

#[test]
fn a_second_version_that_fails_takes_back_what_was_made_for_the_first() {
    let directory = Directory::new();
    let versions = "version_policy { all { } }";
    let more = |text: &str| format!("{versions} {} {}", fault("load-2"), groups(text));
    directory.model("r", "m", &["1"], &more("{ kind: KIND_CPU }"));
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    let made_count = host.events.count("instance m:1");
    directory.model("r", "m", &["2"], &more("{ kind: KIND_CPU count: 2 }"));
    plain(&server, "m").unwrap_err();
    assert_eq!(host.events.count("instance m:1"), made_count + 1);
    assert_eq!(host.events.count("load m:1"), 1);
    assert_eq!(instances(&host), ["m_0_0"]);
    server.stop().unwrap();
}

#[test]
fn another_policy_alone_is_shown_by_what_stays() {
    let directory = Directory::new();
    directory.model("r", "m", &["1", "2"], "version_policy { all { } }");
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    directory.model(
        "r",
        "m",
        &[],
        "version_policy { specific { versions: [ 2 ] } }",
    );
    plain(&server, "m").unwrap();
    settle(&server);
    assert_eq!(shown(&server), ["m:1 unloaded", "m:2 READY"]);
    assert_eq!(host.events.count("load m:2"), 1);
    let shown = version(&server).reported_config();
    assert_eq!(
        shown.version_policy,
        conch_config::VersionPolicy::Specific(vec![2])
    );
    server.stop().unwrap();
}

#[test]
fn no_request_fails_while_instances_come_and_go() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], &groups("{ kind: KIND_CPU count: 2 }"));
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    let is_over = AtomicBool::new(false);
    let submitted: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let (server, is_over) = (&server, &is_over);
                scope.spawn(move || {
                    let mut submitted = 0;
                    let count = Arc::new(Count::default());
                    while !is_over.load(Ordering::Relaxed) {
                        submit(server, "m", &count).unwrap();
                        submitted += 1;
                        // One at a time, so that cores sleep and are woken.
                        answered(&count, submitted);
                    }
                    submitted
                })
            })
            .collect();
        for round in 0..40 {
            let text = format!("{{ kind: KIND_CPU count: {} }}", 1 + round % 3);
            directory.model("r", "m", &[], &groups(&text));
            plain(&server, "m").unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    assert_eq!(host.events.count("load m:1"), 1);
    assert_eq!(
        instances(&host).len(),
        1,
        "a load waits for those that leave"
    );
    assert!(host.events.count("drop instance m:1") > 20);
    assert_eq!(
        version(&server).statistics.totals().inference_count,
        submitted as u64
    );
    // Numbers of cores are used once: in the end it takes a load.
    for round in 0..90 {
        let text = format!("{{ kind: KIND_CPU count: {} }}", 1 + round % 2);
        directory.model("r", "m", &[], &groups(&text));
        plain(&server, "m").unwrap();
    }
    settle(&server);
    assert_eq!(host.events.count("load m:1"), 2);
    server.stop().unwrap();
    assert_eq!(instances(&host), [""; 0]);
}

#[test]
fn numbers_are_inherited_in_whatever_order_versions_go() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    let (host, server) = start(explicit(&directory, &["r"]));
    let reload = |number: u32| {
        directory.file(&format!("r/m/1/file-{number}"), "");
        plain(&server, "m").unwrap();
        let count = Arc::new(Count::default());
        submit(&server, "m", &count).unwrap();
        answered(&count, 1);
        version(&server)
    };
    let count_of = |version: &conch_engine::ModelVersion| version.metric_totals().inference_count;
    plain(&server, "m").unwrap();
    let first = reload(0);
    // Held back, so that it goes after the next one.
    let late = conch_engine::model::version::InFlightPermit::new(&first).unwrap();
    reload(1);
    let third = reload(2);
    // After what was there before the first.
    until("the end of the second", || {
        host.events.count("drop model") == 2
    });
    assert_eq!(count_of(&third), 3);
    let span = conch_engine::model::stats::ExecutionSpan::default();
    first
        .statistics
        .report_request(None, true, &conch_engine::Timestamps::default(), 1, &span);
    assert_eq!(count_of(&third), 4, "it counts on");
    drop(late);
    settle(&server);
    until("the first", || {
        count_of(&third);
        Arc::strong_count(&first) == 1
    });
    assert_eq!(count_of(&third), 4);
    assert_eq!(count_of(&reload(3)), 5);
    server.stop().unwrap();
}

/// Sequences that go on while their model's instances come and go: each asks for one request at a
/// time.
#[test]
fn sequences_go_on_while_instances_come_and_go() {
    const STRATEGIES: [&str; 2] = ["direct { }", "oldest { max_candidate_sequences: 2 }"];
    for strategy in STRATEGIES {
        let directory = Directory::new();
        let config = |count: usize| {
            format!(
                "sequence_batching {{ max_sequence_idle_microseconds: 60000000 {strategy} }} {}",
                groups(&format!("{{ kind: KIND_CPU count: {count} }}"))
            )
        };
        directory.model("r", "m", &["1"], &config(2));
        let (host, server) = start(explicit(&directory, &["r"]));
        plain(&server, "m").unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in 0..3_u64 {
                let (server, is_over) = (&server, &is_over);
                scope.spawn(move || send_sequences(server, client, is_over));
            }
            for round in 0..20 {
                directory.model("r", "m", &[], &config(1 + round % 3));
                plain(&server, "m").unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(host.events.count("load m:1"), 1, "{strategy}");
        // 1, 2, 3, 1, ...: as many as in the last round.
        until("those that left", || instances(&host).len() == 2);
        server.stop().unwrap();
        assert_eq!(instances(&host), [""; 0]);
    }
}

/// Sequences of four requests each, one turn after the other, until `is_over`; odd turns are two
/// sequences side by side.
fn send_sequences(server: &Server, client: u64, is_over: &AtomicBool) {
    let count = Arc::new(Count::default());
    let mut submitted = 0;
    let mut turn = 0;
    while turn == 0 || !is_over.load(Ordering::Relaxed) {
        for step in 0..4 {
            for more in 0..=turn % 2 {
                let id = 1 + 10 * client + more;
                let draft = conch_engine::Draft {
                    correlation_id: conch_engine::CorrelationId::Unsigned(id),
                    sequence_flags: SequenceFlags::START.when(step == 0)
                        | SequenceFlags::END.when(step == 3),
                    ..conch_engine::Draft::default()
                };
                let completion = Arc::clone(&count) as Arc<dyn conch_engine::Completion>;
                submit_as(server, "m", &completion, draft).unwrap();
                submitted += 1;
            }
            answered(&count, submitted);
        }
        turn += 1;
    }
}

#[test]
fn an_instance_with_sequences_does_not_hold_up_the_end() {
    let directory = Directory::new();
    let config = |count: usize| {
        format!(
            "sequence_batching {{ max_sequence_idle_microseconds: 60000000 direct {{ }} }} {}",
            groups(&format!("{{ kind: KIND_CPU count: {count} }}"))
        )
    };
    directory.model("r", "m", &["1"], &config(2));
    let (host, server) = start(explicit(&directory, &["r"]));
    plain(&server, "m").unwrap();
    let count = Arc::new(Count::default());
    for id in 1..=2 {
        let draft = conch_engine::Draft {
            correlation_id: conch_engine::CorrelationId::Unsigned(id),
            sequence_flags: SequenceFlags::START,
            ..conch_engine::Draft::default()
        };
        let completion = Arc::clone(&count) as Arc<dyn conch_engine::Completion>;
        submit_as(&server, "m", &completion, draft).unwrap();
        answered(&count, id as usize);
    }
    directory.model("r", "m", &[], &config(1));
    plain(&server, "m").unwrap();
    assert_eq!(instances(&host).len(), 2, "it has a sequence");
    server.stop().unwrap();
    assert_eq!(instances(&host), [""; 0]);
}
