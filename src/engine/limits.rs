//! Bounds of the live requests that are let in: of the whole server, of each model, and of each
//! tenant. All opt-in; who is refused may come again.
//!
//! Requests pass [`AdmissionLimits::enter`] before they get a place in a model;
//! the [`Permit`] goes with that place and is given back with it. A model's own bound is kept by
//! its count of live requests. Steps within the server (those of ensembles) have passed with the
//! request that they belong to. A server without such bounds has no `AdmissionLimits`, and its
//! requests have no permit.

pub(crate) use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use conch_sync::{CounterSlot, KeyedCounter};

/// What may be bounded; none: it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionBounds {
    /// Live requests in the server.
    pub server_max: Option<u64>,
    /// Live requests in one version of a model, unless its configuration says otherwise.
    pub model_max: Option<u64>,
    /// Live requests of one tenant, up to [`TENANT_MAX_MAX`].
    pub tenant_max: Option<u64>,
}

/// As far as [`AdmissionBounds::tenant_max`] goes.
pub const TENANT_MAX_MAX: u64 = KeyedCounter::COUNT_MAX;

/// Tenants with a count of their own: seven times as many, in 64 KiB.
const BUCKET_COUNT: u32 = 1024;

/// Bounds of the server and of each tenant.
#[derive(Debug)]
pub struct AdmissionLimits {
    live: AtomicU64,
    /// `u64::MAX` for none.
    server_max: u64,
    tenants: Option<TenantLimits>,
}

struct TenantLimits {
    counters: KeyedCounter,
    max: u64,
    /// Keyed at random: nobody can choose names that share a place.
    hasher: RandomState,
}

/// Who sends a request, as far as bounds go: a hash of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenant(NonZeroU64);

impl AdmissionLimits {
    /// None if no bound is set.
    pub fn new(bounds: &AdmissionBounds) -> Option<Arc<AdmissionLimits>> {
        if bounds.server_max.is_none() && bounds.tenant_max.is_none() {
            return None;
        }
        Some(Arc::new(AdmissionLimits {
            live: AtomicU64::new(0),
            server_max: bounds.server_max.unwrap_or(u64::MAX),
            tenants: bounds
                .tenant_max
                .map(|max| max.min(TENANT_MAX_MAX))
                .map(|max| TenantLimits {
                    counters: KeyedCounter::new(BUCKET_COUNT, max),
                    max,
                    hasher: RandomState::new(),
                }),
        }))
    }

    /// The tenant of this name; requests without a name are one tenant, of the empty one. None
    /// where tenants are not bounded.
    pub fn tenant(&self, name: &[u8]) -> Option<Tenant> {
        let hash = self.tenants.as_ref()?.hasher.hash_one(name);
        Some(Tenant(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MAX)))
    }

    /// Whether the server has room for `count` more requests at present.
    pub(crate) fn has_room_for(&self, count: u64) -> bool {
        let live = self.live.load(Ordering::Relaxed);
        live.saturating_add(count) <= self.server_max
    }

    /// The limit of the server or of a tenant; `u64::MAX` for none.
    pub(crate) fn max_of(&self, owner: LimitOwner) -> u64 {
        match (owner, &self.tenants) {
            (LimitOwner::Server, _) => self.server_max,
            (LimitOwner::Tenant(_), Some(tenants)) => tenants.max,
            (LimitOwner::Tenant(_), None) | (LimitOwner::Model, _) => u64::MAX,
        }
    }

    /// Lets a request of `tenant` in. Does not block.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn enter(self: &Arc<Self>, tenant: Option<Tenant>) -> Result<Permit, ReachedLimit> {
        // Counted at once, so that every way out gives the place back.
        let before = self.live.fetch_add(1, Ordering::Relaxed);
        let mut permit = Permit {
            admission: Arc::clone(self),
            slot: None,
            is_left: AtomicBool::new(false),
        };
        if before >= self.server_max {
            return Err(ReachedLimit {
                owner: LimitOwner::Server,
                max: self.server_max,
            });
        }
        if let (Some(tenants), Some(Tenant(key))) = (&self.tenants, tenant) {
            match tenants.counters.acquire(key.get()) {
                Ok(slot) => permit.slot = Some(slot),
                Err(_) => {
                    return Err(ReachedLimit {
                        owner: LimitOwner::Tenant(Tenant(key)),
                        max: tenants.max,
                    });
                }
            }
        }
        Ok(permit)
    }
}

