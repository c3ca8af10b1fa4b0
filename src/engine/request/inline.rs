//! Execution on the thread that submits: one thread less to wake, there and back.
//!
//! A submitter that has nothing else to do makes an [`InlineOffer`] with its request. A queue whose
//! model can be executed so takes the offer: it wakes no core, and the submitter owes it an
//! [`InlineTurn`]. A submitter that has more requests in flight makes an offer for those models
//! whose executions take no longer than to wake a core; or a few times as long, if a core would
//! take its CPU from it.
//!
//! A submitter that is about to submit more offers to put off the wake-up of a core: it owes a turn
//! as well, and drops it when it is done.

use std::sync::Arc;
use std::time::Duration;

/// Batches with more bytes of inputs are left to the core: to copy them takes some 100 us.
pub const INLINE_BYTES_MAX: usize = 1 << 20;
/// As [`INLINE_BYTES_MAX`] for submitters that have more to do on a CPU of their own: to copy so
/// many takes them longer than to wake the core.
const BRIEF_BYTES_MAX: usize = 64 << 10;

/// How far an execution came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Done,
    /// The backend has the batch and needs more time.
    Open,
}

/// What became of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineExecution {
    /// Of the last batch.
    pub progress: Progress,
    pub batch_count: usize,
    pub duration_ns: u64,
    /// There is more to execute: the submitter still owes a turn.
    pub is_left: bool,
}

/// What a submitter executes beyond one batch, if there is more: it may be of other submitters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineBudget {
    pub further_count: usize,
    /// They begin within so long.
    pub time: Duration,
}

/// How long the executions may take that a submitter offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InlineDuration {
    /// As long as the submitter waits.
    #[default]
    Any,
    /// A few times as long as to wake a core.
    Short,
    /// No longer than to wake a core.
    Brief,
}

impl InlineDuration {
    /// The bytes of inputs that a batch may have.
    pub(crate) fn bytes_max(self) -> usize {
        match self {
            InlineDuration::Any | InlineDuration::Short => INLINE_BYTES_MAX,
            InlineDuration::Brief => BRIEF_BYTES_MAX,
        }
    }
}

/// A queue whose batches may be executed on other threads than its cores.
pub trait InlineQueue: Send + Sync {
    /// Forms a batch and executes it on this thread, which waits for `limit` at most; after it a
    /// core goes on. Then further batches, as the `budget` allows. None if it found nothing to
    /// execute, or no place, of which it tells a core. After an execution that took longer, the
    /// queue takes fewer offers. Batches that are too large for the `duration` are left to the
    /// core.
    fn execute_inline(
        &self,
        limit: Duration,
        budget: InlineBudget,
        duration: InlineDuration,
    ) -> Option<InlineExecution>;

    /// Leaves what was submitted to a core.
    fn leave_to_core(&self);
}

/// What a submitter offers with a request.
#[derive(Default)]
pub struct InlineOffer {
    offered: OfferKind,
    turn: Option<InlineTurn>,
}

#[derive(Default, PartialEq, Eq)]
enum OfferKind {
    #[default]
    Nothing,
    Execution(InlineDuration),
    LaterWake,
}

impl InlineOffer {
    /// None, as of all submitters that cannot wait.
    pub fn none() -> InlineOffer {
        InlineOffer::default()
    }

    /// An offer if `is_open`. Whoever makes one looks for [`InlineOffer::into_turn`] soon.
    pub fn new(is_open: bool) -> InlineOffer {
        InlineOffer {
            offered: match is_open {
                true => OfferKind::Execution(InlineDuration::Any),
                false => OfferKind::Nothing,
            },
            turn: None,
        }
    }

    /// An offer to execute models whose executions are known to be brief, with `byte_count` bytes
    /// of inputs. Whoever makes one looks for [`InlineOffer::into_turn`] soon.
    pub fn of_brief_execution(byte_count: usize) -> InlineOffer {
        InlineOffer::of_duration(InlineDuration::Brief, byte_count)
    }

    /// As [`InlineOffer::of_brief_execution`], of a submitter whose CPU a core would take: the
    /// executions may be a little longer.
    pub fn of_short_execution(byte_count: usize) -> InlineOffer {
        InlineOffer::of_duration(InlineDuration::Short, byte_count)
    }

    pub(crate) fn of_duration(duration: InlineDuration, byte_count: usize) -> InlineOffer {
        InlineOffer {
            offered: match byte_count <= duration.bytes_max() {
                true => OfferKind::Execution(duration),
                false => OfferKind::Nothing,
            },
            turn: None,
        }
    }

    /// An offer to wake a core later, once for several requests: by a drop of
    /// [`InlineOffer::into_turn`], which is soon.
    pub fn of_later_wake() -> InlineOffer {
        InlineOffer {
            offered: OfferKind::LaterWake,
            turn: None,
        }
    }

    /// Whether a queue may have its batch executed by the submitter.
    pub(crate) fn is_open(&self) -> bool {
        self.duration().is_some()
    }

    /// How long it may take, if a queue may have its batch executed by the submitter.
    pub(crate) fn duration(&self) -> Option<InlineDuration> {
        match self.offered {
            OfferKind::Execution(duration) => Some(duration),
            OfferKind::Nothing | OfferKind::LaterWake => None,
        }
    }

