//! Configurations from other places than `config.pbtxt`, and the repository index while a model
//! loads.

use conch_engine::testing::{Directory, until};

use super::control::{explicit, plain, shown};
use super::fake::fault;
use super::start;
use crate::options::EngineOptions;

const TENSORS: &str = concat!(
    r#""input":[{"name":"IN","data_type":"TYPE_INT32","dims":[1]}],"output":[{"name":"OUT","#,
    r#""data_type":"TYPE_INT32","dims":[1]}]"#
);

#[test]
fn json_stands_for_the_text_that_is_not_there() {
    let directory = Directory::new();
    directory.folder("r/m/1");
    let json = |size: u32| format!(r#"{{"backend":"fake","max_batch_size":{size},{TENSORS}}}"#);
    directory.file("r/m/config.json", &json(5));
    let (host, server) = start(explicit(&directory, &["r"]));
    let batch_size = || {
        let snapshot = server.registry().snapshot();
        snapshot.find("m", None).unwrap().config.max_batch_size
    };
    plain(&server, "m").unwrap();
    assert_eq!(batch_size(), 5);
    directory.file("r/m/config.json", &json(6));
    plain(&server, "m").unwrap();
    assert_eq!(batch_size(), 6);
    // Another form of the same is no change.
    directory.file("r/m/config.json", &format!(" {}", json(6)));
    plain(&server, "m").unwrap();
    assert_eq!(host.events.count("load m"), 2);
    directory.model("r", "m", &["1"], "");
    plain(&server, "m").unwrap();
    assert_eq!(batch_size(), 8, "the text goes before");
    std::fs::remove_file(directory.path("r/m/config.pbtxt")).unwrap();
    directory.file("r/m/config.json", r#"{"backend":"fake","max_batch":5}"#);
    plain(&server, "m").unwrap_err();
    assert_eq!(batch_size(), 8);
    server.stop().unwrap();
}

#[test]
fn variables_of_the_environment_are_put_in_on_request() {
    let directory = Directory::new();
    // PATH is set wherever tests run.
    let more = "metric_tags { key: 'path' value: '${PATH}' } metric_tags \
                { key: 'other' value: '${CONCH_NO_SUCH:-x}' }";
    directory.model("r", "m", &["1"], more);
    directory.model(
        "r",
        "unset",
        &["1"],
        "metric_tags { key: 'a' value: '${CONCH_NO_SUCH}' }",
    );
    let tags = |expands_config| {
        let (_, server) = start(EngineOptions {
            expands_config,
            ..explicit(&directory, &["r"])
        });
        plain(&server, "m").unwrap();
        assert_eq!(plain(&server, "unset").is_err(), expands_config);
        let snapshot = server.registry().snapshot();
        let tags = snapshot.find("m", None).unwrap().config.metric_tags.clone();
        server.stop().unwrap();
        tags
    };
    assert_eq!(tags(false)["path"], "${PATH}");
    let put_in = tags(true);
    assert_eq!(put_in["path"], std::env::var("PATH").unwrap());
    assert_eq!(put_in["other"], "x");
}

#[test]
fn the_index_says_how_far_a_load_is() {
    let directory = Directory::new();
    // Its load waits for another.
    for name in ["one", "two"] {
        directory.model("r", name, &["1"], &fault("meet"));
    }
    let (_, server) = start(EngineOptions {
        model_load_thread_count: 2,
        ..explicit(&directory, &["r"])
    });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| plain(&server, "one"));
        until("the first load", || {
            shown(&server).contains(&"one:1 initializing the model".to_owned())
        });
        let second = scope.spawn(|| plain(&server, "two"));
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(shown(&server), ["one:1 READY", "two:1 READY"]);
    let progress = conch_engine::execution::progress::LoadProgress::default();
    progress.reach("one");
    assert_eq!(progress.text(), "one");
    progress.begin_attempt(2, 3);
    progress.reach(format_args!("{} of {}", 1, 2));
    assert_eq!(progress.text(), "attempt 2 of 3: 1 of 2");
    server.stop().unwrap();
}