impl fmt::Debug for TenantLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenants").field("max", &self.max).finish()
    }
}

/// Whose live requests a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitOwner {
    Server,
    Tenant(Tenant),
    /// The version that the request is for.
    Model,
}

/// A limit that lets nobody else in at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachedLimit {
    pub owner: LimitOwner,
    /// Live requests that it allows.
    pub max: u64,
}

/// A place inside, given back when it is left, on drop at the latest.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<AdmissionLimits>,
    slot: Option<CounterSlot>,
    is_left: AtomicBool,
}

impl Permit {
    pub(crate) fn release(&self) {
        // Relaxed: only who comes first goes on, and counts are all that there is.
        if self.is_left.swap(true, Ordering::Relaxed) {
            return;
        }
        if let (Some(tenants), Some(slot)) = (&self.admission.tenants, &self.slot) {
            tenants.counters.release(slot);
        }
        self.admission.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::refusal::enter_limits;
    use crate::testing::model;
    use crate::{Code, InFlightPermit, ModelVersion, Rejected};

    const CONFIG: &str = "";

    fn rejected(model: &ModelVersion) -> u64 {
        let [rejected, ..] = model.statistics.totals().failures;
        rejected
    }

    #[test]
    fn without_bounds_there_is_no_gate() {
        assert!(AdmissionLimits::new(&AdmissionBounds::default()).is_none());
        let models_alone = AdmissionBounds {
            model_max: Some(1),
            ..AdmissionBounds::default()
        };
        assert!(AdmissionLimits::new(&models_alone).is_none());
    }

    #[test]
    fn as_many_get_in_as_there_are_places() {
        let model = model(CONFIG);
        let bounds = AdmissionBounds {
            server_max: Some(3),
            tenant_max: Some(2),
            model_max: None,
        };
        let admission = AdmissionLimits::new(&bounds).unwrap();
        let [a, b] = [b"a", b"b"].map(|name| admission.tenant(name));
        let enter = |tenant| enter_limits(&admission, &model, "7", tenant);
        let first = enter(a).unwrap();
        let second = enter(a).unwrap();
        let refused = enter(a).unwrap_err();
        assert_eq!(refused.code, Code::Exhausted);
        assert_eq!(
            refused.message,
            "[request id: 7] the tenant has as many live requests as it may have (2), try again \
             later"
        );
        // Who was refused holds nothing: there is room for one more in the server.
        let third = enter(b).unwrap();
        assert_eq!(
            enter(None).unwrap_err().message,
            "[request id: 7] the server has as many live requests as it may have (3), try again \
             later"
        );
        assert_eq!(rejected(&model), 2);
        first.release();
        drop(first);
        let fourth = enter(a).unwrap();
        assert!(enter(None).is_err(), "it was given back once");
        drop((second, third, fourth));
        assert_eq!(admission.live.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_pass_goes_with_the_requests_place() {
        let model = model(CONFIG);
        let bounds = AdmissionBounds {
            server_max: Some(1),
            ..AdmissionBounds::default()
        };
        let admission = AdmissionLimits::new(&bounds).unwrap();
        assert_eq!(admission.tenant(b"a"), None, "tenants are not bounded");
        let mut permit = InFlightPermit::new(&model).unwrap();
        permit.carry(enter_limits(&admission, &model, "", None).unwrap());
        assert!(enter_limits(&admission, &model, "", None).is_err());
        // The request is over, though something still refers to it.
        permit.free();
        drop(enter_limits(&admission, &model, "", None).unwrap());
        drop(permit);
        assert_eq!(admission.live.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_model_may_have_a_bound_of_its_own() {
        let model = model("parameters { key: 'CONCH_REQUESTS_MAX' value { string_value: '1' } }");
        let held = InFlightPermit::new(&model).unwrap();
        let refused = InFlightPermit::new(&model).err().unwrap();
        assert_eq!(refused, Rejected::OverModelLimit);
        let error = crate::admission::refuse(&model, "", refused);
        assert_eq!(error.code, Code::Exhausted);
        assert!(
            error.message.ends_with(
                "model 'm' has as many live requests as it may have (1), try again later"
            ),
            "{error}"
        );
        assert_eq!(rejected(&model), 1);
        drop(held);
        assert!(InFlightPermit::new(&model).is_ok());
    }
}
