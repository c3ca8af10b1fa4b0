//! One executable copy of a model: joins a batch's inputs, runs it once, and cuts the outputs
//! apart.

use super::delivery::{deliver, send};
use super::inputs::{count_rows, gather};
use super::plan::{FeedPlan, OutputPlan, feed_plans, output_plans};
use super::session::Session;
use super::targets::{targets, wanted_outputs};
use super::tensor::Feed;
use crate::{Batch, CancellationWatch, Code, Error, ModelConfig};

/// A session, and how batches are brought to it. One batch is one run.
pub struct Runner<S: Session> {
    session: S,
    feeds: Vec<FeedPlan>,
    outputs: Vec<OutputPlan>,
    /// Where runs can be interrupted.
    watch: Option<CancellationWatch>,
    /// Rows of each request of the batch, kept for its memory.
    rows: Vec<usize>,
}

impl<S: Session> Runner<S> {
    /// Brings a configuration, which [fits the model](super::validate::validate), and its session
    /// together.
    ///
    /// # Errors
    /// What the configuration has wrong; `Unavailable` if the system has no thread that watches for
    /// cancellation.
    pub fn new(config: &ModelConfig, session: S) -> Result<Self, Error> {
        Ok(Runner {
            feeds: feed_plans(config, session.signature())?,
            outputs: output_plans(config, session.signature())?,
            watch: session
                .interrupt()
                .map(CancellationWatch::new)
                .transpose()?,
            session,
            rows: Vec::new(),
        })
    }

    /// The session that runs the batches.
    pub fn session(&self) -> &S {
        &self.session
    }

    /// The same, to change how it runs the next batch.
    pub fn session_mut(&mut self) -> &mut S {
        &mut self.session
    }

    /// Runs a batch and sends its responses.
    ///
    /// # Errors
    /// What ends the whole batch; requests without a response yet get it.
    pub fn run(&mut self, model_name: &str, batch: &Batch<'_>) -> Result<(), Error> {
        let total = count_rows(model_name, batch, &mut self.rows)?;
        let gathered = gather(&mut self.feeds, model_name, batch)?;
        let feeds: Vec<_> = gathered
            .iter()
            .map(|(name, tensor)| Feed {
                name,
                data_type: tensor.data_type,
                shape: &tensor.shape,
                bytes: tensor.bytes,
            })
            .collect();
        let wanted = wanted_outputs(&self.outputs, batch)?;
        let mut responses = batch
            .requests()
            .map(|request| request.respond().map(Some))
            .collect::<Result<Vec<_>, Error>>()?;

        batch.begin_compute();
        let outputs = if wanted.is_empty() {
            Vec::new()
        } else {
            let in_place = self.session.writes_in_place();
            let mut targets = targets(in_place, batch, &responses, &wanted, total)?;
            let mut run = || self.session.run(&feeds, &mut targets);
            match &self.watch {
                Some(watch) => match watch.during(batch, run) {
                    (Err(_), true) => {
                        return Err(Error::new(Code::Cancelled, "the request was cancelled"));
                    }
                    (outputs, _) => outputs?,
                },
                None => run()?,
            }
        };
        batch.end_compute();

        for (plan, output) in wanted.iter().zip(outputs) {
            if let Some(output) = output {
                deliver(plan, &output, batch, &self.rows, &mut responses)?;
            }
        }
        send(responses, model_name);
        Ok(())
    }
}
