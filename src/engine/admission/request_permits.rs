//! Room for a request that is not submitted yet.
//!
//! Who can wait for room (a front end) acquires permits before it makes the request, and tries
//! again later if there is none. What is dropped gives its permits back.

use std::sync::Arc;

use crate::limits::{AdmissionLimits, LimitOwner, Permit, ReachedLimit, Tenant};
use crate::{InFlightPermit, ModelVersion, Rejected};

/// Why there is no room for a request at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    Limit(ReachedLimit),
    /// The model takes no more requests: another version, or none, has taken its place.
    Retired,
}

/// What a request has before it is admitted. Empty: nothing yet.
#[derive(Debug, Default)]
pub struct RequestPermits {
    /// Its place in the server and among its tenant's requests, where those are bounded.
    pub(super) limit: Option<Permit>,
    /// Its place in the model: where that was loaded for the request, or bounds its requests.
    /// Boxed, as most requests have none.
    pub(super) held: Option<Box<InFlightPermit>>,
}

impl RequestPermits {
    /// For a request whose model was loaded for it.
    pub fn holding(held: Option<Box<InFlightPermit>>) -> RequestPermits {
        RequestPermits { limit: None, held }
    }

    /// The place in the model alone, if it has one.
    pub fn into_held(self) -> Option<Box<InFlightPermit>> {
        self.held
    }

    /// Takes what is missing of the places that `model` and `limits` have bounds for. Nothing is
    /// kept of it on failure. Does not block.
    ///
    /// # Errors
    /// The limit that is reached, or that the model is retired.
    pub(super) fn complete(
        &mut self,
        limits: Option<&Arc<AdmissionLimits>>,
        model: &Arc<ModelVersion>,
        tenant: Option<Tenant>,
    ) -> Result<(), TryAcquireError> {
        let limit = match (limits, &self.limit) {
            (Some(limits), None) => Some(limits.enter(tenant).map_err(TryAcquireError::Limit)?),
            _ => None,
        };
        if self.held.is_none() {
            self.held = hold(model)?.map(Box::new);
        }
        if limit.is_some() {
            self.limit = limit;
        }
        Ok(())
    }
}

/// A place in `model`, if it bounds its requests.
fn hold(model: &Arc<ModelVersion>) -> Result<Option<InFlightPermit>, TryAcquireError> {
    if !model.limits_requests() {
        // What took its place may bound them.
        return match model.is_retired() {
            true => Err(TryAcquireError::Retired),
            false => Ok(None),
        };
    }
    match InFlightPermit::new(model) {
        Ok(permit) => Ok(Some(permit)),
        Err(Rejected::OverModelLimit) => Err(TryAcquireError::Limit(ReachedLimit {
            owner: LimitOwner::Model,
            max: model.requests_max(),
        })),
        Err(Rejected::Retired) => Err(TryAcquireError::Retired),
        // Not for want of room under a limit: admission says so.
        Err(Rejected::Full) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::AdmissionBounds;
    use crate::testing::model;

    const ONE: &str = "parameters { key: 'CONCH_REQUESTS_MAX' value { string_value: '1' } }";

    fn limits(server_max: u64) -> Option<Arc<AdmissionLimits>> {
        AdmissionLimits::new(&AdmissionBounds {
            server_max: Some(server_max),
            tenant_max: Some(1),
            model_max: None,
        })
    }

    #[test]
    fn a_reservation_has_all_places_or_none() {
        let (bounded, free) = (model(ONE), model(""));
        let limits = limits(2);
        let limits = limits.as_ref();
        let tenant = |name: &[u8]| limits.and_then(|limits| limits.tenant(name));
        let (a, b) = (tenant(b"a"), tenant(b"b"));
        let reserve = |model, tenant| {
            let mut made = RequestPermits::default();
            match made.complete(limits, model, tenant) {
                Ok(()) => Ok(made),
                Err(TryAcquireError::Limit(limit)) => Err((limit.owner, limit.max)),
                Err(TryAcquireError::Retired) => panic!("it serves"),
            }
        };
        let first = reserve(&bounded, a).unwrap();
        assert_eq!(reserve(&bounded, b).unwrap_err(), (LimitOwner::Model, 1));
        let same = reserve(&free, a).unwrap_err();
        assert_eq!(same, (LimitOwner::Tenant(a.unwrap()), 1));
        // Those refused hold nothing: one place is left in the server.
        let second = reserve(&free, b).unwrap();
        assert_eq!(reserve(&free, None).unwrap_err(), (LimitOwner::Server, 2));
        assert_eq!((bounded.live_count(), free.live_count()), (1, 0));
        drop((first, second));
        assert_eq!(bounded.live_count(), 0);
        drop(reserve(&bounded, a).unwrap());
    }

    #[test]
    fn what_is_held_already_is_not_taken_again() {
        let bounded = model(ONE);
        let limits = limits(1);
        let held = InFlightPermit::new(&bounded).unwrap();
        let mut made = RequestPermits::holding(Some(Box::new(held)));
        for _ in 0..2 {
            assert_eq!(made.complete(limits.as_ref(), &bounded, None), Ok(()));
        }
        assert_eq!(bounded.live_count(), 1);
    }

    #[test]
    fn a_retired_model_has_no_room() {
        let limits = limits(1);
        for model in [model(ONE), model("")] {
            let held = InFlightPermit::new(&model).unwrap();
            model.retire();
            let mut late = RequestPermits::default();
            for _ in 0..2 {
                let outcome = late.complete(limits.as_ref(), &model, None);
                assert_eq!(outcome, Err(TryAcquireError::Retired));
            }
            assert!(late.limit.is_none() && late.held.is_none());
            // Who is in stays in.
            let mut early = RequestPermits::holding(Some(Box::new(held)));
            assert_eq!(early.complete(limits.as_ref(), &model, None), Ok(()));
        }
    }
}
