//! One executable copy of a model: joins a batch's inputs, runs it once, and cuts the outputs
//! apart.

use super::device_run;
use super::host_run;
use super::plan::{feed_plans, gather_on_device, output_plans};
use super::runner_parts::RunnerParts;
use super::session::Session;
use crate::{Batch, CancellationWatch, DeviceStream, Error, ModelConfig};

/// A session, and how batches are brought to it. One batch is one run.
pub struct Runner<S: Session> {
    parts: RunnerParts<S>,
    /// Where the session computes on a GPU. It outlives the session.
    stream: Option<DeviceStream>,
}

impl<S: Session> Runner<S> {
    /// Brings a configuration, which [fits the model](super::validate::validate), and its session
    /// together.
    ///
    /// # Errors
    /// What the configuration has wrong; `Unavailable` if the system has no thread that watches for
    /// cancellation.
    pub fn new(config: &ModelConfig, session: S) -> Result<Self, Error> {
        Runner::with_stream(config, session, None)
    }

    /// As [`new`](Self::new), for a session that computes on the GPU of `stream`, if there is one:
    /// what it enqueues, and the copies of inputs and outputs, are on that stream.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_stream(
        config: &ModelConfig,
        session: S,
        stream: Option<DeviceStream>,
    ) -> Result<Self, Error> {
        let mut feeds = feed_plans(config, session.signature())?;
        if let Some(stream) = &stream {
            gather_on_device(&mut feeds, stream, &session);
        }
        let watch = session.interrupt().map(CancellationWatch::new);
        Ok(Runner {
            parts: RunnerParts {
                feeds,
                outputs: output_plans(config, session.signature())?,
                watch: watch.transpose()?,
                session,
                rows: Vec::new(),
            },
            stream,
        })
    }

    /// The session that runs the batches.
    pub fn session(&self) -> &S {
        &self.parts.session
    }

    /// The same, to change how it runs the next batch.
    pub fn session_mut(&mut self) -> &mut S {
        &mut self.parts.session
    }

    /// Runs a batch and sends its responses.
    ///
    /// # Errors
    /// What ends the whole batch; requests without a response yet get it.
    pub fn run(&mut self, model_name: &str, batch: &Batch<'_>) -> Result<(), Error> {
        match &mut self.stream {
            Some(stream) => device_run::run(&mut self.parts, stream, model_name, batch),
            None => host_run::run(&mut self.parts, model_name, batch),
        }
    }
}
