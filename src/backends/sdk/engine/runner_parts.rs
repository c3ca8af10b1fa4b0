//! The parts of a runner that batches in main memory and batches on a GPU share.

use super::plan::{FeedPlan, OutputPlan};
use super::session::Session;
use super::tensor::{Feed, Target};
use crate::{Batch, CancellationWatch, Code, Error};

/// A session, and how its inputs and outputs are brought to it.
pub(super) struct RunnerParts<S> {
    pub(super) session: S,
    pub(super) feeds: Vec<FeedPlan>,
    pub(super) outputs: Vec<OutputPlan>,
    /// Where runs can be interrupted.
    pub(super) watch: Option<CancellationWatch>,
    /// Rows of each request of the batch, kept for its memory.
    pub(super) rows: Vec<usize>,
}

/// Runs the session once.
///
/// # Errors
/// What the engine says; `Cancelled` if `watch` ended the run.
pub(super) fn run_session<S: Session>(
    session: &mut S,
    watch: Option<&CancellationWatch>,
    batch: &Batch<'_>,
    feeds: &[Feed<'_>],
    targets: &mut [Target<'_, '_>],
) -> Result<Vec<Option<S::Output>>, Error> {
    watched(watch, batch, || session.run(feeds, targets))
}

/// Does `run`, which `watch` ends if all requests are cancelled meanwhile.
///
/// # Errors
/// Those of `run`; `Cancelled` if `watch` ended it.
pub(super) fn watched<T>(
    watch: Option<&CancellationWatch>,
    batch: &Batch<'_>,
    run: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let Some(watch) = watch else {
        return run();
    };
    match watch.during(batch, run) {
        (Err(_), true) => Err(Error::new(Code::Cancelled, "the request was cancelled")),
        (outputs, _) => outputs,
    }
}
