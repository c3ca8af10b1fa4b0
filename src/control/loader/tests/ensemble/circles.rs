//! Ensembles in ensembles: circles, and nesting without end.

use super::*;

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
                "load failed for model 'b': circular dependency between ensembles: b -> ... -> \
                 {last} -> b\n"
            )
        );
        for name in ["b", "inner", "outer"] {
            run(&server, name);
        }
    }
    // Not by a request that brings the configuration, either.
    let steps = concat!(
        r#"{"model_name":"outer","model_version":-1,"input_map":{"IN":"IN"},"#,
        r#""output_map":{"OUT":"OUT"}}"#
    );
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
                "{{\"model_name\":\"{model}\",\"model_version\":-1,\
                     \"input_map\":{{\"IN\":\"IN\"}},\"output_map\":{{\"OUT\":\"OUT\"}}}}"
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
