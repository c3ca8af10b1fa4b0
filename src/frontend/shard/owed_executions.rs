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
#[derive(Default)]
pub(super) struct OwedExecutions {
    turns: RefCell<Vec<InlineTurn>>,
}

impl OwedExecutions {
    /// Notes what a queue got for an offer.
    pub(super) fn owe(&self, turn: InlineTurn) {
        self.turns.borrow_mut().push(turn);
    }

    /// Executes them, or cores do what takes long. True if a reply was delivered, or is to come
    /// from a core; false if nothing was owed, or cores were faster.
    pub(super) fn execute(&self) -> bool {
        let mut turns = self.turns.take();
        if turns.is_empty() {
            return false;
        }
        // Where shards share a model, each executes as many requests as it has submitted.
        let owed_count = turns.len();
        let (mut batch_count, mut spent_ns) = (0usize, 0);
        for turn in turns.drain(..) {
            if spent_ns >= BEGIN_NS_MAX {
                // Its drop wakes a core.
                continue;
            }
            let budget = InlineBudget {
                further_count: owed_count.saturating_sub(batch_count + 1),
                time: Duration::from_nanos(BEGIN_NS_MAX - spent_ns),
            };
            if let Some(execution) = turn.run_within(LIMIT, budget) {
                batch_count += execution.batch_count;
                spent_ns += execution.duration_ns;
            }
        }
        // Kept for its capacity.
        self.turns.replace(turns);
        if batch_count > 0 {
            note_spent(ShardStage::InlineExecution, spent_ns);
        }
        batch_count > 0
    }
}
