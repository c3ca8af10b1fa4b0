//! What a submitter owes an ensemble: the turns of its steps, one after another (`inline.rs`).

use std::time::Duration;

use crate::clock::monotonic_ns;
use crate::ensemble::inline::{self, InlineGuard};
use crate::ensemble::run::Execution;
use crate::request::inline::{
    InlineBudget, InlineDuration, InlineExecution, InlineQueue, Progress,
};

impl InlineQueue for Execution {
    /// Executes steps until none is offered any more, or half of the time is over: the next one may
    /// take the rest. Steps that are brief go on as long as the `budget` allows. They may be of
    /// other runs: their turns find nothing left then.
    fn execute_inline(
        &self,
        limit: Duration,
        budget: InlineBudget,
        _: InlineDuration,
    ) -> Option<InlineExecution> {
        let begin_ns = monotonic_ns();
        let elapsed = || Duration::from_nanos(monotonic_ns().saturating_sub(begin_ns));
        let owed = self.state().inline_steps.take()?;
        let time = match owed.duration() {
            InlineDuration::Any => limit / 2,
            InlineDuration::Short | InlineDuration::Brief => budget.time.max(limit / 2),
        };
        let guard = InlineGuard::open(owed);
        let mut progress = None;
        // A queue may have steps of others, too: as many batches are executed as steps were
        // started.
        let (mut started_count, mut executed_count) = (budget.further_count, 0);
        let mut spent = elapsed();
        while spent <= time
            && let Some((mut turn, owed_count)) = guard.next_turn()
        {
            started_count += 1;
            let budget = InlineBudget {
                further_count: (started_count + owed_count).saturating_sub(executed_count + 1),
                time: time.saturating_sub(spent),
            };
            let execution = turn.run_within(limit.saturating_sub(spent), budget);
            spent = elapsed();
            let Some(execution) = execution else {
                continue;
            };
            progress = Some(execution.progress);
            executed_count += execution.batch_count;
            if execution.is_left
                && execution.batch_count > 0
                && started_count + guard.owed_count() > executed_count
            {
                started_count -= 1;
                inline::owe(turn);
            }
        }
        let owed = guard.close().filter(|owed| !owed.is_empty());
        let is_left = owed.is_some();
        self.state().inline_steps = owed;
        (progress.is_some() || is_left).then(|| InlineExecution {
            progress: progress.unwrap_or(Progress::Done),
            batch_count: usize::from(progress.is_some()),
            duration_ns: u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX),
            is_left,
        })
    }

    /// Taken out, so that it is not dropped under the lock.
    fn leave_to_core(&self) {
        let owed = self.state().inline_steps.take();
        drop(owed);
    }
}
