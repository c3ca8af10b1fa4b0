//! Executions that a shard owes a queue, in place of a core.
//!
//! A shard that has a single request in flight has nothing to do before the reply. It offers the
//! model's queue to execute the request itself, at the end of its turn: no thread is woken, there
//! and back. The queue takes offers of models whose executions are brief
//! (`engine/execution/queue/inline.rs`). So a request of 64 bytes over HTTP costs 47 us of CPU in
//! place of 59.

use std::cell::Cell;
use std::time::Duration;

use conch_engine::InlineTurn;

use super::runtime::note_spent;
use super::stage::ShardStage;

/// Longer executions are a core's: the shard serves nobody meanwhile. So long may a turn of the
/// executor take, and a small request of a model in Python half as long.
const LIMIT: Duration = Duration::from_micros(100);

/// The execution that a shard owes, at most one. One per shard.
#[derive(Default)]
pub(super) struct OwedExecution {
    turn: Cell<Option<InlineTurn>>,
}

impl OwedExecution {
    /// Notes what a queue got for an offer.
    pub(super) fn owe(&self, turn: InlineTurn) {
        self.turn.set(Some(turn));
    }

    /// Executes it, or a core does if it takes long. True if the reply was delivered, or is to come
    /// from a core; false if nothing was owed, or a core was faster.
    pub(super) fn execute(&self) -> bool {
        let turn = self.turn.take();
        let execution = turn.and_then(|turn| turn.run(LIMIT));
        if let Some(execution) = execution {
            note_spent(ShardStage::InlineExecution, execution.duration_ns);
        }
        execution.is_some()
    }
}
