//! Versions whose place was taken while sequences were under way in them. Those sequences go on
//! where they are, with their slots and states, until they end, idle or begin anew; then the
//! version goes.
//!
//! ```text
//! serves ──a successor takes its place──► draining ──no sequence, no request left──► unloads
//!                                           └──── given up: the time is over, too many come
//!                                                 after it, or its successor goes without one
//! ```
//!
//! Which version a request goes to is decided before it is admitted, as that is by the version's
//! configuration. A pin keeps a draining version in service; the thread that will unload it sees it
//! out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use conch_config::Scheduling;
use conch_log as log;
use conch_scheduler::SequenceKey;

use crate::execution::active_sequences::ActiveSequences;
use crate::execution::queue::ModelQueue;
use crate::model::version::{InFlightPermit, Pin, Rejected};
use crate::request::context::Executor;
use crate::request::correlation_id::CorrelationId;
use crate::{ModelVersion, SequenceFlags};

/// A version that only its sequences keep.
pub struct DrainingVersion {
    name: Arc<str>,
    version: i64,
    active_sequences: Arc<ActiveSequences>,
    queue: Arc<ModelQueue>,
    /// None once it is over.
    pin: ArcSwapOption<Pin>,
    patience: Duration,
    is_given_up: AtomicBool,
    /// The queues of versions that send it requests.
    heirs: Mutex<Vec<Weak<ModelQueue>>>,
}

/// The draining versions of a version, the oldest first.
#[derive(Default)]
pub struct DrainingVersions {
    are_there: AtomicBool,
    list: ArcSwapOption<Vec<Arc<DrainingVersion>>>,
}

/// Each draining version holds the memory of a whole version, so a model that is loaded over and
/// over keeps this many; then the oldest is given up.
const DRAINING_MAX: usize = 3;
/// How often it is looked whether a draining version is over.
const LOOK: Duration = Duration::from_millis(50);

impl DrainingVersion {
    /// Makes a draining version of a version that serves and is about to be replaced. None if its
    /// sequences are to end with it, or if it has none. May block for a second.
    pub fn new(
        version: &Arc<ModelVersion>,
        queue: &Arc<ModelQueue>,
    ) -> Option<Arc<DrainingVersion>> {
        if !matches!(version.config.scheduling, Scheduling::Sequence(_)) {
            return None;
        }
        let patience = Duration::from_secs(version.config.own.sequence_drain_seconds);
        // On a device that does not answer nothing goes on.
        if patience.is_zero() || queue.fault().is_some() {
            return None;
        }
        let pin = Pin::new(version).ok()?;
        let Some(active_sequences) = queue.hand_over() else {
            log::warning!(
                "sequences of '{}' version {} end with it: its cores left no moment to look at \
                 them",
                version.name,
                version.version
            );
            return None;
        };
        Some(Arc::new(DrainingVersion {
            name: Arc::clone(&version.name),
            version: version.version,
            active_sequences,
            queue: Arc::clone(queue),
            pin: ArcSwapOption::from_pointee(pin),
            patience,
            is_given_up: AtomicBool::new(false),
            heirs: Mutex::default(),
        }))
    }

    /// Whether this is the draining version that `version` became.
    pub fn is(&self, version: &Arc<ModelVersion>) -> bool {
        let pin = self.pin.load();
        pin.as_ref()
            .is_some_and(|pin| Arc::ptr_eq(pin.version(), version))
    }

