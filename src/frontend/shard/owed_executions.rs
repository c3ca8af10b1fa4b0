//! Executions that a shard owes queues, in place of cores.
//!
//! A shard that has a single request in flight has nothing to do before the reply. It offers the
//! model's queue to execute the request itself, at the end of its turn: no thread is woken, there
//! and back. The queue takes offers of models whose executions are short
//! (`engine/execution/queue/inline.rs`). So a request of 64 bytes over HTTP costs 47 us of CPU in
//! place of 59. With more requests in flight the shard offers the same to models whose executions
//! take no longer than it takes to wake a core: it reads what its sockets have, executes, and
//! answers.

use std::cell::RefCell;
use std::time::Duration;

use conch_engine::{InlineBudget, InlineTurn};

use super::runtime::note_spent;
use super::stage::ShardStage;

/// Longer executions are a core's: the shard serves nobody meanwhile. So long may a turn of the
/// executor take, and a small request of a model in Python half as long.
const LIMIT: Duration = Duration::from_micros(100);
/// After so long in a turn of the executor no further execution begins: one that is brief still
/// ends within the time that a turn may take.
const BEGIN_NS_MAX: u64 = 90_000;

/// The executions that a shard owes, of at most all requests that it has in flight. One per shard.
pub(super) struct OwedExecutions {
    turns: RefCell<Vec<InlineTurn>>,
    /// Cores would take the CPU from the shard. So what no turn of the executor has time for is
    /// left to the next one, else to cores.
    shares_cpu: bool,
}

impl OwedExecutions {
    /// Of a shard that `shares_cpu` with cores, or does not.
    pub(super) fn new(shares_cpu: bool) -> OwedExecutions {
        OwedExecutions {
            turns: RefCell::default(),
            shares_cpu,
        }
    }

    pub(super) fn shares_cpu(&self) -> bool {
        self.shares_cpu
    }

    /// Notes what a queue got for an offer.
    pub(super) fn owe(&self, turn: InlineTurn) {
        self.turns.borrow_mut().push(turn);
    }

    /// Whether some were left to the next turn of the executor.
    pub(super) fn has_any(&self) -> bool {
        !self.turns.borrow().is_empty()
    }

    /// Executes them, or cores do what takes long. True if a reply was delivered, or is to come
    /// from a core; false if nothing was owed, or cores were faster.
    pub(super) fn execute(&self) -> bool {
        if !self.has_any() {
            return false;
        }
        let mut turns = self.turns.take();
        // Where shards share a model, each executes as many requests as it has submitted.
        let owed_count = turns.len();
        let (mut batch_count, mut spent_ns) = (0usize, 0);
        // The drop of a turn that is not kept wakes a core, if there is something left to do.
        turns.retain_mut(|turn| {
            if spent_ns >= BEGIN_NS_MAX {
                return self.shares_cpu;
            }
            let budget = InlineBudget {
                further_count: owed_count.saturating_sub(batch_count + 1),
                time: Duration::from_nanos(BEGIN_NS_MAX - spent_ns),
            };
            let Some(execution) = turn.run_within(LIMIT, budget) else {
                return false;
            };
            batch_count += execution.batch_count;
            spent_ns += execution.duration_ns;
            execution.is_left && spent_ns >= BEGIN_NS_MAX && self.shares_cpu
        });
        // Kept for its capacity, too.
        self.turns.replace(turns);
        if batch_count > 0 {
            note_spent(ShardStage::InlineExecution, spent_ns);
        }
        batch_count > 0
    }
}
