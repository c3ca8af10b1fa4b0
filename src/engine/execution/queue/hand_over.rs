//! Cores and versions that go while sequences are under way in them.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use conch_scheduler::{Scheduler, SequenceBatcher};

use crate::RequestHandle;
use crate::clock::monotonic_ns;
use crate::execution::active_sequences::ActiveSequences;
use crate::execution::queue::ModelQueue;

impl ModelQueue {
    /// [`ModelQueue::dismiss`] for cores that have sequences, once these have ended. Blocks until
    /// then, for `patience` at most: what is left is ended.
    pub(crate) fn drain(&self, mut cores: Vec<usize>, patience: Duration) {
        let deadline_ns =
            monotonic_ns().saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let is_late = monotonic_ns() >= deadline_ns;
            let mut ended_count = 0;
            let gone = self.inspect(|scheduler, now_ns| match scheduler {
                Scheduler::Sequence(sequence) => {
                    if is_late {
                        ended_count = cores
                            .iter()
                            .map(|core| sequence.end_all(*core, now_ns))
                            .sum();
                    }
                    let (gone, rest) = cores.iter().partition(|core| sequence.drain(**core));
                    cores = rest;
                    gone
                }
                _ => std::mem::take(&mut cores),
            });
            if ended_count > 0 {
                conch_log::warning!(
                    "{ended_count} sequences end with the instances that they were in: they did \
                     not end in time"
                );
            }
            for core in gone.into_iter().flatten() {
                self.dismiss(core);
            }
            // Once it is closed its cores leave by themselves, when nothing waits.
            if cores.is_empty() || self.pool.is_closing() {
                return;
            }
            std::thread::sleep(DISMISSAL_LOOK);
        }
    }

    /// Ends sequences that began anew in another version.
    pub(super) fn end_restarted(&self, sequence: &mut SequenceBatcher<RequestHandle>, now_ns: u64) {
        if let Some(active_sequences) = self.active_sequences.get() {
            for key in active_sequences.restarted() {
                sequence.end(&key, now_ns);
            }
        }
    }

    /// Begins to write down which sequences are under way: whoever asks before requests go
    /// elsewhere misses none. None if the model has no sequences, or if its cores leave no moment
    /// for a look. May block for so long.
    pub(crate) fn hand_over(&self) -> Option<Arc<ActiveSequences>> {
        let active_sequences = self.active_sequences.get_or_init(Arc::default);
        // Whoever submits a start either sees the table of active sequences afterwards, or its
        // request is seen here.
        fence(Ordering::SeqCst);
        for _ in 0..HAND_OVER_LOOKS {
            let listed = self.inspect(|scheduler, _| match scheduler {
                Scheduler::Sequence(sequence) => {
                    active_sequences.list(sequence.hand_over());
                    true
                }
                _ => false,
            });
            match listed {
                Some(is_listed) => return is_listed.then(|| Arc::clone(active_sequences)),
                None => std::thread::sleep(HAND_OVER_PAUSE),
            }
        }
        None
    }

    /// The table of active sequences has sequences that began anew elsewhere.
    pub(crate) fn notice_restart(&self) {
        if self.inspect(|_, _| ()).is_none() {
            self.watch_deadline(monotonic_ns());
        }
    }
}

/// The lock is held for microseconds: a second of looks is far more than one that succeeds takes.
const HAND_OVER_LOOKS: usize = 10_000;
const HAND_OVER_PAUSE: Duration = Duration::from_micros(100);
/// How often it is looked whether a core that is to leave has a sequence left.
const DISMISSAL_LOOK: Duration = Duration::from_millis(20);
