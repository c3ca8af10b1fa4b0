//! What a submitter owes an ensemble: the turns of its steps, one after another (`inline.rs`).

use std::time::Duration;

use crate::clock::monotonic_ns;
use crate::ensemble::run::Execution;
use crate::request::inline::{InlineBudget, InlineExecution, InlineQueue, InlineTurn};

impl InlineQueue for Execution {
    /// Executes steps until one is left to a core, or half of the time is over: the next one may
    /// take the rest. Other runs have turns of their own.
    fn execute_inline(&self, limit: Duration, _: InlineBudget) -> Option<InlineExecution> {
        let begin_ns = monotonic_ns();
        let elapsed = || Duration::from_nanos(monotonic_ns().saturating_sub(begin_ns));
        let _guard = InlineGuard(self);
        self.state().inline.open();
        let mut progress = None;
        while let Some(turn) = self.owed_turn()
            && elapsed() <= limit / 2
        {
            let execution = turn.run(limit.saturating_sub(elapsed()));
            progress = execution.map(|execution| execution.progress).or(progress);
        }
        Some(InlineExecution {
            progress: progress?,
            batch_count: 1,
            duration_ns: u64::try_from(elapsed().as_nanos()).unwrap_or(u64::MAX),
        })
    }

    fn leave_to_core(&self) {
        drop(self.owed_turn());
    }
}

impl Execution {
    /// Taken out, so that it is neither run nor dropped under the lock.
    fn owed_turn(&self) -> Option<InlineTurn> {
        self.state().inline.take()
    }
}

/// Ends the time in which steps are offered, and leaves what is owed to a core.
struct InlineGuard<'a>(&'a Execution);

impl Drop for InlineGuard<'_> {
    fn drop(&mut self) {
        self.0.state().inline.close();
        self.0.leave_to_core();
    }
}
