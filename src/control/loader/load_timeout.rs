//! Loads with a time limit (`--model-load-timeout-secs`).
//!
//! A call into a backend cannot be interrupted. An attempt with a limit runs on a thread of its
//! own; when the time is up the load fails, and the thread stays behind until its backend returns,
//! if ever. What it then brings is taken down again. A model version has one such thread at most:
//! until that has ended, further loads of it fail at once.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use conch_engine::Error;
use conch_engine::execution::progress::LoadProgress;
use conch_log as log;

use super::Lifecycle;
use super::load_plan::LoadPlan;
use super::version_change::VersionChange;

/// What became of an attempt. Whoever comes second, the attempt or the limit, finds what the first
/// has left.
enum AttemptOutcome {
    UnderWay,
    GivenUp,
    Done(Result<VersionChange, Error>),
}

impl Lifecycle {
    /// One attempt of `timeout` at most.
    ///
    /// # Errors
    /// Those of the attempt; UNAVAILABLE if the time is up, or an attempt that was given up still
    /// runs.
    pub(super) fn attempt_within(
        &self,
        timeout: Duration,
        plan: &LoadPlan,
        version: i64,
        progress: &Arc<LoadProgress>,
    ) -> Result<VersionChange, Error> {
        let seconds = timeout.as_secs();
        if self.overdue.has(&plan.id, version) {
            return Err(Error::unavailable(format!(
                "its backend has not returned yet from a load that was given up after {seconds} \
                 seconds"
            )));
        }
        let Some(own) = self.own.upgrade() else {
            return self.attempt(plan, version, progress);
        };
        let shared = Arc::new(Mutex::new(AttemptOutcome::UnderWay));
        let (done, is_done) = mpsc::channel();
        let run = {
            let (plan, progress, shared) =
                (plan.clone(), Arc::clone(progress), Arc::clone(&shared));
            move || {
                let outcome = own.attempt(&plan, version, &progress);
                let given_up = {
                    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    match &*shared {
                        AttemptOutcome::GivenUp => Some(outcome),
                        _ => {
                            *shared = AttemptOutcome::Done(outcome);
                            None
                        }
                    }
                };
                // The other end is gone only if nobody waits any more.
                let _ = done.send(());
                if let Some(outcome) = given_up {
                    own.end_overdue(&plan, version, outcome);
                }
            }
        };
        thread::Builder::new()
            .name(String::from("load"))
            .spawn(run)
            .map_err(|cause| Error::unavailable(format!("cannot start a thread: {cause}")))?;
        let _ = is_done.recv_timeout(timeout);
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *shared, AttemptOutcome::GivenUp) {
            AttemptOutcome::Done(outcome) => outcome,
            AttemptOutcome::UnderWay | AttemptOutcome::GivenUp => {
                self.overdue.lock().insert((plan.id.clone(), version));
                // The thread may hold it for ever.
                *self.opening.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
                Err(Error::unavailable(format!(
                    "the load took longer than {seconds} seconds (--model-load-timeout-secs) and \
                     was given up while it was {}",
                    progress.text()
                )))
            }
        }
    }

    /// An attempt that was given up has ended.
    fn end_overdue(&self, plan: &LoadPlan, version: i64, outcome: Result<VersionChange, Error>) {
        let id = &plan.id;
        log::warning!(
            "the backend of '{id}' version {version} has returned from a load that was given up"
        );
        if let Ok(change) = outcome {
            change.undo();
        }
        self.overdue.lock().remove(&(id.clone(), version));
    }
}