    /// Whether a queue may leave it to the submitter to wake a core.
    pub(crate) fn wakes_later(&self) -> bool {
        self.offered == OfferKind::LaterWake
    }

    /// Takes the offer, once.
    pub(crate) fn take(&mut self, queue: Arc<dyn InlineQueue>) {
        let duration = self.duration().unwrap_or_default();
        self.offered = OfferKind::Nothing;
        self.turn = Some(InlineTurn {
            queue: Some(queue),
            duration,
        });
    }

    /// What the submitter owes, if a queue took the offer.
    pub fn into_turn(self) -> Option<InlineTurn> {
        self.turn
    }
}

/// An execution that a submitter owes a queue. Dropped, it is left to a core.
pub struct InlineTurn {
    queue: Option<Arc<dyn InlineQueue>>,
    duration: InlineDuration,
}

impl InlineTurn {
    /// Executes a batch; see [`InlineQueue::execute_inline`]. Replies are delivered before it
    /// returns. What is left is a core's.
    pub fn run(mut self, limit: Duration) -> Option<InlineExecution> {
        self.run_within(limit, InlineBudget::default())
    }

    /// Executes a batch, and further ones as the `budget` allows: for a submitter that owes several
    /// turns, of which others may find nothing left then. What is left it may run later, or drop.
    pub fn run_within(&mut self, limit: Duration, budget: InlineBudget) -> Option<InlineExecution> {
        let queue = self.queue.take()?;
        let execution = queue.execute_inline(limit, budget, self.duration)?;
        if execution.is_left {
            self.queue = Some(queue);
        }
        Some(execution)
    }
}

impl Drop for InlineTurn {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.leave_to_core();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const EXECUTED: InlineExecution = InlineExecution {
        progress: Progress::Done,
        batch_count: 1,
        duration_ns: 7,
        is_left: false,
    };

    #[derive(Default)]
    struct Fake {
        executed: AtomicUsize,
        left: AtomicUsize,
        /// Batches in the queue beyond the first.
        further_count: AtomicUsize,
    }

    impl InlineQueue for Fake {
        fn execute_inline(
            &self,
            _: Duration,
            _: InlineBudget,
            _: InlineDuration,
        ) -> Option<InlineExecution> {
            self.executed.fetch_add(1, Ordering::Relaxed);
            let further_count = self.further_count.load(Ordering::Relaxed);
            let rest = further_count.saturating_sub(1);
            self.further_count.store(rest, Ordering::Relaxed);
            Some(InlineExecution {
                is_left: further_count > 0,
                ..EXECUTED
            })
        }

        fn leave_to_core(&self) {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn offers_of_known_duration_are_for_inputs_that_are_copied_in_it() {
        for (byte_count, is_brief, is_short) in [
            (0, true, true),
            (BRIEF_BYTES_MAX, true, true),
            (BRIEF_BYTES_MAX + 1, false, true),
            (INLINE_BYTES_MAX, false, true),
            (INLINE_BYTES_MAX + 1, false, false),
        ] {
            let brief = InlineOffer::of_brief_execution(byte_count);
            assert_eq!(brief.is_open(), is_brief, "{byte_count}");
            let short = InlineOffer::of_short_execution(byte_count);
            assert_eq!(short.is_open(), is_short, "{byte_count}");
        }
    }

    #[test]
    fn a_turn_is_run_or_left_but_not_lost() {
        let queue = Arc::new(Fake::default());
        let counts = || {
            let (executed, left) = (&queue.executed, &queue.left);
            (
                executed.load(Ordering::Relaxed),
                left.load(Ordering::Relaxed),
            )
        };
        assert!(!InlineOffer::none().is_open() && !InlineOffer::none().wakes_later());
        let mut later = InlineOffer::of_later_wake();
        assert!(later.wakes_later() && !later.is_open());
        later.take(Arc::clone(&queue) as _);
        assert!(!later.wakes_later());
        drop(later.into_turn());
        assert_eq!(counts(), (0, 1));
        queue.left.store(0, Ordering::Relaxed);
        assert!(InlineOffer::new(true).into_turn().is_none(), "nobody took");
        let take = || {
            let mut offer = InlineOffer::new(true);
            offer.take(Arc::clone(&queue) as _);
            assert!(!offer.is_open(), "an offer is taken once");
            offer
        };
        let turn = take().into_turn().unwrap();
        assert_eq!(turn.run(Duration::ZERO), Some(EXECUTED));
        assert_eq!(counts(), (1, 0));
        drop(take().into_turn());
        assert_eq!(counts(), (1, 1));
        drop(take());
        assert_eq!(counts(), (1, 2));
        queue.further_count.store(1, Ordering::Relaxed);
        let mut turn = take().into_turn().unwrap();
        let mut run = || turn.run_within(Duration::ZERO, InlineBudget::default());
        assert!(run().unwrap().is_left);
        assert_eq!(run(), Some(EXECUTED), "it was owed still");
        assert_eq!(run(), None);
        drop(turn);
        assert_eq!(counts(), (3, 2));
        queue.further_count.store(1, Ordering::Relaxed);
        take().into_turn().unwrap().run(Duration::ZERO);
        assert_eq!(counts(), (4, 3));
    }
}
