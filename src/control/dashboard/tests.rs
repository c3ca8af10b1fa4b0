//! Documents about a server on the fake backend.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use conch_engine::testing::{Directory, until};
use serde_json::{Value, json};

use super::DashboardSampler;
use super::document::TimelineRow;
use crate::Server;
use crate::load_overrides::Overrides;
use crate::loader::tests::fake::fault;
use crate::loader::tests::{Count, options, start, submit};
use crate::options::{ControlMode, EngineOptions};

fn document(sampler: &mut DashboardSampler) -> Value {
    serde_json::from_str(&sampler.sample(&json!({ "told": true }))).unwrap()
}

fn execute(server: &Server, model: &str, count: usize) {
    let answered = Arc::<Count>::default();
    for _ in 0..count {
        submit(server, model, &answered).unwrap();
    }
    until("answers", || answered.0.load(Ordering::SeqCst) == count);
}

#[test]
fn a_document_tells_what_has_changed() {
    let directory = Directory::new();
    directory.model("r", "quiet", &["1"], "");
    directory.model("r", "busy", &["1"], "");
    let (_, server) = start(options(&directory, &["r"]));
    execute(&server, "busy", 2);
    let mut sampler = DashboardSampler::new(Arc::clone(&server));
    execute(&server, "busy", 3);
    let first = document(&mut sampler);
    assert_eq!(
        (&first["state"], &first["network"]),
        (&json!("ready"), &json!({ "told": true }))
    );
    assert!(first["process"]["resident_bytes"].as_u64() > Some(0));
    assert!(first["memory"]["limit_bytes"].as_u64() > Some(0));
    let models = first["models"].as_array().unwrap();
    let names: Vec<&Value> = models.iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["busy", "quiet"]);
    let busy = &models[0];
    assert_eq!(
        [&busy["success"], &busy["inferences"], &busy["pending"]],
        [&json!(3), &json!(3), &json!(0)]
    );
    let sum = |pairs: &Value, weighted: bool| -> u64 {
        let pairs = pairs.as_array().unwrap().iter();
        let number = |value: &Value| value.as_u64().unwrap();
        pairs
            .map(|pair| number(&pair[1]) * if weighted { number(&pair[0]) } else { 1 })
            .sum()
    };
    assert_eq!(sum(&busy["latency"], false), 3);
    assert_eq!(sum(&busy["batches"], true), 3);
    assert_eq!(busy["timelines"][0]["name"], "busy_0");
    assert_eq!(models[1]["success"], 0);
    assert_eq!(models[1]["latency"], json!([]));
    // Nothing since.
    let second = document(&mut sampler);
    assert_eq!(second["models"][0]["success"], 0);
    assert_eq!(second["left_out"]["models"], 0);
    server.stop().unwrap();
    assert_eq!(document(&mut sampler)["state"], "stopping");
}

#[test]
fn loads_are_told_while_they_last() {
    let directory = Directory::new();
    directory.model("r", "slow", &["1"], &fault("stuck"));
    let options = EngineOptions {
        model_control_mode: ControlMode::Explicit,
        exit_timeout: Duration::from_secs(10),
        ..options(&directory, &["r"])
    };
    let (host, server) = start(options);
    let sampler = RefCell::new(DashboardSampler::new(Arc::clone(&server)));
    let told = || document(&mut sampler.borrow_mut());
    assert_eq!(told()["loads"], json!([]));
    std::thread::scope(|scope| {
        scope.spawn(|| server.load_model("slow", Overrides::default()).unwrap());
        until("a load", || told()["loads"][0]["state"] == "LOADING");
        let loads = told()["loads"].clone();
        assert_eq!(
            (&loads[0]["name"], &loads[0]["version"]),
            (&json!("slow"), &json!("1"))
        );
        host.gate.open();
    });
    until("the end of the load", || told()["loads"] == json!([]));
    assert_eq!(told()["models"][0]["name"], "slow");
    server.stop().unwrap();
}

#[test]
fn idle_models_beyond_the_bound_are_counted() {
    let directory = Directory::new();
    for number in 0..super::MODELS_MAX + 2 {
        directory.model("r", &format!("m{number:03}"), &["1"], "");
    }
    let (_, server) = start(options(&directory, &["r"]));
    let mut sampler = DashboardSampler::new(Arc::clone(&server));
    execute(&server, "m101", 1);
    let document = document(&mut sampler);
    let models = document["models"].as_array().unwrap();
    assert_eq!(models.len(), super::MODELS_MAX);
    assert_eq!(models[0]["name"], "m101");
    assert_eq!(
        document["left_out"],
        json!({ "models": 2, "success": 0, "errors": 0 })
    );
    server.stop().unwrap();
}

#[test]
fn a_layout_has_the_bounds_of_the_buckets() {
    let directory = Directory::new();
    let (_, server) = start(options(&directory, &["r"]));
    let layout: Value = serde_json::from_str(&DashboardSampler::layout(&server)).unwrap();
    let bounds = layout["bounds_us"].as_array().unwrap();
    assert_eq!(
        (&bounds[0], &bounds[1], bounds.last().unwrap()),
        (&json!(10), &json!(11), &json!(91_000_000))
    );
    assert_eq!(
        (&layout["has_histograms"], &layout["cell_ms"]),
        (&json!(true), &json!(10))
    );
    server.stop().unwrap();
}

#[test]
fn cells_are_digits() {
    let timeline = conch_engine::request::instance_timeline::InstanceTimeline {
        name: "m_0".into(),
        busy_us: vec![0, 1, 2_000, 9_999, 10_000],
        execution_count: 4,
    };
    let row = TimelineRow::of(&timeline, 10_000);
    assert_eq!((row.cells.as_str(), row.executions), ("01189", 4));
}
