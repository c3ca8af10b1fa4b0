//! The way of a request into a model, the same for the network and for embedders: its limits, the
//! version that is there by now, the permit, the checks, the queue. A step of an ensemble has its
//! version pinned by the ensemble's request, and goes the same way from the permit on.

use std::sync::Arc;

use crate::admission::refusal::{enter_limits, refuse};
use crate::admission::request_permits::{RequestPermits, TryAcquireError};
use crate::admission::submit::admit;
use crate::limits::{AdmissionLimits, LimitOwner, ReachedLimit, Tenant};
use crate::model::registry::Registry;
use crate::model::version::Pin;
use crate::request::inline::InlineOffer;
use crate::{
    Completion, CorrelationId, Draft, Error, InFlightPermit, ModelVersion, Rejected, RequestHandle,
    SequenceFlags, Timestamps,
};

/// Lets requests into models. One per server.
pub struct Engine {
    registry: Arc<Registry>,
    limits: Option<Arc<AdmissionLimits>>,
    loads: Option<Arc<dyn ModelLoads>>,
}

/// Loads models when requests ask for them. Implemented by `control`.
pub trait ModelLoads: Send + Sync {
    /// A permit of the model, if it is there; none if it has no place for a request, or lacks the
    /// version. Else begins to load it. Does not block for longer than moments.
    ///
    /// # Errors
    /// UNAVAILABLE while it is loaded, and why it cannot be loaded.
    fn permit(&self, name: &str, version: Option<i64>) -> Result<Option<InFlightPermit>, Error>;
}

/// Where a request is to go, and whose it is.
#[derive(Clone, Copy)]
pub struct RequestTarget<'a> {
    /// What the registry showed when the request was parsed.
    pub model: &'a Arc<ModelVersion>,
    /// What was asked for; none: the highest that is ready.
    pub version: Option<i64>,
    pub id: &'a str,
    pub tenant: Option<Tenant>,
    pub correlation_id: &'a CorrelationId,
    pub sequence_flags: SequenceFlags,
    /// Whoever sends it is prepared for the model's kind of answer (one, or any number), and for no
    /// other.
    pub keeps_kind: bool,
}

/// What has taken the place of a retired version.
enum Successor {
    /// The registry shows it.
    Shown(Arc<ModelVersion>),
    /// It was loaded for the request.
    Loaded(InFlightPermit),
}

/// Reloads of one model that a request follows. A reload takes longer than all steps of admission
/// together.
const RELOADS_MAX: usize = 8;

impl Engine {
    pub fn new(
        registry: Arc<Registry>,
        limits: Option<Arc<AdmissionLimits>>,
        loads: Option<Arc<dyn ModelLoads>>,
    ) -> Engine {
        Engine {
            registry,
            limits,
            loads,
        }
    }

    /// What requests pass before they ask for a permit, if there are bounds of that kind.
    pub fn limits(&self) -> Option<&Arc<AdmissionLimits>> {
        self.limits.as_ref()
    }

    /// Whether requests to `model` may have to wait for room under a limit.
    pub fn limits_requests(&self, model: &ModelVersion) -> bool {
        self.limits.is_some() || model.limits_requests()
    }

    /// Whether the server has room for `count` more requests under its limit at present.
    pub fn has_room_for(&self, count: u64) -> bool {
        let limits = self.limits.as_ref();
        limits.is_none_or(|limits| limits.has_room_for(count))
    }

    /// The limit of `owner`, which is reached for a request to `model`.
    pub fn limit_of(&self, owner: LimitOwner, model: &ModelVersion) -> ReachedLimit {
        let max = match (owner, &self.limits) {
            (LimitOwner::Model, _) | (_, None) => model.requests_max(),
            (_, Some(limits)) => limits.max_of(owner),
        };
        ReachedLimit { owner, max }
    }

    /// Reserves room under all limits for a request of `tenant` to `model`. Does not block.
    ///
    /// # Errors
    /// The limit that is reached, or that the model is retired; what was reserved before stays.
    pub fn acquire(
        &self,
        model: &Arc<ModelVersion>,
        tenant: Option<Tenant>,
        permits: &mut RequestPermits,
    ) -> Result<(), TryAcquireError> {
        permits.complete(self.limits.as_ref(), model, tenant)
    }

