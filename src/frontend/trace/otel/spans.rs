//! From a finished trace to its spans, shaped as upstream's.
//!
//! ```text
//! InferRequest              events of the front end
//! └── <model>               REQUEST_START, QUEUE_START, REQUEST_END
//!     ├── compute           COMPUTE_START ... COMPUTE_END
//!     ├── <activity>        what a backend reports from <activity>_START to <activity>_END
//!     └── <model>           of a step of an ensemble, or a call of a backend
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use conch_engine::clock::monotonic_ns;
use conch_proto::otlp::span::{Event, SpanKind};
use conch_proto::otlp::{AnyValue, KeyValue, Span, any_value::Value};

use super::context::SpanId;
use super::position::{SpanPosition, new_span_id};
use crate::trace::record::{TraceEntry, TraceRecord};

/// Appends the spans of `record` and of what was done on its behalf.
pub(super) fn append(spans: &mut impl Extend<Span>, record: &TraceRecord) {
    append_at(spans, record, WallClock::now());
}

fn append_at(spans: &mut impl Extend<Span>, record: &TraceRecord, clock: WallClock) {
    let Some(position) = &record.span else {
        return;
    };
    let writer = SpanBuilder { position, clock };
    spans.extend(writer.root(record));
    writer.append_model(spans, record);
    for child in &record.children {
        append_at(spans, child, clock);
    }
}

/// The wall clock over the monotonic one, at one moment: times of one trace keep their distances.
#[derive(Clone, Copy)]
struct WallClock {
    offset_ns: u64,
}

impl WallClock {
    fn now() -> WallClock {
        let elapsed = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // Nanoseconds since 1970 fit 64 bits until the year 2554.
        let now_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        WallClock {
            offset_ns: now_ns.saturating_sub(monotonic_ns()),
        }
    }

    fn at(self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_add(self.offset_ns)
    }
}

/// Which span an event belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpanLevel {
    FrontEnd,
    Request,
    Compute,
}

impl SpanLevel {
    fn of(station: &str) -> SpanLevel {
        match station {
            "REQUEST_START" | "QUEUE_START" | "REQUEST_END" => SpanLevel::Request,
            "COMPUTE_START" | "COMPUTE_INPUT_END" | "COMPUTE_OUTPUT_START" | "COMPUTE_END" => {
                SpanLevel::Compute
            }
            _ => SpanLevel::FrontEnd,
        }
    }
}

struct SpanBuilder<'r> {
    position: &'r SpanPosition,
    clock: WallClock,
}

