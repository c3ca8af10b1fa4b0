//! Instances of models that are sessions: one run after the other, or runs left on the stream of a
//! GPU.

use super::depth::InFlightDepth;
use super::in_flight::InFlightRunner;
use super::runner::Runner;
use super::session::EnqueueSession;
use crate::{
    Batch, DetachedBatch, DeviceStream, Error, Instance, InstanceContext, Model, ModelConfig,
    StreamInstance,
};

/// A model of which each instance is a session, which may leave its runs on the stream of a GPU.
pub trait SessionModel: Model<Instance = SessionInstance<Self>> {
    type Session: EnqueueSession + 'static;

    fn name(&self) -> &str;
    fn config(&self) -> &ModelConfig;

    /// How many batches its instances on GPUs keep in flight, as far as the configuration tells.
    fn depth(&self) -> &InFlightDepth;

    /// Loads the session of an instance, on its thread. On a GPU it enqueues on `stream`.
    ///
    /// # Errors
    /// Any error: the model is not loaded, and the message is its reason.
    fn load(
        &self,
        context: &InstanceContext,
        stream: Option<&DeviceStream>,
    ) -> Result<Self::Session, Error>;
}

/// One executable copy of a model: a session, and how batches are brought to it.
pub struct SessionInstance<M: SessionModel>(AnyRunner<M::Session>);

enum AnyRunner<S: EnqueueSession> {
    /// Each run is waited for.
    Blocking(Box<Runner<S>>),
    /// Runs are enqueued.
    InFlight(Box<InFlightRunner<S>>),
}

impl<M: SessionModel> Instance for SessionInstance<M> {
    type Model = M;

    fn initialize(model: &M, context: &InstanceContext) -> Result<Self, Error> {
        let config = model.config();
        let stream = DeviceStream::open(context, config.stream_priority())?;
        let session = model.load(context, stream.as_ref())?;
        let depth = model.depth().clone().unless(session.in_flight_obstacle());
        let runner = match (stream, &depth) {
            (Some(stream), InFlightDepth::UpTo(depth)) => {
                let runner = InFlightRunner::new(config, session, stream, *depth)?;
                AnyRunner::InFlight(Box::new(runner))
            }
            (stream, _) => {
                AnyRunner::Blocking(Box::new(Runner::with_stream(config, session, stream)?))
            }
        };
        depth.log(model.depth(), context, config);
        Ok(SessionInstance(runner))
    }

    fn execute(&mut self, model: &M, batch: &Batch<'_>) -> Result<(), Error> {
        match &mut self.0 {
            AnyRunner::Blocking(runner) => runner.run(model.name(), batch),
            AnyRunner::InFlight(_) => Err(Error::internal(
                "an instance that keeps batches in flight was told to wait for one",
            )),
        }
    }
}

impl<M: SessionModel> StreamInstance for SessionInstance<M> {
    fn depth_max(&self) -> usize {
        match &self.0 {
            AnyRunner::Blocking(_) => 0,
            AnyRunner::InFlight(runner) => runner.depth_max(),
        }
    }

    fn enqueue(&mut self, model: &M, batch: DetachedBatch) {
        match &mut self.0 {
            AnyRunner::Blocking(runner) => batch.finish(|batch| runner.run(model.name(), batch)),
            AnyRunner::InFlight(runner) => runner.enqueue(model.name(), batch),
        }
    }

    fn poll(&mut self, _model: &M) -> usize {
        match &mut self.0 {
            AnyRunner::Blocking(_) => 0,
            AnyRunner::InFlight(runner) => runner.poll(),
        }
    }
}
