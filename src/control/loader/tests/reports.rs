//! What a server reports: statistics, metrics, and the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use conch_engine::Code;
use conch_engine::testing::Directory;

use super::fake::fault;
use super::{Count, options, start, submit};

#[test]
fn counts_reach_statistics_and_metrics() {
    let directory = Directory::new();
    directory.model(
        "r",
        "m",
        &["1"],
        "metric_tags { key: 'team' value: 'a\"b' }",
    );
    let (_, server) = start(options(&directory, &["r"]));
    let count = Arc::new(Count::default());
    submit(&server, "m", &count).unwrap();
    while count.0.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let [numbers] = server.statistics(None, None).unwrap().try_into().unwrap();
    assert_eq!((&*numbers.name, numbers.version), ("m", 1));
    assert_eq!((numbers.inference_count, numbers.execution_count), (1, 1));
    assert_eq!(
        (
            numbers.inference.success.count,
            numbers.inference.fail.count
        ),
        (1, 0)
    );
    assert_eq!(numbers.batches.len(), 1);
    assert!(numbers.last_inference_ms > 1_600_000_000_000);
    assert_eq!(server.statistics(Some("m"), None).unwrap().len(), 1);
    assert_eq!(
        server.statistics(Some("m"), Some(2)).unwrap_err().code,
        Code::NotFound
    );
    assert_eq!(
        server.statistics(Some("x"), None).unwrap_err().code,
        Code::NotFound
    );
    let text = server.metrics_text();
    let labels = r#"{_team="a\"b",model="m",version="1"}"#;
    for line in [
        format!("nv_inference_request_success{labels} 1"),
        format!("nv_inference_count{labels} 1"),
        format!("nv_inference_exec_count{labels} 1"),
        format!("nv_inference_pending_request_count{labels} 0"),
        r#"nv_inference_request_failure{_team="a\"b",model="m",reason="REJECTED",version="1"} 0"#
            .to_owned(),
        r#"nv_inference_request_failure{_team="a\"b",model="m",reason="OTHER",version="1"} 0"#
            .to_owned(),
        "# TYPE nv_inference_pending_request_count gauge".to_owned(),
        "# TYPE nv_cpu_utilization gauge".to_owned(),
    ] {
        assert!(
            text.lines().any(|seen| seen == line),
            "{line} is not in\n{text}"
        );
    }
    server.stop().unwrap();
    assert!(
        !server.metrics_text().contains("model=\"m\""),
        "the model is gone, and so are its numbers"
    );
}

#[test]
fn the_log_has_the_lines_that_operators_look_for() {
    let directory = Directory::new();
    directory.model("r", "logged", &["1", "2"], "version_policy { all { } }");
    directory.model("r", "unlogged", &["2"], &fault("load-2"));
    let path = directory.path("log");
    // Other tests write there as well meanwhile: only lines that name these models, or come in any
    // case, are looked for.
    conch_log::set_file(path.to_str().unwrap()).unwrap();
    let (_, server) = start(options(&directory, &["r"]));
    server.stop().unwrap();
    conch_log::set_file("").unwrap();
    assert!(conch_log::flush(std::time::Duration::from_secs(60)));
    let text = std::fs::read_to_string(&path).unwrap();
    let in_order = [
        r#"] "loading: logged:1""#,
        r#"] "loading: logged:2""#,
        r#"] "successfully loaded 'logged'""#,
        "| logged   | 1       | READY ",
        "| unlogged | 2       | UNAVAILABLE: Unavailable: no such version |",
        "| server_id                | triton",
        "] \"Internal: failed to load all models: model 'unlogged', version 2: Unavailable: no \
         such version\"",
        r#"] "Waiting for in-flight requests to complete.""#,
        r#"] "Timeout 10: Found 0 model versions that have in-flight inferences""#,
        r#"] "All models are stopped, unloading models""#,
        r#"] "Timeout 10: Found 2 live models and 0 in-flight non-inference requests""#,
        r#"] "successfully unloaded 'logged' version"#,
        r#"] "Timeout 10: Found 0 live models and 0 in-flight non-inference requests""#,
    ];
    let mut rest = text.as_str();
    for line in in_order {
        let at = rest
            .find(line)
            .unwrap_or_else(|| panic!("{line} is missing after its predecessor in\n{text}"));
        rest = &rest[at..];
    }
    assert!(
        text.contains(r#"] "failed to load 'unlogged' version 2: Unavailable: no such version""#)
    );
    assert!(text.contains(r#"] "failed to load 'unlogged'""#));
    assert!(text.contains(r#"] "successfully unloaded 'logged' version 1""#));
    assert!(
        text.contains("| Repository Agent | Path |")
            && text.contains("| fake    | /libtriton_fake.so | {}     |")
    );
}
