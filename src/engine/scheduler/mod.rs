//! How batches form: passive state machines.
//!
//! Entries and the time go in, batches and the next deadline come out. Nothing here reads a clock, starts a thread or does I/O; `queue`
//! drives a [`Scheduler`] under its model's baton, tests drive it on a virtual clock with entries of their own.

mod dynamic;
mod fifo;
mod levels;
pub(crate) mod measure;
mod strategy;
#[cfg(test)]
mod tests;

use conch_channel::{Fate, NEVER_NS, Outlook};
use conch_config::{Model, Scheduling};
use smallvec::SmallVec;

pub(crate) use dynamic::Dynamic;
pub(crate) use fifo::Fifo;
pub(crate) use levels::{policy_of, rejection_ns};
pub(crate) use strategy::{Strategy, Verdict};

/// What batches require to be equal: the shapes of the variable, non-ragged inputs, the contents of shape tensors, and which inputs are
/// there if any is optional. Empty for a model whose requests always fit together.
pub(crate) type Signature = SmallVec<[i64; 4]>;

/// What a scheduler knows of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Inferences in it, at least 1.
    pub batch_count: u32,
    /// Its priority level; 0 on a model without levels.
    pub level: u64,
    /// When it entered the queue.
    pub queued_ns: u64,
    /// The client's own timeout; 0 for none.
    pub timeout_us: u64,
    /// When the client stops waiting, where it said so: a wish that orders requests, and that others see to. [`NEVER_NS`] for none.
    pub deadline_ns: u64,
    pub signature: Signature,
}

impl Default for Facts {
    fn default() -> Facts {
        Facts {
            batch_count: 0,
            level: 0,
            queued_ns: 0,
            timeout_us: 0,
            deadline_ns: NEVER_NS,
            signature: Signature::new(),
        }
    }
}

/// A queued request, which somebody else may claim at any time.
pub(crate) trait Entry: Clone {
    type Owned;

    fn facts(&self) -> &Facts;

    /// Whether nobody has claimed it yet.
    fn is_waiting(&self) -> bool;

    /// Takes possession; none if somebody was faster.
    fn claim(&self, fate: Fate) -> Option<Self::Owned>;
}

/// What one drive of a scheduler produced.
#[derive(Debug)]
pub(crate) struct Harvest<O> {
    /// Requests to execute together; empty if it is not time yet.
    pub batch: Vec<O>,
    /// Requests whose timeout has passed under a rejecting policy.
    pub expired: Vec<O>,
    /// Requests that were cancelled while a strategy looked at them.
    pub cancelled: Vec<O>,
}

impl<O> Default for Harvest<O> {
    fn default() -> Harvest<O> {
        Harvest {
            batch: Vec::new(),
            expired: Vec::new(),
            cancelled: Vec::new(),
        }
    }
}

/// The scheduler of one model.
#[derive(Debug)]
pub(crate) enum Scheduler<T: Entry> {
    Fifo(Fifo<T>),
    Dynamic(Dynamic<T>),
}

impl<T: Entry> Scheduler<T> {
    /// The scheduler that `config` asks for; none if it is one that does not exist yet. Only the dynamic batcher asks `strategy`.
    pub(crate) fn new(
        config: &Model,
        strategy: Option<Box<dyn Strategy<T> + Send>>,
    ) -> Option<Scheduler<T>> {
        match &config.scheduling {
            Scheduling::Default => Some(Scheduler::Fifo(Fifo::default())),
            Scheduling::Dynamic(settings) => Some(Scheduler::Dynamic(Dynamic::new(
                settings,
                config.max_batch_size,
                strategy,
            ))),
            Scheduling::Sequence | Scheduling::Ensemble => None,
        }
    }

    /// Adds an arrival.
    pub(crate) fn accept(&mut self, entry: T) {
        match self {
            Scheduler::Fifo(fifo) => fifo.accept(entry),
            Scheduler::Dynamic(dynamic) => dynamic.accept(entry),
        }
    }

    /// Forms one batch, if it is time for one at `now_ns`. The harvest's vectors are appended to.
    pub(crate) fn form(&mut self, now_ns: u64, harvest: &mut Harvest<T::Owned>) -> Outlook {
        match self {
            Scheduler::Fifo(fifo) => fifo.form(harvest),
            Scheduler::Dynamic(dynamic) => dynamic.form(now_ns, harvest),
        }
    }

    /// Whether a batch could be formed at `now_ns`, by who may not form it yet. Rejects what has timed out.
    pub(crate) fn look(&mut self, now_ns: u64, harvest: &mut Harvest<T::Owned>) -> Outlook {
        match self {
            Scheduler::Fifo(fifo) => fifo.outlook(),
            Scheduler::Dynamic(dynamic) => dynamic.look(now_ns, harvest),
        }
    }

    /// Rejects what has timed out, without forming a batch: for the time while every instance executes.
    pub(crate) fn expire(&mut self, now_ns: u64, harvest: &mut Harvest<T::Owned>) -> Outlook {
        match self {
            Scheduler::Fifo(fifo) => fifo.outlook(),
            Scheduler::Dynamic(dynamic) => dynamic.expire(now_ns, harvest),
        }
    }
}

/// The outlook of a scheduler that waits for nothing.
fn idle(is_empty: bool) -> Outlook {
    Outlook {
        is_ready: !is_empty,
        deadline_ns: NEVER_NS,
        is_empty,
    }
}