    /// What has taken the place of `model`, which is retired, for a request that asked for
    /// `version` and waits for room. Where that had to be loaded, its place is in `permits`.
    /// Does not block for longer than moments.
    ///
    /// # Errors
    /// UNAVAILABLE if nothing has that gives the same kind of answer, or if it has to be loaded.
    pub fn follow_reload(
        &self,
        model: &Arc<ModelVersion>,
        version: Option<i64>,
        permits: &mut RequestPermits,
    ) -> Result<Arc<ModelVersion>, Error> {
        let gone = || refuse(model, "", Rejected::Retired);
        let successor = match self.successor(&model.name, version)?.ok_or_else(gone)? {
            Successor::Shown(successor) => successor,
            Successor::Loaded(permit) => {
                let successor = Arc::clone(&permit);
                permits.held = Some(Box::new(permit));
                successor
            }
        };
        match successor.config.is_decoupled == model.config.is_decoupled {
            true => Ok(successor),
            false => Err(gone()),
        }
    }

    /// The permit of a request: of the model that it was parsed for, of the version where its
    /// sequence is under way, or of what has taken the model's place in the registry. What was not
    /// reserved before is taken now, or refused. Does not block.
    ///
    /// # Errors
    /// EXHAUSTED over a limit; UNAVAILABLE if the model has too many live requests, is gone, or has
    /// to be loaded.
    pub fn enter(
        &self,
        target: RequestTarget<'_>,
        permits: RequestPermits,
    ) -> Result<InFlightPermit, Error> {
        let RequestTarget {
            model, id, tenant, ..
        } = target;
        let RequestPermits { limit, held } = permits;
        let limit = match (&self.limits, limit) {
            (Some(limits), None) => Some(enter_limits(limits, model, id, tenant)?),
            (_, limit) => limit,
        };
        let held = held.filter(|permit| target.matches_kind(permit));
        // Room may have been reserved in what took the model's place while the request waited.
        let successor = held.as_ref().filter(|held| !Arc::ptr_eq(held, model));
        let draining = target.draining(model);
        let draining = draining.or_else(|| target.draining(successor?));
        let entered = match (draining, held) {
            (Some(permit), _) => permit,
            (None, Some(held)) => Ok(*held),
            (None, None) => InFlightPermit::new(model),
        };
        let mut permit = match entered {
            Ok(permit) => permit,
            Err(Rejected::Retired) => self.follow(target)?,
            Err(why) => return Err(refuse(model, id, why)),
        };
        if let Some(limit) = limit {
            permit.carry(limit);
        }
        Ok(permit)
    }

    /// A permit of what has taken the model's place.
    fn follow(&self, target: RequestTarget<'_>) -> Result<InFlightPermit, Error> {
        let RequestTarget { model, version, .. } = target;
        for _ in 0..RELOADS_MAX {
            let successor = match self.successor(&model.name, version)? {
                Some(Successor::Shown(successor)) => successor,
                Some(Successor::Loaded(permit)) => return Ok(permit),
                None => break,
            };
            if !target.matches_kind(&successor) {
                break;
            }
            let permit = target.draining(&successor);
            match permit.unwrap_or_else(|| InFlightPermit::new(&successor)) {
                Ok(permit) => return Ok(permit),
                Err(Rejected::Retired) => {}
                Err(why) => return Err(refuse(&successor, target.id, why)),
            }
        }
        Err(refuse(model, target.id, Rejected::Retired))
    }

    /// What is there now in place of a version that was retired; none: nothing is.
    fn successor(&self, name: &str, version: Option<i64>) -> Result<Option<Successor>, Error> {
        if let Ok(shown) = self.registry.snapshot().find(name, version) {
            return Ok(Some(Successor::Shown(Arc::clone(shown))));
        }
        // It may have made room for others.
        let loads = self.loads.as_ref();
        let loaded = loads.map(|loads| loads.permit(name, version));
        Ok(loaded.transpose()?.flatten().map(Successor::Loaded))
    }

