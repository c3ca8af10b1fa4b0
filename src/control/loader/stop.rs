//! The orderly end: no new requests, the last answers, then unloading. One budget of time for all
//! of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use conch_engine::model::registry::ModelId;
use conch_engine::{Error, ModelVersion};
use conch_log as log;

use super::Lifecycle;
use super::step_graph::StepModels;

/// How often the wait for requests looks, and reports.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Counts a budget down, one line per second.
struct Countdown {
    deadline: Instant,
    next_report: Instant,
}

impl Countdown {
    fn start(budget: Duration) -> Countdown {
        let now = Instant::now();
        Countdown {
            deadline: now + budget,
            next_report: now,
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The whole seconds left, once per second.
    fn due_report(&mut self) -> Option<u64> {
        let now = Instant::now();
        if now < self.next_report {
            return None;
        }
        self.next_report = now + REPORT_INTERVAL;
        // Rounded, as the report comes a moment after the second.
        Some((self.left() + REPORT_INTERVAL / 2).as_secs())
    }
}

impl Lifecycle {
    /// Ends model control, stops all schedulers, waits for requests in flight, unloads all models.
    /// Blocks up to `budget`.
    ///
    /// # Errors
    /// INTERNAL if the budget did not suffice; versions still unloading do so on threads that end
    /// with the process.
    pub(crate) fn stop(&self, budget: Duration) -> Result<(), Error> {
        self.begin_end();
        self.is_stopping.store(true, Ordering::Relaxed);
        log::info!("Waiting for in-flight requests to complete.");
        let mut countdown = Countdown::start(budget);
        self.close_schedulers();
        if !self.locks.close(countdown.deadline) {
            return Err(timed_out());
        }
        // Whatever came up meanwhile.
        self.close_schedulers();
        self.await_requests(&mut countdown)?;
        log::info!("All models are stopped, unloading models");
        countdown.next_report = Instant::now();
        self.unload_all(&mut countdown)
    }

    /// Closes the models that no running request of an ensemble may still need: ensembles first,
    /// the outer ones before the inner ones. Returns whether all are closed.
    fn close_schedulers(&self) -> bool {
        let models = self.table.lock();
        let unloading = self.table.unloading();
        let loaded = || {
            let slots = models
                .iter()
                .flat_map(|(id, entry)| entry.versions.values().map(move |slot| (id, slot)));
            slots.filter_map(|(id, slot)| Some((id, slot.loaded.as_ref()?)))
        };
        let steps = StepModels::among(loaded().map(|(id, _)| id), self.options.namespacing);
        let is_over = |version: &ModelVersion| version.is_closed() && version.live_count() == 0;
        let mut needed: BTreeSet<&ModelId> = BTreeSet::new();
        for (id, loaded) in loaded().filter(|(_, loaded)| !is_over(loaded.version())) {
            needed.extend(steps.of(id, &loaded.version().config.message));
        }
        for version in unloading.iter().filter(|version| version.live_count() > 0) {
            let id = ModelId {
                namespace: Arc::clone(&version.namespace),
                name: Arc::clone(&version.name),
            };
            needed.extend(steps.of(&id, &version.config.message));
        }
        let mut is_all_closed = true;
        for (id, loaded) in loaded() {
            if needed.contains(id) {
                is_all_closed &= loaded.version().is_closed();
            } else {
                loaded.close();
            }
        }
        is_all_closed
    }

    fn await_requests(&self, countdown: &mut Countdown) -> Result<(), Error> {
        loop {
            let in_flight = self.in_flight();
            if let Some(seconds) = countdown.due_report() {
                log_in_flight(seconds, &in_flight);
            }
            if self.close_schedulers() && in_flight.is_empty() {
                return Ok(());
            }
            let left = countdown.left();
            if left.is_zero() {
                return Err(timed_out());
            }
            thread::sleep(LOOK_INTERVAL.min(left));
        }
    }

    /// Logs which models have requests in flight, `seconds` before the time of the exit is up.
    pub(crate) fn log_in_flight(&self, seconds: u64) {
        log_in_flight(seconds, &self.in_flight());
    }

    fn in_flight(&self) -> Vec<(Arc<str>, i64, u64)> {
        let mut found = Vec::new();
        let mut look = |version: &ModelVersion| {
            let count = version.live_count();
            if count > 0 {
                found.push((Arc::clone(&version.name), version.version, count));
            }
        };
        for entry in self.table.lock().values() {
            for slot in entry.versions.values() {
                if let Some(loaded) = &slot.loaded {
                    look(loaded.version());
                }
            }
        }
        for version in self.table.unloading().iter() {
            look(version);
        }
        found
    }

    fn unload_all(&self, countdown: &mut Countdown) -> Result<(), Error> {
        let (ids, loaded_count) = {
            let models = self.table.lock();
            let slots = models.values().flat_map(|entry| entry.versions.values());
            let loaded_count = slots.filter(|slot| slot.loaded.is_some()).count();
            (models.keys().cloned().collect::<Vec<_>>(), loaded_count)
        };
        let mut live_count = loaded_count + self.table.unloading().len();
        let mut ids = Some(ids);
        loop {
            if let Some(seconds) = countdown.due_report() {
                log::info!(
                    "Timeout {seconds}: Found {live_count} live models and 0 in-flight \
                     non-inference requests"
                );
            }
            if live_count == 0 {
                return Ok(());
            }
            // After the first report, which says how many there were.
            if let Some(ids) = ids.take() {
                self.take_down(ids);
            }
            if countdown.left().is_zero() {
                return Err(timed_out());
            }
            let until_report = countdown
                .next_report
                .saturating_duration_since(Instant::now());
            self.table.await_unload(countdown.left().min(until_report));
            live_count = self.table.unloading().len();
            if live_count == 0 {
                countdown.next_report = Instant::now();
            }
        }
    }
}

fn log_in_flight(seconds: u64, in_flight: &[(Arc<str>, i64, u64)]) {
    let count = in_flight.len();
    log::info!("Timeout {seconds}: Found {count} model versions that have in-flight inferences");
    for (name, version, count) in in_flight {
        log::info!("Model '{name}' (version {version}) has {count} in-flight inferences");
    }
}

fn timed_out() -> Error {
    Error::internal("Exit timeout expired. Exiting immediately.")
}
