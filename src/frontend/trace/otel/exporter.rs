//! The thread that exports spans to the collector.
//!
//! It takes traces when a batch of spans is there or the delay has passed, and posts them batch by
//! batch. While a collector is slow or gone, spans wait in the queue up to its bound; what is lost
//! is counted and told. Nobody waits for this thread but the end of the server, for a while.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use conch_engine::Error;
use conch_log as log;
use conch_proto::Message;
use conch_proto::otlp::any_value::Value;
use conch_proto::otlp::{
    ExportTraceServiceRequest, InstrumentationScope, Resource, ResourceSpans, ScopeSpans, Span,
};

use super::options::CollectorOptions;
use super::post::{CollectorClient, PostError};
use super::spans;
use crate::trace::queue::TraceQueue;
use crate::trace::record::TraceRecord;

/// A batch is posted within so long, all attempts together. OTLP's default.
const POST_WITHIN: Duration = Duration::from_secs(10);
const ATTEMPTS_MAX: u32 = 3;
/// Before the second attempt; before the third twice as long.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How long the end of the server waits for the export of what is there.
const END_WITHIN: Duration = Duration::from_secs(3);

/// The running thread.
pub(in crate::trace) struct ExporterThread {
    /// Disconnected when it has ended.
    finished: Receiver<Infallible>,
}

impl ExporterThread {
    /// Waits for the end of the thread, which has been asked to end; not for long.
    pub(in crate::trace) fn wait(&self) {
        if let Err(RecvTimeoutError::Timeout) = self.finished.recv_timeout(END_WITHIN) {
            log::warning!("the last spans are not exported: the collector takes too long");
        }
    }
}

/// Starts the thread.
///
/// # Errors
/// INTERNAL if there is none to be had, INVALID_ARGUMENT for options that are of no use.
pub(in crate::trace) fn start(
    queue: &Arc<TraceQueue<TraceRecord>>,
    options: &Arc<CollectorOptions>,
) -> Result<ExporterThread, Error> {
    let client = CollectorClient::new(options)?;
    let (sender, finished) = channel();
    let (queue, options) = (Arc::clone(queue), Arc::clone(options));
    std::thread::Builder::new()
        .name("trace".to_owned())
        .spawn(move || {
            let _until_the_end = sender;
            SpanExporter::new(&queue, &options, client).run();
        })
        .map_err(|cause| Error::internal(format!("cannot start the trace thread: {cause}")))?;
    Ok(ExporterThread { finished })
}

struct SpanExporter<'q> {
    queue: &'q TraceQueue<TraceRecord>,
    options: &'q CollectorOptions,
    client: CollectorClient,
    resource: Resource,
    /// Of traces that were taken out; less than those of one trace between two batches.
    pending: VecDeque<Span>,
    /// When the server ends.
    ends_at: Option<Instant>,
    failure_count: u64,
    lost_count: u64,
}