    /// Checks `draft` against the model of `permit`, and hands the request to what executes it. The
    /// answer goes to `completion` under `slot`, perhaps before this returns; unless this fails.
    /// Does not block.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words for what does not agree; UNAVAILABLE if its queue is full or
    /// the model stops.
    pub fn submit(
        &self,
        permit: InFlightPermit,
        draft: &mut Draft<'_>,
        completion: &Arc<dyn Completion>,
        slot: u64,
        timestamps: Timestamps,
        offer: &mut InlineOffer,
    ) -> Result<RequestHandle, Error> {
        let handle = admit(permit, draft, completion, slot, timestamps)?;
        handle.shared().model.submit(Arc::clone(&handle), offer)?;
        Ok(handle)
    }
}

impl RequestTarget<'_> {
    fn matches_kind(&self, model: &ModelVersion) -> bool {
        !self.keeps_kind || model.config.is_decoupled == self.model.config.is_decoupled
    }

    /// A permit where its sequence is under way, if that is a version whose place `model` took.
    fn draining(&self, model: &ModelVersion) -> Option<Result<InFlightPermit, Rejected>> {
        model
            .executor
            .draining_permit(self.version, self.correlation_id, self.sequence_flags)
    }
}

/// The permit of a step's request: of the pinned version, or of where its sequence is under way.
///
/// # Errors
/// As [`Engine::enter`], but for limits, which the ensemble's request has passed.
pub(crate) fn enter_step(pin: &Pin, target: RequestTarget<'_>) -> Result<InFlightPermit, Error> {
    let permit = target.draining(pin).unwrap_or_else(|| pin.reserve());
    permit.map_err(|why| refuse(pin, target.id, why))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::model::registry::{ModelId, Snapshot, VersionEntry, VersionState, Versions};
    use crate::testing::model;

    const ONE_TO_ONE: &str = "output [ { name: 'x' data_type: TYPE_INT8 dims: [ 1 ] } ]";
    const DECOUPLED: &str = "output [ { name: 'x' data_type: TYPE_INT8 dims: [ 1 ] } ] \
                             model_transaction_policy { decoupled: true }";

    fn engine(shown: Option<&Arc<ModelVersion>>, loads: Option<Arc<dyn ModelLoads>>) -> Engine {
        let engine = Engine::new(Arc::default(), None, loads);
        engine.show(shown);
        engine
    }

    impl Engine {
        fn show(&self, shown: Option<&Arc<ModelVersion>>) {
            self.registry.publish(Snapshot::new(shown.map(|model| {
                let entry = VersionEntry {
                    state: VersionState::Ready,
                    model: Some(Arc::clone(model)),
                };
                (ModelId::plain(&model.name), Versions::from([(1, entry)]))
            })));
        }
    }

    fn target(model: &Arc<ModelVersion>) -> RequestTarget<'_> {
        RequestTarget {
            model,
            version: None,
            id: "",
            tenant: None,
            correlation_id: &CorrelationId::Unsigned(0),
            sequence_flags: SequenceFlags::NONE,
            keeps_kind: true,
        }
    }

    #[test]
    fn a_request_goes_to_what_took_the_place_of_its_model() {
        let (gone, successor, decoupled) = (model(ONE_TO_ONE), model(ONE_TO_ONE), model(DECOUPLED));
        let both = engine(Some(&successor), None);
        let entered = both
            .enter(target(&gone), RequestPermits::default())
            .unwrap();
        assert!(Arc::ptr_eq(&entered, &gone), "it is there");
        drop(entered);
        gone.retire();
        let entered = both
            .enter(target(&gone), RequestPermits::default())
            .unwrap();
        assert!(Arc::ptr_eq(&entered, &successor));

        let retired = "Request for unknown model: 'm' version 1 is not at ready state";
        let other_kind = engine(Some(&decoupled), None);
        let error = other_kind
            .enter(target(&gone), RequestPermits::default())
            .err()
            .unwrap();
        assert_eq!(error.message, retired);
        let any_kind = RequestTarget {
            keeps_kind: false,
            ..target(&gone)
        };
        let entered = other_kind
            .enter(any_kind, RequestPermits::default())
            .unwrap();
        assert!(Arc::ptr_eq(&entered, &decoupled));
        // Replaced again and again, faster than a request can follow.
        let error = engine(Some(&gone), None).enter(target(&gone), RequestPermits::default());
        assert_eq!(error.err().unwrap().message, retired);
    }

    #[test]
    fn who_waits_for_room_waits_for_that_of_what_took_the_place() {
        let bounded = || {
            let bound = "parameters { key: 'CONCH_REQUESTS_MAX' value { string_value: '1' } }";
            model(&format!("{ONE_TO_ONE} {bound}"))
        };
        let (gone, successor, decoupled) = (bounded(), bounded(), model(DECOUPLED));
        let engine = engine(Some(&gone), None);
        let over = |model| {
            Err(TryAcquireError::Limit(
                engine.limit_of(LimitOwner::Model, model),
            ))
        };
        let [early, between] = [&gone, &successor].map(|model| InFlightPermit::new(model).unwrap());
        let mut waiting = RequestPermits::default();
        assert_eq!(engine.acquire(&gone, None, &mut waiting), over(&gone));
        engine.show(Some(&successor));
        gone.retire();
        // Not even when there is room where it waits.
        drop(early);
        let retired = Err(TryAcquireError::Retired);
        assert_eq!(engine.acquire(&gone, None, &mut waiting), retired);
        let found = engine.follow_reload(&gone, None, &mut waiting).unwrap();
        assert!(Arc::ptr_eq(&found, &successor));
        assert_eq!(engine.acquire(&found, None, &mut waiting), over(&found));
        drop(between);
        assert_eq!(engine.acquire(&found, None, &mut waiting), Ok(()));
        // It was parsed for the model that is gone.
        let entered = engine.enter(target(&gone), waiting).unwrap();
        assert!(Arc::ptr_eq(&entered, &successor));
        assert_eq!((gone.live_count(), successor.live_count()), (0, 1));
        drop(entered);

        for shown in [None, Some(&decoupled)] {
            engine.show(shown);
            let error = engine.follow_reload(&gone, None, &mut RequestPermits::default());
            assert_eq!(
                error.err().unwrap().message,
                "Request for unknown model: 'm' version 1 is not at ready state"
            );
        }
    }

    /// Remembers what it was asked for, and has nothing.
    #[derive(Default)]
    struct Absent(Mutex<Vec<String>>);

    impl ModelLoads for Absent {
        fn permit(&self, name: &str, _: Option<i64>) -> Result<Option<InFlightPermit>, Error> {
            self.0.lock().unwrap().push(name.to_owned());
            Ok(None)
        }
    }

    #[test]
    fn a_model_that_made_room_is_loaded_again() {
        let gone = model(ONE_TO_ONE);
        gone.retire();
        let loads = Arc::new(Absent::default());
        let engine = engine(None, Some(Arc::clone(&loads) as _));
        let error = engine
            .enter(target(&gone), RequestPermits::default())
            .err()
            .unwrap();
        assert_eq!(error.code, crate::Code::Unavailable, "it cannot be had");
        let error = engine.follow_reload(&gone, None, &mut RequestPermits::default());
        assert_eq!(error.err().unwrap().code, crate::Code::Unavailable);
        assert_eq!(*loads.0.lock().unwrap(), ["m", "m"]);
    }

    #[test]
    fn a_held_permit_of_another_kind_is_not_used() {
        let (one, decoupled) = (model(ONE_TO_ONE), model(DECOUPLED));
        let engine = engine(None, None);
        for (held, expected) in [(&one, &one), (&decoupled, &one)] {
            let held = RequestPermits::holding(Some(Box::new(InFlightPermit::new(held).unwrap())));
            let entered = engine.enter(target(&one), held).unwrap();
            assert!(Arc::ptr_eq(&entered, expected));
        }
        assert_eq!((one.live_count(), decoupled.live_count()), (0, 0));
    }
}
