//! Requests of ensembles: what their steps are asked, and how they end.

use super::*;

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
    until("the end of new requests", || {
        submit(&server, "outer", &refused).is_err()
    });
    host.gate.open();
    stopping.join().unwrap().unwrap();
    let admitted = count.0.load(Ordering::SeqCst);
    assert_eq!(admitted, 1, "its later steps were let in");
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
        sequence_flags: SequenceFlags::START | SequenceFlags::END,
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
    let expected = "asked a:1 id=me Text(\"talk\") flags=3 priority=0 timeout=1000000 [Parameter \
                    { name: \"key\", value: Int(7) }] outputs=[0]";
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
            "in ensemble 'whole', [request id: <id_unknown>] unexpected deadlock, at least one \
             output is not set while no more ensemble steps can be made"
        )
    );
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
                "load failed for model '{name}': a request of ensemble '{name}', or of one that it \
                 is part of, runs more than 65536 steps\n"
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
    until("the execution", || pending() == 0);
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
        until("the places", || {
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
        let ask = |id: u64, sequence_flags: SequenceFlags| {
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
        let (executing, _held) = ask(1, SequenceFlags::START);
        until("the execution", || pending() == 0);
        let (next, withdrawn) = ask(1, SequenceFlags::NONE);
        let (other, _waits) = ask(2, SequenceFlags::START | SequenceFlags::END);
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
    until("the answers", || {
        done.0.load(Ordering::SeqCst) == THREADS * EACH
    });
    // Each is answered once, with what it has come to.
    assert_eq!(cancelled.wait(THREADS * EACH / 3).len(), THREADS * EACH / 3);
    server.stop().unwrap();
}
