//! The only lock-free code: request ownership, queues between threads, and their wake-ups.
//!
//! - `claim`: which of executor, canceller and timer owns a request.
//! - `mpsc_queue`: an intrusive queue that many threads push onto and one takes whole. As [`Inbox`]
//!   it leads into a model's workers.
//! - `worker_pool`: how a model's workers share that queue and their scheduler. `try_lock` lets one
//!   worker at a time drive the scheduler; `parker` puts idle workers to sleep and wakes them.
//! - `mailbox`: the queue into a shard, with the [`Notify`] that wakes it.
//! - `sleep_flag`: whether a thread sleeps in the kernel, for those who bring it work.
//! - `keyed_counter`: counts of concurrent holders per key, in constant memory.
//! - `trial_backoff`: how often something is tried that pays only at times; `cpu_offers`: letting a
//!   thread on the same CPU go first, as often as that pays.
//!
//! The orderings are checked under loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p conch-sync --release --lib`.

mod claim;
mod cpu_offers;
mod keyed_counter;
mod mailbox;
mod mpsc_queue;
mod parker;
mod primitives;
mod sleep_flag;
mod trial_backoff;
mod try_lock;
mod worker_pool;

pub use claim::{Claim, ClaimReason, Owned};
pub use cpu_offers::CpuOffers;
pub use keyed_counter::{CounterSlot, Full, KeyedCounter};
pub use mailbox::{Mailbox, Messages, Notify, Receiver};
pub use mpsc_queue::{Drained, Link, MpscQueue, Node, Refused};
pub use parker::{Clock, IdleSet, NEVER_NS, Parker, SPIN_MAX_NS, Spin, park_current_until};
pub use sleep_flag::SleepFlag;
pub use trial_backoff::TrialBackoff;
pub use worker_pool::{
    LimitedWait, NextBatch, PollOutcome, PollState, SharedWait, Worker, WorkerPool,
};

/// The queue into a model's workers.
pub type Inbox<L> = MpscQueue<L>;