    /// Its sequences end at the next look; what is queued is still executed.
    pub(crate) fn abandon(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    /// A permit for a request of the sequence `key`, if that is under way here.
    fn permit(&self, key: &SequenceKey) -> Option<Result<InFlightPermit, Rejected>> {
        if !self.active_sequences.has(key) {
            return None;
        }
        self.pin.load().as_ref().map(|pin| pin.reserve())
    }

    /// Waits until no sequence is under way and no request is left of those that were let in
    /// before, then lets the version go. For the thread that unloads it, once it is retired.
    pub fn drain(&self) {
        let started = Instant::now();
        let (name, version) = (&self.name, self.version);
        let mut is_told = false;
        loop {
            let is_last = self.pin.load().as_ref().is_none_or(|pin| pin.is_last());
            let count = self.queue.sequence_count();
            if is_last && count == Some(0) {
                break;
            }
            if let Some(count) = count.filter(|count| *count > 0) {
                let is_late = started.elapsed() >= self.patience;
                if is_late || self.is_given_up.load(Ordering::Acquire) {
                    log::warning!(
                        "{count} sequences of '{name}' version {version} end with it: {}",
                        if is_late {
                            "they did not end in time"
                        } else {
                            "too many versions came after it, or none"
                        }
                    );
                    break;
                }
                if !is_told {
                    log::info!(
                        "{count} sequences go on in '{name}' version {version}, whose place was \
                         taken"
                    );
                    is_told = true;
                }
            } else if self.is_given_up.load(Ordering::Acquire) {
                break;
            }
            thread::park_timeout(LOOK);
        }
        self.pin.store(None);
        let heirs = std::mem::take(&mut *self.heirs.lock().unwrap_or_else(PoisonError::into_inner));
        for successor in heirs.iter().filter_map(Weak::upgrade) {
            successor.draining_versions.tidy();
        }
    }
}

impl DrainingVersions {
    /// Makes `draining` and its own draining versions those of `successor`, which does not serve
    /// yet.
    pub fn inherit(successor: &Arc<ModelQueue>, draining: &Arc<DrainingVersion>) {
        let mut list = Vec::clone(
            &successor
                .draining_versions
                .list
                .load_full()
                .unwrap_or_default(),
        );
        let theirs = draining
            .queue
            .draining_versions
            .list
            .load_full()
            .unwrap_or_default();
        for other in theirs.iter().chain([draining]) {
            if other.pin.load().is_some() && !list.iter().any(|own| Arc::ptr_eq(own, other)) {
                list.push(Arc::clone(other));
                let mut heirs = other.heirs.lock().unwrap_or_else(PoisonError::into_inner);
                heirs.push(Arc::downgrade(successor));
            }
        }
        for surplus in list.drain(..list.len().saturating_sub(DRAINING_MAX)) {
            surplus.abandon();
        }
        successor.draining_versions.list.store(Some(Arc::new(list)));
        successor
            .draining_versions
            .are_there
            .store(true, Ordering::SeqCst);
        // One may be over since.
        successor.draining_versions.tidy();
    }

    /// Nobody sends them anything any more.
    pub fn abandon(&self) {
        for draining in self.list.load().iter().flat_map(|list| list.iter()) {
            draining.abandon();
        }
    }

    /// The sequence `key` starts in the version that has these draining versions.
    pub(crate) fn end(&self, key: &SequenceKey) {
        if !self.are_there.load(Ordering::Relaxed) {
            return;
        }
        for draining in self.list.load().iter().flat_map(|list| list.iter()) {
            if draining.active_sequences.restart(key) {
                draining.queue.notice_restart();
            }
        }
    }

    /// A permit for a request of the draining version where its sequence is under way; none if it
    /// is not. `version` is what was asked for.
    pub(crate) fn permit(
        &self,
        version: Option<i64>,
        id: &CorrelationId,
        flags: SequenceFlags,
    ) -> Option<Result<InFlightPermit, Rejected>> {
        if flags.is_start() {
            return None;
        }
        // Relaxed: a successor's is set before it is published.
        if !self.are_there.load(Ordering::Relaxed) {
            return None;
        }
        let key = id.sequence_key()?;
        let list = self.list.load();
        let list = list.as_ref()?;
        list.iter()
            .filter(|draining| version.is_none_or(|version| version == draining.version))
            .find_map(|draining| draining.permit(&key))
    }

    /// Forgets those that are over.
    fn tidy(&self) {
        self.list.rcu(|list| {
            let list = list.as_ref()?;
            let is_there = |draining: &&Arc<DrainingVersion>| draining.pin.load().is_some();
            let rest: Vec<_> = list.iter().filter(is_there).cloned().collect();
            (!rest.is_empty()).then(|| Arc::new(rest))
        });
        if self.list.load().is_none() {
            self.are_there.store(false, Ordering::SeqCst);
            // Others may have come in between.
            if self.list.load().is_some() {
                self.are_there.store(true, Ordering::SeqCst);
            }
        }
    }
}
