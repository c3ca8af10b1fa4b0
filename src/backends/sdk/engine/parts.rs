//! What runs on CPUs and on GPUs need of a model's instance.

use super::plan::{FeedPlan, OutputPlan};
use super::session::Session;
use super::tensor::{Feed, Target};
use crate::{Batch, CancellationWatch, Code, Error};

/// A session, and how its inputs and outputs are brought to it.
pub(super) struct Parts<S> {
    pub(super) session: S,
    pub(super) feeds: Vec<FeedPlan>,
    pub(super) outputs: Vec<OutputPlan>,
    pub(super) compute: Compute,
    /// Rows of each request of the batch, kept for its memory.
    pub(super) rows: Vec<usize>,
}

/// How a session is run.
pub(super) struct Compute {
    /// Where runs can be interrupted.
    watch: Option<CancellationWatch>,
}

impl Compute {
    pub(super) fn new(watch: Option<CancellationWatch>) -> Self {
        Compute { watch }
    }

    /// Runs the session once.
    ///
    /// # Errors
    /// What the engine says; `Cancelled` if the run was ended.
    pub(super) fn run<S: Session>(
        &self,
        session: &mut S,
        batch: &Batch<'_>,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<S::Output>>, Error> {
        let mut run = || session.run(feeds, targets);
        let Some(watch) = &self.watch else {
            return run();
        };
        match watch.during(batch, run) {
            (Err(_), true) => Err(Error::new(Code::Cancelled, "the request was cancelled")),
            (outputs, _) => outputs,
        }
    }
}