impl SpanBuilder<'_> {
    fn span(&self, name: &str, id: SpanId, parent_id: Option<SpanId>) -> Span {
        Span {
            trace_id: self.position.trace_id.to_vec(),
            span_id: id.to_vec(),
            parent_span_id: parent_id.map(|id| id.to_vec()).unwrap_or_default(),
            trace_state: (*self.position.state).to_owned(),
            name: name.to_owned(),
            kind: SpanKind::Server.into(),
            ..Span::default()
        }
    }

    fn event(&self, name: &str, timestamp_ns: u64) -> Event {
        Event {
            time_unix_nano: self.clock.at(timestamp_ns),
            name: name.to_owned(),
        }
    }

    fn events(&self, record: &TraceRecord, level: SpanLevel) -> Vec<Event> {
        let entries = record.entries.iter();
        entries
            .filter_map(|entry| match entry {
                TraceEntry::Time(station, timestamp_ns) if SpanLevel::of(station) == level => {
                    Some(self.event(station, *timestamp_ns))
                }
                _ => None,
            })
            .collect()
    }

    /// The request as the front end knows it. It lasts from the moment at which it was sampled
    /// until nobody reports any more, as upstream's.
    fn root(&self, record: &TraceRecord) -> Option<Span> {
        let root = self.position.root.as_ref()?;
        Some(Span {
            start_time_unix_nano: self.clock.at(self.position.began_ns),
            end_time_unix_nano: self.clock.at(self.position.ended_ns),
            events: self.events(record, SpanLevel::FrontEnd),
            ..self.span("InferRequest", root.id, root.parent_id)
        })
    }

    /// The request as the engine knows it; none if it was refused before.
    fn append_model(&self, spans: &mut impl Extend<Span>, record: &TraceRecord) {
        let mut events = self.events(record, SpanLevel::Request);
        let Some(start) = events.first().map(|event| event.time_unix_nano) else {
            return;
        };
        let is_end = |event: &&Event| event.name == "REQUEST_END";
        let end = events.iter().rev().find(is_end);
        let end = end.map_or(self.clock.at(self.position.ended_ns), |event| {
            event.time_unix_nano
        });
        spans.extend(self.compute(record, end));
        let (activities, mut single) = self.activities(record, end);
        spans.extend(activities);
        // In front of the end, which is what is reported last.
        let last = events.pop_if(|event| event.name == "REQUEST_END");
        events.append(&mut single);
        events.extend(last);
        let subject = record.subject.as_ref();
        let model = subject.map_or("", |subject| &*subject.model);
        let mut attributes = vec![
            attribute("triton.model_name", Value::StringValue(model.to_owned())),
            attribute(
                "triton.model_version",
                Value::IntValue(subject.map_or(0, |subject| subject.version)),
            ),
            attribute("triton.trace_id", Value::IntValue(record.id.cast_signed())),
            attribute(
                "triton.trace_parent_id",
                Value::IntValue(record.parent_id.cast_signed()),
            ),
        ];
        if let Some(subject) = subject.filter(|subject| !subject.request_id.is_empty()) {
            let id = (*subject.request_id).to_owned();
            attributes.push(attribute("triton.request_id", Value::StringValue(id)));
        }
        let (id, parent_id) = (self.position.model_id, self.position.parent_id);
        spans.extend([Span {
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes,
            events,
            ..self.span(model, id, Some(parent_id))
        }]);
    }

    /// The execution; none if there was none, as when the cache answered.
    fn compute(&self, record: &TraceRecord, model_end: u64) -> Option<Span> {
        let events = self.events(record, SpanLevel::Compute);
        let start = events.first()?.time_unix_nano;
        let is_end = |event: &&Event| event.name == "COMPUTE_END";
        let end = events.iter().rev().find(is_end);
        let end = end.map_or(model_end, |event| event.time_unix_nano);
        Some(Span {
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            events,
            ..self.span("compute", new_span_id(), Some(self.position.model_id))
        })
    }

    /// Spans of a backend's own, inside each other as they were open, and the events that came
    /// while none was. What is still open at the end of the model's span ends with it.
    fn activities(&self, record: &TraceRecord, model_end: u64) -> (Vec<Span>, Vec<Event>) {
        let (mut closed, mut open, mut single) = (Vec::new(), Vec::<OpenSpan>::new(), Vec::new());
        for entry in &record.entries {
            let TraceEntry::Own(name, timestamp_ns) = entry else {
                continue;
            };
            let event = self.event(name, *timestamp_ns);
            if let Some(subject) = name.strip_suffix("_START").filter(|name| !name.is_empty()) {
                let parent = open
                    .last()
                    .map_or(self.position.model_id, |parent| parent.id);
                let id = new_span_id();
                open.push(OpenSpan {
                    id,
                    span: Span {
                        start_time_unix_nano: event.time_unix_nano,
                        events: vec![event],
                        ..self.span(subject, id, Some(parent))
                    },
                });
                continue;
            }
            let ends = name.strip_suffix("_END").and_then(|name| {
                open.iter()
                    .rposition(|candidate| candidate.span.name == name)
            });
            if let Some(index) = ends {
                // What is open inside of it has no end of its own.
                let end = event.time_unix_nano;
                open[index].span.events.push(event);
                closed.extend(open.drain(index..).map(|inner| inner.end(end)));
                continue;
            }
            match open.last_mut() {
                Some(innermost) => innermost.span.events.push(event),
                None => single.push(event),
            }
        }
        closed.extend(open.drain(..).map(|rest| rest.end(model_end)));
        (closed, single)
    }
}

struct OpenSpan {
    id: SpanId,
    span: Span,
}

impl OpenSpan {
    fn end(self, at: u64) -> Span {
        Span {
            end_time_unix_nano: at.max(self.span.start_time_unix_nano),
            ..self.span
        }
    }
}

pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}