impl<'q> SpanExporter<'q> {
    fn new(
        queue: &'q TraceQueue<TraceRecord>,
        options: &'q CollectorOptions,
        client: CollectorClient,
    ) -> SpanExporter<'q> {
        SpanExporter {
            queue,
            options,
            client,
            resource: resource(options),
            pending: VecDeque::new(),
            ends_at: None,
            failure_count: 0,
            lost_count: 0,
        }
    }

    fn run(mut self) {
        let delay = Duration::from_millis(self.options.schedule_delay_ms.into());
        while self.ends_at.is_none() {
            self.queue.wait_for_batch(Instant::now() + delay);
            self.export_all();
        }
        if self.lost_count > 0 {
            log::warning!("{} spans in all were not exported", self.lost_count);
        }
    }

    /// Exports batches until nothing waits.
    fn export_all(&mut self) {
        let batch_max = usize::try_from(self.options.batch_spans_max).unwrap_or(usize::MAX);
        loop {
            if self.ends_at.is_none() && self.queue.has_ended() {
                self.ends_at = Some(Instant::now() + END_WITHIN);
            }
            while self.pending.len() < batch_max
                && let Some(record) = self.queue.pop()
            {
                spans::append(&mut self.pending, &record);
            }
            if self.pending.is_empty() {
                return;
            }
            let count = self.pending.len().min(batch_max);
            let batch = self.pending.drain(..count).collect();
            self.export(batch);
        }
    }

    fn export(&mut self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        if self
            .ends_at
            .is_some_and(|ends_at| ends_at <= Instant::now())
        {
            self.lost_count += count;
            return;
        }
        let outcome = self.post(&self.encode(spans));
        match outcome {
            Ok(rejected) => {
                if self.failure_count > 0 {
                    log::info!(
                        "spans are exported to {} again; {} were lost",
                        self.options.url,
                        self.lost_count
                    );
                }
                self.failure_count = 0;
                self.note_rejected(rejected);
            }
            Err(error) => {
                self.note_failure(count, &error.message);
                if self.ends_at.is_some() {
                    // The rest would take as long, and fail as well.
                    self.ends_at = Some(Instant::now());
                }
            }
        }
    }

    /// The spans that the collector did not want, and why.
    fn post(&self, body: &[u8]) -> Result<Option<(u64, String)>, PostError> {
        let mut deadline = Instant::now() + POST_WITHIN;
        if let Some(ends_at) = self.ends_at {
            deadline = deadline.min(ends_at);
        }
        let mut pause = RETRY_AFTER;
        let mut attempts_left = ATTEMPTS_MAX;
        loop {
            attempts_left -= 1;
            match self.client.post(body, deadline) {
                Ok(None) => return Ok(None),
                Ok(Some(partial)) => {
                    let count = u64::try_from(partial.rejected_spans).unwrap_or(0);
                    return Ok(Some((count, partial.error_message)));
                }
                Err(error) => {
                    let Some(asked) = error.retry_after.filter(|_| attempts_left > 0) else {
                        return Err(error);
                    };
                    let until = Instant::now() + pause.max(asked.min(POST_WITHIN));
                    // The end of the server ends the attempts.
                    if until >= deadline || self.queue.wait_for_end(until) {
                        return Err(error);
                    }
                    pause *= 2;
                }
            }
        }
    }

    fn encode(&self, spans: Vec<Span>) -> Vec<u8> {
        let scope = InstrumentationScope {
            name: "triton-server".to_owned(),
        };
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope),
                    spans,
                }],
            }],
        };
        request.encode_to_vec()
    }

    fn note_rejected(&mut self, rejected: Option<(u64, String)>) {
        let Some((count, why)) = rejected else {
            return;
        };
        self.lost_count += count;
        // Whoever is told of every batch is told too much.
        if self.lost_count.is_power_of_two() || count == self.lost_count {
            let url = &self.options.url;
            log::warning!(
                "{url} does not take {count} spans: {why}",
                why = shown(&why)
            );
        }
    }

    /// Says so the first time, then ever more rarely.
    fn note_failure(&mut self, count: u64, why: &str) {
        self.lost_count += count;
        self.failure_count += 1;
        if self.failure_count.is_power_of_two() {
            log::warning!(
                "failed to export spans to {}: {why}; {} are lost until now",
                self.options.url,
                self.lost_count
            );
        }
    }
}

/// A collector's text, as far as it goes into a line.
fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(text.len().min(256))]
}

/// What the server says of itself.
fn resource(options: &CollectorOptions) -> Resource {
    let own = [
        ("service.name", "triton-inference-server"),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.name", "conch"),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let defaults = options.resource_defaults.iter().cloned();
    let given = options.resource.iter().cloned();
    let rows: BTreeMap<_, _> = defaults.chain(own).chain(given).collect();
    let attributes = rows
        .into_iter()
        .map(|(key, value)| spans::attribute(&key, Value::StringValue(value)));
    Resource {
        attributes: attributes.collect(),
    }
}
