//! Room for a request that is not submitted yet.
//!
//! Who can wait for room (a front end) reserves it before it makes the request, and tries again
//! later if there is none. A reservation that is dropped gives the room back.

use std::sync::Arc;

use crate::limits::{AdmissionLimits, LimitOwner, Permit, ReachedLimit, Tenant};
use crate::{InFlightPermit, ModelVersion, Rejected};

/// What a request has before it is admitted. Empty: nothing yet.
#[derive(Debug, Default)]
pub struct Reservation {
    /// Its place in the server and among its tenant's requests, where those are bounded.
    pub(super) limit: Option<Permit>,
    /// Its place in the model: where that was loaded for the request, or bounds its requests.
    /// Boxed, as most requests have none.
    pub(super) held: Option<Box<InFlightPermit>>,
}

impl Reservation {
    /// For a request whose model was loaded for it.
    pub fn holding(held: Option<Box<InFlightPermit>>) -> Reservation {
        Reservation { limit: None, held }
    }

    /// The place in the model alone, if it has one.
    pub fn into_held(self) -> Option<Box<InFlightPermit>> {
        self.held
    }

    /// Takes what is missing of the places that `model` and `limits` have bounds for. Nothing is
    /// kept of it on failure. Does not block.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn complete(
        &mut self,
        limits: Option<&Arc<AdmissionLimits>>,
        model: &Arc<ModelVersion>,
        tenant: Option<Tenant>,
    ) -> Result<(), ReachedLimit> {
        let limit = match (limits, &self.limit) {
            (Some(limits), None) => Some(limits.enter(tenant)?),
            _ => None,
        };
        if self.held.is_none() && model.limits_requests() {
            match InFlightPermit::new(model) {
                Ok(permit) => self.held = Some(Box::new(permit)),
                Err(Rejected::OverModelLimit) => {
                    return Err(ReachedLimit {
                        owner: LimitOwner::Model,
                        max: model.requests_max(),
                    });
                }
                // Not for want of room under a limit: admission says so, or follows a reload.
                Err(Rejected::Full | Rejected::Retired) => {}
            }
        }
        if limit.is_some() {
            self.limit = limit;
        }
        Ok(())
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
            let mut made = Reservation::default();
            made.complete(limits, model, tenant)
                .map(|()| made)
                .map_err(|limit| (limit.owner, limit.max))
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
        let mut made = Reservation::holding(Some(Box::new(held)));
        for _ in 0..2 {
            assert_eq!(made.complete(limits.as_ref(), &bounded, None), Ok(()));
        }
        assert_eq!(bounded.live_count(), 1);
        bounded.retire();
        let mut late = Reservation::default();
        assert_eq!(late.complete(None, &bounded, None), Ok(()));
        assert!(late.held.is_none(), "admission follows the reload");
    }
}
