//! Traces of requests, into files or to a collector of spans: upstream's modes `triton` and
//! `opentelemetry`.
//!
//! Which requests are traced is decided where they come in ([`Tracing::sample`]: one load while
//! tracing is off). A traced request carries a [`ActiveTrace`], which the front end and the engine
//! report to; when all have let go of it, it is handed to the thread that writes or exports.

mod otel;
mod queue;
mod record;
mod settings;
mod slow;
pub(crate) mod slowest;
mod subject;
mod text;
mod writer;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use conch_engine::Error;

use otel::exporter::{self, ExporterThread};
use queue::{TraceMessage, TraceQueue, TraceTarget};
use record::TraceRecord;
use settings::{OwnSettings, TraceSetting};
use slow::{RequestWatch, SlowRequests};
use slowest::SlowestRequests;

pub(crate) use otel::context::RemoteContext;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use otel::fuzz;
pub use otel::options::CollectorOptions;
pub use otel::url::CollectorUrl;
pub(crate) use record::ActiveTrace;
pub use settings::TraceLevels;
pub(crate) use settings::{FieldChange, SettingValues, SettingsUpdate};

/// Models with settings of their own. Each was there when they were made, but may have gone.
const MODELS_MAX: usize = 65_536;

/// What tracing is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    pub levels: TraceLevels,
    pub rate: u32,
    /// -1: no bound.
    pub count: i32,
    pub log_frequency: u32,
    /// Empty: nothing can be traced, nor can that be changed, but to a collector.
    pub file: String,
    /// Where spans go, in place of the file.
    pub collector: Option<CollectorOptions>,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions {
            levels: TraceLevels::default(),
            rate: 1_000,
            count: -1,
            log_frequency: 0,
            file: String::new(),
            collector: None,
        }
    }
}

/// The settings, and the way to the file or the collector. One per front end.
pub(crate) struct Tracing {
    /// Whether anything may be traced at all, or is watched for being slow.
    is_on: AtomicBool,
    /// Who is told of slow requests, if anybody.
    slow: Option<Arc<SlowRequests>>,
    /// Somebody looks at the slowest requests, which go here.
    is_watched: AtomicBool,
    slowest: Arc<SlowestRequests>,
    /// Read by shards for a few instructions per request while tracing is on; written when a
    /// setting changes.
    settings: RwLock<TraceSettings>,
    /// Of the start.
    defaults: SettingValues,
    queue: Arc<TraceQueue<TraceRecord>>,
    collector: Option<Arc<CollectorOptions>>,
    thread: Mutex<Option<TraceThread>>,
    /// One change at a time.
    changing: Mutex<()>,
}

/// The thread that takes finished traces.
enum TraceThread {
    Writer(JoinHandle<()>),
    Exporter(ExporterThread),
}

struct TraceSettings {
    global: Arc<TraceSetting<TraceRecord>>,
    models: HashMap<Box<str>, Arc<TraceSetting<TraceRecord>>>,
}

impl Tracing {
    /// Starts the writer, if there is a file to write, or the exporter of spans. Requests that take
    /// `slow` or longer are logged; none: no request is.
    ///
    /// # Errors
    /// INTERNAL if there is no thread to be had.
    pub(crate) fn start(
        options: &TraceOptions,
        slow: Option<Duration>,
    ) -> Result<Arc<Tracing>, Error> {
        let collector = options.collector.clone().map(Arc::new);
        let spans = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let target = match &collector {
            Some(collector) => TraceTarget::Collector {
                spans_max: spans(collector.queue_spans_max),
                batch_spans_max: spans(collector.batch_spans_max),
            },
            None if options.file.is_empty() => TraceTarget::Nowhere,
            None => TraceTarget::File(options.file.clone()),
        };
        let queue = Arc::new(TraceQueue::new(target));
        let thread = match &collector {
            Some(collector) => Some(TraceThread::Exporter(exporter::start(&queue, collector)?)),
            None if queue.has_target() => Some(TraceThread::Writer(writer::start(&queue)?)),
            None => None,
        };
        let defaults = SettingValues {
            levels: options.levels,
            rate: options.rate,
            count: options.count,
            log_frequency: options.log_frequency,
        };
        let global = Arc::new(TraceSetting::new(defaults, OwnSettings::default(), &queue));
        let slow = slow.map(SlowRequests::new);
        Ok(Arc::new(Tracing {
            is_on: AtomicBool::new(global.may_sample() || slow.is_some()),
            slow,
            is_watched: AtomicBool::new(false),
            slowest: SlowestRequests::new(),
            settings: RwLock::new(TraceSettings {
                global,
                models: HashMap::new(),
            }),
            defaults,
            queue,
            collector,
            thread: Mutex::new(thread),
            changing: Mutex::new(()),
        }))
    }

