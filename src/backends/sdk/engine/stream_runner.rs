//! One executable copy of a model whose session may leave its runs on the stream of a GPU.

use super::in_flight::InFlightRunner;
use super::runner::Runner;
use super::session::EnqueueSession;
use crate::{Batch, DetachedBatch, DeviceStream, Error, ModelConfig};

/// A session, and how batches are brought to it: one after the other, or several in flight.
pub struct StreamRunner<S: EnqueueSession>(Kind<S>);

enum Kind<S: EnqueueSession> {
    /// Each run is waited for.
    Blocking(Box<Runner<S>>),
    /// Runs are enqueued.
    InFlight(Box<InFlightRunner<S>>),
}

impl<S: EnqueueSession> StreamRunner<S> {
    /// As [`Runner::with_stream`], for a session that is waited for.
    ///
    /// # Errors
    /// As there.
    pub fn blocking(
        config: &ModelConfig,
        session: S,
        stream: Option<DeviceStream>,
    ) -> Result<Self, Error> {
        Runner::with_stream(config, session, stream)
            .map(|runner| StreamRunner(Kind::Blocking(Box::new(runner))))
    }

    /// For a session that enqueues on `stream`, with so many batches in flight. None of its inputs
    /// and outputs may be in main memory.
    ///
    /// # Errors
    /// As [`blocking`](Self::blocking); `Internal` for what the driver refuses.
    pub fn in_flight(
        config: &ModelConfig,
        session: S,
        stream: DeviceStream,
        depth: usize,
    ) -> Result<Self, Error> {
        let runner = InFlightRunner::new(config, session, stream, depth)?;
        Ok(StreamRunner(Kind::InFlight(Box::new(runner))))
    }

    /// Batches that may be in flight; 0: each is [executed](Self::execute).
    pub fn depth_max(&self) -> usize {
        match &self.0 {
            Kind::Blocking(_) => 0,
            Kind::InFlight(runner) => runner.depth_max(),
        }
    }

    /// Runs a batch, waits for it, and sends its responses.
    ///
    /// # Errors
    /// What ends the whole batch; requests without a response yet get it.
    pub fn execute(&mut self, model_name: &str, batch: &Batch<'_>) -> Result<(), Error> {
        match &mut self.0 {
            Kind::Blocking(runner) => runner.run(model_name, batch),
            Kind::InFlight(_) => Err(Error::internal(
                "an instance that keeps batches in flight was told to wait for one",
            )),
        }
    }

    /// Enqueues a batch, or answers that there is no room for it.
    pub fn enqueue(&mut self, model_name: &str, batch: DetachedBatch) {
        match &mut self.0 {
            Kind::Blocking(runner) => batch.finish(|batch| runner.run(model_name, batch)),
            Kind::InFlight(runner) => runner.enqueue(model_name, batch),
        }
    }

    /// Answers the batches that the device is done with, in order; returns how many are left.
    pub fn poll(&mut self) -> usize {
        match &mut self.0 {
            Kind::Blocking(_) => 0,
            Kind::InFlight(runner) => runner.poll(),
        }
    }
}
