//! Executions by the thread that calls, where the model says so (`CONCH_INLINE` `"callers"`).
//!
//! Callbacks of the request are then called before the call that submits it returns. One that
//! submits the next request leaves that to a core: else a program that keeps a number of requests
//! in flight in this way would go ever deeper.

use std::cell::Cell;
use std::time::Duration;

use conch_config::InlinePolicy;
use conch_engine::{InlineTurn, ModelVersion};

/// What takes longer is a core's from then on, as where network threads execute.
const LIMIT: Duration = Duration::from_micros(100);

thread_local! {
    static IS_EXECUTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread may execute a request to `model` that it submits.
pub(super) fn may_execute(model: &ModelVersion) -> bool {
    model.config.own.inline == InlinePolicy::Callers && !IS_EXECUTING.get()
}

/// Does what this thread owes for an offer that was taken.
pub(super) fn execute(turn: InlineTurn) {
    struct ExecutingGuard;

    impl Drop for ExecutingGuard {
        fn drop(&mut self) {
            IS_EXECUTING.set(false);
        }
    }

    IS_EXECUTING.set(true);
    let _guard = ExecutingGuard;
    turn.run(LIMIT);
}
