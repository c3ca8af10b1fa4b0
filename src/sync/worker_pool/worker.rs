//! One thread's side of the pool, and where that thread is in its loop.

use crate::parker::Spin;

/// One thread's side of a [`WorkerPool`](super::WorkerPool); it stays on that thread, unless it is
/// [moved](super::WorkerPool::move_here).
#[derive(Debug)]
pub struct Worker {
    pub(super) core: usize,
    pub(super) spin: Spin,
    pub(super) state: WorkerState,
    /// Set when the worker was dismissed.
    pub(super) unwatched_deadline_ns: Option<u64>,
}

impl Worker {
    pub(super) fn new(core: usize, spin: Spin) -> Worker {
        Worker {
            core,
            spin,
            state: WorkerState::Away(PollNeed::Due),
            unwatched_deadline_ns: None,
        }
    }

    /// The worker's number.
    pub fn core(&self) -> usize {
        self.core
    }

    /// The scheduler's deadline when this worker was dismissed, if no idle worker watches it.
    pub fn unwatched_deadline_ns(&self) -> Option<u64> {
        self.unwatched_deadline_ns
    }
}

/// Whether a worker drives the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollNeed {
    /// Whatever the published poll state says.
    Due,
    /// If there is news. That the pool closes is none once the worker has seen it.
    OnNews { has_seen_closing: bool },
}

/// Where a worker is.
///
/// ```text
///              next                    list                    wake
///   Away ◄───────────────► Awake ────────────────► Listed ─────────────► Awake
///    ▲        leave         │  ▲                      │ (or leave_listed ► Away)
///    │                 lock │  │ stay                 │ lock
///    │                      ▼  │                      │
///    └───────────────────  Driving  ◄─────────────────┘
///          take_batch         │
///                             │ end: closed and drained
///                             ▼
///          Awake, Listed ─► Ended
///                      end: dismissed
/// ```
///
/// Only a `Listed` worker is in the idle set, is unparked by others, and may park. Each method
/// asserts that its transition is one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// Outside of the pool: it starts, executes its batch, or looks after earlier ones.
    Away(PollNeed),
    Awake(PollNeed),
    Listed(PollNeed),
    /// It holds the lock, or has just unlocked.
    Driving,
    Ended,
}

impl WorkerState {
    /// The worker asks for a batch.
    pub(super) fn next(&mut self) {
        *self = match *self {
            WorkerState::Away(need) => WorkerState::Awake(need),
            state => panic!("a worker asks for a batch while it is {state:?}"),
        };
    }

    /// How the worker looks before it locks.
    pub(super) fn poll_need(self) -> PollNeed {
        match self {
            WorkerState::Awake(need) | WorkerState::Listed(need) => need,
            state => panic!("a worker looks while it is {state:?}"),
        }
    }

    /// The worker is in the idle set.
    pub(super) fn list(&mut self) {
        *self = match *self {
            WorkerState::Awake(need) => WorkerState::Listed(need),
            state => panic!("a worker enters the idle set while it is {state:?}"),
        };
    }

    /// The worker holds the lock. Returns whether it is in the idle set, which it has to leave.
    pub(super) fn lock(&mut self) -> bool {
        let is_listed = match *self {
            WorkerState::Awake(_) => false,
            WorkerState::Listed(_) => true,
            state => panic!("a worker locks while it is {state:?}"),
        };
        *self = WorkerState::Driving;
        is_listed
    }

    /// The scheduler had no batch for the worker.
    pub(super) fn stay(&mut self, need: PollNeed) {
        assert_eq!(*self, WorkerState::Driving);
        *self = WorkerState::Awake(need);
    }

    /// The worker leaves with a batch. Whether more can be formed now is decided anew on its next
    /// call: the scheduler may have changed by then without it.
    pub(super) fn take_batch(&mut self, is_ready: bool) {
        assert_eq!(*self, WorkerState::Driving);
        *self = WorkerState::Away(if is_ready {
            PollNeed::Due
        } else {
            PollNeed::OnNews {
                has_seen_closing: false,
            }
        });
    }

    /// The worker waits no longer, and has no batch.
    pub(super) fn leave(&mut self) {
        *self = match *self {
            WorkerState::Awake(need) => WorkerState::Away(need),
            state => panic!("a worker leaves while it is {state:?}"),
        };
    }

    /// The worker was parked, and is out of the idle set.
    pub(super) fn wake(&mut self) {
        assert!(matches!(*self, WorkerState::Listed(_)));
        *self = WorkerState::Awake(PollNeed::Due);
    }

    /// The worker is out of the idle set, and waits no longer. Whether it was unparked says what it
    /// does next.
    pub(super) fn leave_listed(&mut self, is_unparked: bool) {
        *self = match *self {
            WorkerState::Listed(need) => WorkerState::Away(match is_unparked {
                true => PollNeed::Due,
                false => need,
            }),
            state => panic!("a worker ends a wait while it is {state:?}"),
        };
    }

    /// The worker gets no further batch.
    pub(super) fn end(&mut self) {
        assert!(!matches!(*self, WorkerState::Away(_) | WorkerState::Ended));
        *self = WorkerState::Ended;
    }
}
