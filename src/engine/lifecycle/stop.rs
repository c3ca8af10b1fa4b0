//! The orderly end: no new requests, the last answers, then unloading. One budget of time for all of it.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Entry, Lifecycle, Loaded, Slot, UNLOADED};
use crate::registry::State;
use crate::{Error, log};

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
    /// Stops all schedulers, waits for requests in flight, unloads all models. Blocks up to `budget`.
    ///
    /// # Errors
    /// INTERNAL if the budget did not suffice; versions still unloading do so on threads that end with the process.
    pub(crate) fn stop(&self, budget: Duration) -> Result<(), Error> {
        log::info!("Waiting for in-flight requests to complete.");
        let mut countdown = Countdown::start(budget);
        for entry in self.models().values() {
            for slot in entry.slots() {
                if let Some(loaded) = &slot.loaded {
                    loaded.cores.close();
                }
            }
        }
        self.await_requests(&mut countdown)?;
        log::info!("All models are stopped, unloading models");
        countdown.next_report = Instant::now();
        self.unload_all(&mut countdown)
    }

    fn await_requests(&self, countdown: &mut Countdown) -> Result<(), Error> {
        loop {
            let in_flight = self.in_flight();
            if let Some(seconds) = countdown.due_report() {
                let count = in_flight.len();
                log::info!(
                    "Timeout {seconds}: Found {count} model versions that have in-flight inferences"
                );
                for (name, version, count) in &in_flight {
                    log::info!(
                        "Model '{name}' (version {version}) has {count} in-flight inferences"
                    );
                }
            }
            if in_flight.is_empty() {
                return Ok(());
            }
            let left = countdown.left();
            if left.is_zero() {
                return Err(timed_out());
            }
            thread::sleep(LOOK_INTERVAL.min(left));
        }
    }

    fn in_flight(&self) -> Vec<(Arc<str>, i64, u64)> {
        let mut found = Vec::new();
        for entry in self.models().values() {
            for loaded in entry.slots().filter_map(|slot| slot.loaded.as_ref()) {
                let count = loaded.version.live_count();
                if count > 0 {
                    found.push((
                        Arc::clone(&loaded.version.name),
                        loaded.version.version,
                        count,
                    ));
                }
            }
        }
        found
    }

    fn unload_all(&self, countdown: &mut Countdown) -> Result<(), Error> {
        let (done_sender, done) = mpsc::channel();
        let mut live_count = 0_usize;
        {
            let mut models = self.models();
            for entry in models.values_mut() {
                for slot in entry.slots_mut() {
                    if let Some(loaded) = slot.loaded.take() {
                        slot.state = State::Unloading;
                        live_count += 1;
                        unload_aside(loaded, done_sender.clone());
                    }
                }
            }
            self.publish(&models);
        }
        loop {
            if let Some(seconds) = countdown.due_report() {
                log::info!(
                    "Timeout {seconds}: Found {live_count} live models and 0 in-flight non-inference requests"
                );
            }
            if live_count == 0 {
                return Ok(());
            }
            let wait = countdown.left().min(
                countdown
                    .next_report
                    .saturating_duration_since(Instant::now()),
            );
            match done.recv_timeout(wait) {
                Ok((name, version)) => {
                    live_count -= 1;
                    if live_count == 0 {
                        countdown.next_report = Instant::now();
                    }
                    let mut models = self.models();
                    if let Some(Entry::Versions { versions, .. }) = models.get_mut(&name) {
                        versions.insert(
                            version,
                            Slot {
                                state: State::Unavailable(UNLOADED.to_owned()),
                                loaded: None,
                            },
                        );
                    }
                    self.publish(&models);
                }
                Err(RecvTimeoutError::Timeout) if countdown.left().is_zero() => {
                    return Err(timed_out());
                }
                Err(RecvTimeoutError::Timeout) => {}
                // This function holds a sender, so there is always one.
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is held here"),
            }
        }
    }
}

impl Entry {
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let versions = match self {
            Entry::Versions { versions, .. } => Some(versions.values()),
            Entry::Duplicate | Entry::Refused(_) => None,
        };
        versions.into_iter().flatten()
    }

    fn slots_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        let versions = match self {
            Entry::Versions { versions, .. } => Some(versions.values_mut()),
            Entry::Duplicate | Entry::Refused(_) => None,
        };
        versions.into_iter().flatten()
    }
}

/// Unloads on a thread of its own, because a backend may take for ever; on this one if no thread is to be had.
fn unload_aside(loaded: Loaded, done: mpsc::Sender<(Arc<str>, i64)>) {
    let id = (Arc::clone(&loaded.version.name), loaded.version.version);
    // Shared with the thread so that it can still be had if that does not start.
    let parcel = Arc::new(std::sync::Mutex::new(Some(loaded)));
    let work = {
        let parcel = Arc::clone(&parcel);
        move || {
            let loaded = parcel
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .take();
            if let Some(loaded) = loaded {
                // A panicking backend must not make the stop wait for it.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loaded.unload()));
                // The receiver is gone if the time was up.
                let _ = done.send(id);
            }
        }
    };
    let fallback = work.clone();
    if thread::Builder::new()
        .name("unload".to_owned())
        .spawn(work)
        .is_err()
    {
        fallback();
    }
}

fn timed_out() -> Error {
    Error::internal("Exit timeout expired. Exiting immediately.")
}
