//! From a request's trace to what a collector gets.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use conch_proto::Message;
use conch_proto::otlp::any_value::Value;
use conch_proto::otlp::{ExportTraceServiceRequest, KeyValue, Span};

use super::context::RemoteContext;
use super::position::SpanPosition;
use super::spans;
use crate::trace::queue::{TraceQueue, TraceTarget};
use crate::trace::record::{TraceEntry, TraceRecord};
use crate::trace::settings::{OwnSettings, SettingValues, TraceSetting};
use crate::trace::subject::TraceSubject;
use crate::trace::{CollectorOptions, CollectorUrl, TraceLevels, TraceOptions, Tracing};

const TIMES: TraceLevels = TraceLevels {
    timestamps: true,
    tensors: false,
};

/// A trace of model `m` whose stations are 10 ns apart, from 1000 on; a name in capitals only that
/// the engine and the front end do not have is a backend's own.
fn record(
    (id, parent_id): (u64, u64),
    span: SpanPosition,
    stations: &[&'static str],
) -> TraceRecord {
    let values = SettingValues {
        levels: TIMES,
        rate: 1,
        count: -1,
        log_frequency: 0,
    };
    let queue = Arc::new(TraceQueue::new(TraceTarget::Nowhere));
    let entries =
        stations
            .iter()
            .zip(100_u64..)
            .map(|(name, number)| match name.strip_prefix("own:") {
                Some(own) => TraceEntry::Own(own.into(), number * 10),
                None => TraceEntry::Time(name, number * 10),
            });
    TraceRecord {
        id,
        setting: Arc::new(TraceSetting::new(values, OwnSettings::default(), &queue)),
        subject: Some(TraceSubject {
            model: "m".into(),
            version: 7,
            request_id: if parent_id == 0 {
                "r".into()
            } else {
                "".into()
            },
        }),
        entries: entries.collect(),
        parent_id,
        children: Vec::new(),
        span: Some(SpanPosition {
            began_ns: 900,
            ended_ns: 2_000,
            ..span
        }),
    }
}

fn begin() -> SpanPosition {
    SpanPosition::begin(Some(RemoteContext {
        trace_id: [0xab; 16],
        span_id: [0xcd; 8],
        state: "x=y".into(),
    }))
}

/// Each span as `name parent [start end] events`, sorted; times are since the first station.
fn shown(record: &TraceRecord) -> Vec<String> {
    let mut spans: Vec<Span> = Vec::new();
    spans::append(&mut spans, record);
    let first = spans.iter().flat_map(|span| &span.events);
    let first = first.map(|event| event.time_unix_nano).min().unwrap_or(0);
    let name_of = |id: &[u8]| match spans.iter().find(|span| span.span_id == id) {
        Some(span) => span.name.clone(),
        None => "-".to_owned(),
    };
    let mut rows: Vec<String> = spans
        .iter()
        .map(|span| {
            assert_eq!(span.trace_id, [0xab; 16]);
            assert_eq!((&*span.trace_state, span.kind), ("x=y", 2));
            assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
            let events: Vec<&str> = span.events.iter().map(|event| &*event.name).collect();
            let time = |at: u64| at.cast_signed() - first.cast_signed();
            let (start, end) = (
                time(span.start_time_unix_nano),
                time(span.end_time_unix_nano),
            );
            let parent = name_of(&span.parent_span_id);
            format!(
                "{} {parent} [{start} {end}] {}",
                span.name,
                events.join(" ")
            )
        })
        .collect();
    rows.sort();
    rows
}

/// Stations and the spans that they make.
const REQUESTS: &[(&[&str], &[&str])] = &[
    (
        &[
            "HTTP_RECV_START",
            "HTTP_RECV_END",
            "REQUEST_START",
            "QUEUE_START",
            "COMPUTE_START",
            "own:A_START",
            "own:x",
            "own:B_START",
            "own:y",
            "own:B_END",
            "own:A_END",
            "own:z",
            "COMPUTE_INPUT_END",
            "COMPUTE_OUTPUT_START",
            "COMPUTE_END",
            "INFER_RESPONSE_COMPLETE",
            "REQUEST_END",
            "HTTP_SEND_END",
        ],
        &[
            "A m [50 100] A_START x A_END",
            "B A [70 90] B_START y B_END",
            "InferRequest - [-100 1000] HTTP_RECV_START HTTP_RECV_END INFER_RESPONSE_COMPLETE \
             HTTP_SEND_END",
            "compute m [40 140] COMPUTE_START COMPUTE_INPUT_END COMPUTE_OUTPUT_START COMPUTE_END",
            "m InferRequest [20 160] REQUEST_START QUEUE_START z REQUEST_END",
        ],
    ),
    // Refused before the engine has it.
    (
        &["HTTP_RECV_START"],
        &["InferRequest - [-100 1000] HTTP_RECV_START"],
    ),
    // Answered by the cache; the end is not reported in time.
    (
        &["REQUEST_START"],
        &[
            "InferRequest - [-100 1000] ",
            "m InferRequest [0 1000] REQUEST_START",
        ],
    ),
    // What a backend does not end, ends with what it is in.
    (
        &[
            "REQUEST_START",
            "own:A_START",
            "own:B_START",
            "own:A_END",
            "own:C_START",
        ],
        &[
            "A m [10 30] A_START A_END",
            "B A [20 30] B_START",
            "C m [40 1000] C_START",
            "InferRequest - [-100 1000] ",
            "m InferRequest [0 1000] REQUEST_START",
        ],
    ),
    // No span has these ends and this start.
    (
        &[
            "REQUEST_START",
            "own:_START",
            "own:A_END",
            "own:_END",
            "REQUEST_END",
        ],
        &[
            "InferRequest - [-100 1000] ",
            "m InferRequest [0 40] REQUEST_START _START A_END _END REQUEST_END",
        ],
    ),
    // An execution in several parts.
    (
        &[
            "REQUEST_START",
            "COMPUTE_START",
            "COMPUTE_END",
            "COMPUTE_END",
            "REQUEST_END",
        ],
        &[
            "InferRequest - [-100 1000] ",
            "compute m [10 30] COMPUTE_START COMPUTE_END COMPUTE_END",
            "m InferRequest [0 40] REQUEST_START REQUEST_END",
        ],
    ),
];

#[test]
fn spans_of_a_request() {
    for (stations, expected) in REQUESTS {
        let record = record((3, 0), begin(), stations);
        assert_eq!(shown(&record), *expected, "{stations:?}");
    }
}

fn value(span: &Span, key: &str) -> Option<Value> {
    let row = |row: &&KeyValue| row.key == key;
    span.attributes.iter().find(row)?.value.clone()?.value
}

#[test]
fn what_is_done_on_behalf_of_a_request_is_below_its_model() {
    let mut outer = record((3, 0), begin(), &["REQUEST_START", "REQUEST_END"]);
    let position = outer.span.as_ref().unwrap().below();
    let parent_id = position.parent_id.to_vec();
    outer.children = vec![record(
        (4, 3),
        position,
        &["REQUEST_START", "COMPUTE_START"],
    )];
    let mut spans: Vec<Span> = Vec::new();
    spans::append(&mut spans, &outer);
    let models: Vec<&Span> = spans.iter().filter(|span| span.name == "m").collect();
    let [outer, inner] = models[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(
        (&outer.span_id, &inner.parent_span_id),
        (&parent_id, &parent_id)
    );
    assert_eq!(spans.len(), 4);
    let text = |text: &str| Some(Value::StringValue(text.to_owned()));
    let number = |number| Some(Value::IntValue(number));
    for (key, of_outer, of_inner) in [
        ("triton.model_name", text("m"), text("m")),
        ("triton.model_version", number(7), number(7)),
        ("triton.trace_id", number(3), number(4)),
        ("triton.trace_parent_id", number(0), number(3)),
        ("triton.request_id", text("r"), None),
    ] {
        assert_eq!(
            (value(outer, key), value(inner, key)),
            (of_outer, of_inner),
            "{key}"
        );
    }
}

/// A collector that answers with these statuses, then with 200, and gives what it took.
fn collector(statuses: Vec<u16>) -> (CollectorUrl, mpsc::Receiver<ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = CollectorUrl::parse(&format!("http://127.0.0.1:{port}/v1/traces")).unwrap();
    let (sender, taken) = mpsc::channel();
    thread::spawn(move || {
        let mut statuses = statuses.into_iter();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut received = Vec::new();
            let body = loop {
                let mut piece = [0; 4096];
                let count = stream.read(&mut piece).unwrap();
                received.extend_from_slice(&piece[..count]);
                let text = String::from_utf8_lossy(&received).to_lowercase();
                let Some((head, _)) = text.split_once("\r\n\r\n") else {
                    continue;
                };
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                let start = head.len() + 4;
                if received.len() >= start + length {
                    break received[start..].to_vec();
                }
            };
            let status = statuses.next().unwrap_or(200);
            if status == 200 {
                let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
                if sender.send(request).is_err() {
                    return;
                }
            }
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, taken)
}

fn tracing(url: CollectorUrl, options: CollectorOptions) -> Arc<Tracing> {
    Tracing::start(
        &TraceOptions {
            levels: TIMES,
            rate: 1,
            collector: Some(CollectorOptions { url, ..options }),
            ..TraceOptions::default()
        },
        None,
    )
    .unwrap()
}

fn ask(tracing: &Tracing, count: usize) {
    for _ in 0..count {
        let traced = tracing.sample("m", || None).unwrap();
        traced.reach("HTTP_RECV_START");
    }
}

fn span_counts(taken: &mpsc::Receiver<ExportTraceServiceRequest>, total: usize) -> Vec<usize> {
    let mut counts = Vec::new();
    while counts.iter().sum::<usize>() < total {
        // It would not end before: the test would.
        let request = taken.recv_timeout(Duration::from_secs(600)).unwrap();
        let parts = request
            .resource_spans
            .iter()
            .flat_map(|part| &part.scope_spans);
        counts.push(parts.map(|scope| scope.spans.len()).sum());
    }
    counts
}

#[test]
fn batches_go_out_when_they_are_full_and_the_rest_at_the_end() {
    let (url, taken) = collector(Vec::new());
    let options = CollectorOptions {
        schedule_delay_ms: u32::MAX,
        batch_spans_max: 4,
        ..CollectorOptions::default()
    };
    let tracing = tracing(url, options);
    ask(&tracing, 4);
    assert_eq!(span_counts(&taken, 4).iter().sum::<usize>(), 4);
    ask(&tracing, 3);
    tracing.finish();
    let counts = span_counts(&taken, 3);
    assert!(counts.iter().all(|count| *count <= 4), "{counts:?}");
    assert!(tracing.sample("m", || None).is_none());
}

#[test]
fn a_busy_collector_gets_a_batch_again() {
    let (url, taken) = collector(vec![503, 502]);
    let options = CollectorOptions {
        schedule_delay_ms: 1,
        ..CollectorOptions::default()
    };
    let tracing = tracing(url, options);
    ask(&tracing, 1);
    assert_eq!(span_counts(&taken, 1), [1]);
    tracing.finish();
}

#[test]
fn only_this_mode_reads_the_context_of_clients() {
    let remote = || panic!("nobody needs it");
    let off = Tracing::start(&TraceOptions::default(), None).unwrap();
    assert!(off.sample("m", remote).is_none() && !off.takes_context());
    let (url, _taken) = collector(Vec::new());
    let tracing = tracing(url, CollectorOptions::default());
    assert!(tracing.takes_context());
    tracing.finish();
    assert!(!tracing.takes_context() && tracing.sample("m", remote).is_none());
}
