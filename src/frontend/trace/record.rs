//! One trace while it is taken: what its request reached, and when.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use conch_config::DataType;
use conch_engine::request::trace::{Trace, TraceActivity, TraceSink, TracedTensor, next_id};
use conch_engine::{Draft, ModelVersion, RequestObserver, Shape, clock};
use conch_memory::try_extend;

use super::otel::context::RemoteContext;
use super::otel::position::SpanPosition;
use super::queue::{QueueRoom, TraceMessage};
use super::settings::TraceSetting;
use super::slow::RequestWatch;
use super::subject::TraceSubject;

/// What one trace holds. A stream of many responses is recorded up to here.
const ENTRIES_MAX: usize = 4_096;
/// Of the name that a backend gives to an activity, what is kept.
const NAME_BYTES_MAX: usize = 256;
/// Steps of one ensemble's request that are recorded.
const CHILDREN_MAX: usize = 1_024;

/// One report.
pub(super) enum TraceEntry {
    Time(&'static str, u64),
    /// An activity of a backend's own.
    Own(Box<str>, u64),
    Tensor(Box<RecordedTensor>),
}

pub(super) struct RecordedTensor {
    pub(super) activity: &'static str,
    pub(super) name: Box<str>,
    pub(super) data_type: DataType,
    pub(super) shape: Shape,
    pub(super) data: Vec<u8>,
    _room: QueueRoom<TraceRecord>,
}

/// A finished trace.
pub(super) struct TraceRecord {
    pub(super) id: u64,
    pub(super) setting: Arc<TraceSetting<TraceRecord>>,
    pub(super) subject: Option<TraceSubject>,
    pub(super) entries: Vec<TraceEntry>,
    /// 0: none.
    pub(super) parent_id: u64,
    /// Of the steps of an ensemble.
    pub(super) children: Vec<TraceRecord>,
    /// While spans are exported.
    pub(super) span: Option<SpanPosition>,
}

impl TraceRecord {
    /// How many spans it makes; at most as many, if it is of a backend that names them wrongly.
    fn span_count(&self) -> usize {
        let begins = |entry: &&TraceEntry| match entry {
            TraceEntry::Time(station, _) => [REQUEST_START, "COMPUTE_START"].contains(station),
            TraceEntry::Own(name, _) => name.ends_with("_START"),
            TraceEntry::Tensor(_) => false,
        };
        let below = self.children.iter().map(TraceRecord::span_count);
        self.entries.iter().filter(begins).count() + below.sum::<usize>()
    }
}

/// A trace that is being taken, or only a watch on how long the request takes. It ends when the
/// last who knows it lets go.
pub(crate) struct ActiveTrace {
    id: u64,
    /// Whether it is to be written.
    is_sampled: bool,
    /// Where slow requests are to be told.
    watch: Option<RequestWatch>,
    setting: Arc<TraceSetting<TraceRecord>>,
    subject: OnceLock<TraceSubject>,
    entries: Mutex<Vec<TraceEntry>>,
    /// Of the ensemble, if this is one of its steps, or of the request on whose behalf a backend
    /// asks: what it lets go of becomes part of that.
    parent: Option<Arc<ActiveTrace>>,
    children: Mutex<Vec<TraceRecord>>,
    span: Option<SpanPosition>,
}

impl ActiveTrace {
    /// The trace of a request that came in, below the span of its client if that named one.
    pub(super) fn new(
        setting: &Arc<TraceSetting<TraceRecord>>,
        is_sampled: bool,
        watch: Option<RequestWatch>,
        remote: Option<RemoteContext>,
    ) -> ActiveTrace {
        let has_spans = is_sampled && setting.queue().has_collector();
        let span = has_spans.then(|| SpanPosition::begin(remote));
        ActiveTrace::made(setting, is_sampled, watch, span)
    }

    fn made(
        setting: &Arc<TraceSetting<TraceRecord>>,
        is_sampled: bool,
        watch: Option<RequestWatch>,
        span: Option<SpanPosition>,
    ) -> ActiveTrace {
        ActiveTrace {
            id: next_id(),
            is_sampled,
            watch,
            setting: Arc::clone(setting),
            subject: OnceLock::new(),
            entries: Mutex::new(Vec::with_capacity(if is_sampled { 16 } else { 0 })),
            parent: None,
            children: Mutex::default(),
            span,
        }
    }

    /// The trace of a step of an ensemble, or of what a backend asks.
    fn below(parent: &Arc<ActiveTrace>) -> ActiveTrace {
        let span = parent.span.as_ref().map(SpanPosition::below);
        let mut child = ActiveTrace::made(&parent.setting, true, None, span);
        child.parent = Some(Arc::clone(parent));
        child
    }

    /// Says whom it is about, and lets the engine report to it.
    pub(crate) fn attach(self: &Arc<ActiveTrace>, draft: &mut Draft<'_>, model: &ModelVersion) {
        self.subject.get_or_init(|| TraceSubject {
            model: Arc::clone(&model.name),
            version: model.version,
            request_id: draft.id.into(),
        });
        if self.is_sampled {
            let sink = Arc::new(EngineSink(Arc::clone(self)));
            draft.observer = Some(Arc::new(TraceReporting(sink)));
        }
        draft.features.stages = self.watch.as_ref().map(RequestWatch::stages);
    }