    /// The trace of a request to `model`, if it is to be traced or watched. `remote` reads the span
    /// that its client has named; called only where that matters.
    #[inline]
    pub(crate) fn sample(
        &self,
        model: &str,
        remote: impl FnOnce() -> Option<RemoteContext>,
    ) -> Option<Arc<ActiveTrace>> {
        if !self.is_on() {
            return None;
        }
        let remote = match self.takes_context() {
            true => remote(),
            false => None,
        };
        let setting = self.setting(model);
        let is_sampled = setting.samples(remote.is_some());
        let watch = self.request_watch(model);
        (is_sampled || watch.is_some())
            .then(|| Arc::new(ActiveTrace::new(&setting, is_sampled, watch, remote)))
    }

    fn request_watch(&self, model: &str) -> Option<RequestWatch> {
        // Relaxed, as `is_on`.
        let is_watched = self.is_watched.load(Ordering::Relaxed);
        if self.slow.is_none() && !is_watched {
            return None;
        }
        let slowest = is_watched.then_some(&self.slowest);
        Some(RequestWatch::new(self.slow.as_ref(), slowest, model))
    }

    /// Where the slowest requests are noted while they are watched.
    pub(crate) fn slowest(&self) -> &Arc<SlowestRequests> {
        &self.slowest
    }

    /// Whether requests are watched from now on although nobody logs slow ones.
    pub(crate) fn watch(&self, is_watched: bool) {
        let _one = lock(&self.changing);
        self.is_watched.store(is_watched, Ordering::Relaxed);
        self.find_out();
    }

    /// Notes whether anything may be traced or watched, after a change.
    fn find_out(&self) {
        let settings = self.read();
        let is_on = self.slow.is_some()
            || self.is_watched.load(Ordering::Relaxed)
            || settings.global.may_sample()
            || settings.models.values().any(|own| own.may_sample());
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Whether it matters which span a client names.
    #[inline]
    pub(crate) fn takes_context(&self) -> bool {
        self.is_on() && self.collector.is_some()
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        // Relaxed: a request that comes at the moment of the change may be on either side of it.
        self.is_on.load(Ordering::Relaxed)
    }

    /// What is in force for `model`; for an empty name, for models without settings of their own.
    pub(crate) fn values(&self, model: &str) -> SettingValues {
        self.setting(model).current()
    }

    pub(crate) fn file(&self) -> &str {
        self.queue.file()
    }

    /// Where spans go; none in the mode `triton`.
    pub(crate) fn collector(&self) -> Option<&CollectorOptions> {
        self.collector.as_deref()
    }

    /// Changes the settings of `model`; with an empty name those of the server, and with them what
    /// models have not set themselves.
    ///
    /// # Errors
    /// INVALID_ARG, in upstream's words, for settings that cannot trace but are not off either.
    pub(crate) fn update(&self, model: &str, update: &SettingsUpdate) -> Result<(), Error> {
        let _one = lock(&self.changing);
        let mut update = *update;
        if self.collector.is_some() {
            // A setting of the other mode.
            update.log_frequency = FieldChange::Keep;
        }
        let update = &update;
        let mut outcome = self.change(model, update);
        if model.is_empty() && outcome.is_ok() {
            let names: Vec<Box<str>> = self.read().models.keys().cloned().collect();
            for name in names {
                outcome = outcome.and(self.change(&name, &SettingsUpdate::default()));
            }
        }
        self.find_out();
        outcome
    }

    fn change(&self, model: &str, update: &SettingsUpdate) -> Result<(), Error> {
        let (own, fallback) = {
            let settings = self.read();
            match model {
                "" => (settings.global.own(), self.defaults),
                model => {
                    let own = settings.models.get(model).map(|setting| setting.own());
                    if own.is_none() && settings.models.len() >= MODELS_MAX {
                        return Err(Error::unavailable(
                            "too many models have trace settings of their own",
                        ));
                    }
                    (own.unwrap_or_default(), settings.global.current())
                }
            }
        };
        let own = own.updated(update);
        if !model.is_empty() && own.is_none() {
            // Its setting, if it had one, is dropped when nobody holds the lock.
            let _gone = self.write().models.remove(model);
            return Ok(());
        }
        let setting = TraceSetting::new(own.over(fallback), own, &self.queue);
        if !setting.is_valid() && !setting.values.levels.is_off() {
            return Err(Error::invalid(format!(
                "Attempting to set invalid trace setting :{}",
                setting.failure()
            )));
        }
        let setting = Arc::new(setting);
        let _gone = match model {
            "" => Some(std::mem::replace(&mut self.write().global, setting)),
            model => self.write().models.insert(model.into(), setting),
        };
        Ok(())
    }

    fn setting(&self, model: &str) -> Arc<TraceSetting<TraceRecord>> {
        let settings = self.read();
        Arc::clone(settings.models.get(model).unwrap_or(&settings.global))
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, TraceSettings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, TraceSettings> {
        self.settings
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes and closes everything, or exports it, for which it waits only so long. What ends
    /// later is not written. Blocks.
    pub(crate) fn finish(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        self.queue.push(TraceMessage::End);
        match thread {
            // A panic of it has been reported.
            TraceThread::Writer(writer) => drop(writer.join()),
            TraceThread::Exporter(exporter) => exporter.wait(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
