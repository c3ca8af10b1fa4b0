//! Waiting for models that come when they are asked for.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use conch_control::on_demand::LoadOutcome;
use conch_engine::{Error, InFlightPermit, clock};

use super::runtime::Timer;
use super::state::Shard;

/// Keeps a model until the request that it was loaded for is submitted. Boxed: most servers have
/// none, and their requests carry it along.
pub type HeldPermit = Option<Box<InFlightPermit>>;

/// Waits for a model that is loaded.
pub type ModelFuture = Pin<Box<dyn Future<Output = Result<HeldPermit, Error>>>>;

/// A model that is there, or comes.
pub enum EnsuredModel {
    Here(HeldPermit),
    Coming(ModelFuture),
}

impl Shard {
    /// Sees to it that the model is there when it can be, where models come when they are asked
    /// for. What it yields says nothing about those that cannot be had at all: the lookup does.
    ///
    /// # Errors
    /// Why the model does not come.
    pub fn ensure_loaded(&self, name: &str, version: Option<i64>) -> Result<EnsuredModel, Error> {
        let Some(demand) = self.server.demand() else {
            return Ok(EnsuredModel::Here(None));
        };
        let call = match self.server.ensure_loaded(name, version)? {
            LoadOutcome::Here(permit) => return Ok(EnsuredModel::Here(permit.map(Box::new))),
            LoadOutcome::Coming(call) => call,
        };
        // What makes room has the same patience; this one is for the load behind it.
        let patience = demand.settings().patience + ROOM_SLACK;
        let deadline_ns = clock::monotonic_ns()
            .saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let (demand, name) = (std::sync::Arc::clone(demand), Box::<str>::from(name));
        Ok(EnsuredModel::Coming(Box::pin(async move {
            let mut call = pin!(call);
            let mut timer = Timer::at(deadline_ns);
            poll_fn(|context| {
                if let Poll::Ready(outcome) = call.as_mut().poll(context) {
                    return Poll::Ready(outcome.map(|permit| permit.map(Box::new)));
                }
                Pin::new(&mut timer)
                    .poll(context)
                    .map(|()| Err(demand.too_late(&name)))
            })
            .await
        })))
    }
}

/// So that who waits hears why there was no room.
const ROOM_SLACK: Duration = Duration::from_millis(100);