    /// A station of the front end, now.
    pub(crate) fn reach(&self, station: &'static str) {
        self.reached_at(station, clock::monotonic_ns());
    }

    pub(crate) fn reached_at(&self, station: &'static str, timestamp_ns: u64) {
        if self.is_sampled && self.setting.values.levels.timestamps {
            self.add(TraceEntry::Time(station, timestamp_ns));
        }
        if let Some(watch) = &self.watch {
            watch.reached_at(station, timestamp_ns);
        }
    }

    fn add(&self, entry: TraceEntry) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() < ENTRIES_MAX {
            entries.push(entry);
        }
    }
}

impl Drop for ActiveTrace {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            let trace_id = self.is_sampled.then_some(self.id);
            watch.conclude(self.subject.get(), trace_id, clock::monotonic_ns());
        }
        if !self.is_sampled {
            return;
        }
        let entries = self
            .entries
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let children = self
            .children
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let record = TraceRecord {
            id: self.id,
            setting: Arc::clone(&self.setting),
            subject: self.subject.take(),
            entries: std::mem::take(entries),
            parent_id: self.parent.as_ref().map_or(0, |parent| parent.id),
            children: std::mem::take(children),
            span: self.span.take().map(SpanPosition::end),
        };
        if let Some(parent) = &self.parent {
            let mut siblings = parent
                .children
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if siblings.len() < CHILDREN_MAX {
                siblings.push(record);
            }
            return;
        }
        let weight = record.span.as_ref().map_or(1, |_| 1 + record.span_count());
        self.setting
            .queue()
            .push(TraceMessage::Trace(Box::new(record), weight));
    }
}

/// What the engine knows of it.
struct TraceReporting(Arc<EngineSink>);

impl RequestObserver for TraceReporting {
    fn trace(&self) -> Option<Trace> {
        Some(Trace::new(Arc::clone(&self.0) as Arc<dyn TraceSink>))
    }

    fn released(&self) {}
}

/// What the engine reports to.
struct EngineSink(Arc<ActiveTrace>);

impl TraceSink for EngineSink {
    fn reached(&self, activity: TraceActivity, timestamp_ns: u64) {
        self.0.reached_at(name_of(activity), timestamp_ns);
    }

    fn reported(&self, name: &str, timestamp_ns: u64) {
        if self.0.setting.values.levels.timestamps {
            let end = name.floor_char_boundary(name.len().min(NAME_BYTES_MAX));
            self.0
                .add(TraceEntry::Own(name[..end].into(), timestamp_ns));
        }
    }

    fn id(&self) -> u64 {
        self.0.id
    }

    fn context(&self) -> Option<String> {
        self.0.span.as_ref().map(SpanPosition::to_json)
    }

    /// Spans show no tensors.
    fn wants_tensors(&self) -> bool {
        self.0.setting.values.levels.tensors && self.0.span.is_none()
    }

    fn spawn(&self, model: &Arc<str>, version: i64, request_id: &str) -> Option<Trace> {
        let child = ActiveTrace::below(&self.0);
        child.subject.get_or_init(|| TraceSubject {
            model: Arc::clone(model),
            version,
            request_id: request_id.into(),
        });
        Some(Trace::new(Arc::new(EngineSink(Arc::new(child)))))
    }

    fn showed(&self, activity: TraceActivity, tensor: &TracedTensor<'_>) {
        let Some(bytes) = tensor.data.as_slice() else {
            return;
        };
        let Some(room) = self.0.setting.queue().room(bytes.len() as u64) else {
            return;
        };
        let mut data = Vec::new();
        // A trace without a tensor is better than none.
        if try_extend(&mut data, bytes).is_err() {
            return;
        }
        self.0.add(TraceEntry::Tensor(Box::new(RecordedTensor {
            activity: name_of(activity),
            name: tensor.name.into(),
            data_type: tensor.data_type,
            shape: Shape::from_slice(tensor.shape),
            data,
            _room: room,
        })));
    }
}

/// As upstream writes them.
pub(super) fn name_of(activity: TraceActivity) -> &'static str {
    match activity {
        TraceActivity::RequestStart => REQUEST_START,
        TraceActivity::QueueStart => "QUEUE_START",
        TraceActivity::ComputeStart => "COMPUTE_START",
        TraceActivity::ComputeInputEnd => "COMPUTE_INPUT_END",
        TraceActivity::ComputeOutputStart => "COMPUTE_OUTPUT_START",
        TraceActivity::ComputeEnd => "COMPUTE_END",
        TraceActivity::RequestEnd => "REQUEST_END",
        TraceActivity::TensorQueueInput => "TENSOR_QUEUE_INPUT",
        TraceActivity::TensorBackendInput => "TENSOR_BACKEND_INPUT",
        TraceActivity::TensorBackendOutput => "TENSOR_BACKEND_OUTPUT",
        TraceActivity::Custom => "CUSTOM_ACTIVITY",
    }
}

/// The one in front of which stands whom the trace is about.
pub(super) const REQUEST_START: &str = "REQUEST_START";
