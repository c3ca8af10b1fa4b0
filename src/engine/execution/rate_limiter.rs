//! The rate limiter: instances execute only while they hold the resources that their group names
//! (`--rate-limit=execution_count`).
//!
//! One [`RateLimiter`] per server, one [`ResourceHandle`] per instance that executes. A core that
//! finds work for its instance takes the handle's resources before it forms a batch, so what
//! arrives meanwhile joins it, and gives them back when the execution is over; who gets them is up
//! to [`machine`]. A core that waits for resources is to its model's queue like one that executes:
//! others look after the rest.
//!
//! The same handles share a number of executions among models by weight (`--executions-max`): then
//! each needs one of these and nothing else, and what an execution costs is how long it holds its
//! handle.
//!
//! Without either flag there is no limiter, and instances have no handles.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use conch_config::RateLimit;
use conch_scheduler::rate_limit::{
    InstanceId, RateLimiterState, Resource, ResourceCapacity, ResourceNeeds, UnmetNeeds,
};

use crate::clock::monotonic_ns;
use crate::{Error, InstanceSpec, ModelVersion};

/// What sharing models need one of.
const EXECUTIONS: &str = "executions";

/// Grants executions to instances, by resources or by shares.
pub struct RateLimiter {
    /// Held for one event at a time; waits are outside.
    state: Mutex<LimiterShared>,
    /// Models share executions, whatever resources they name.
    is_sharing: bool,
}

struct LimiterShared {
    machine: RateLimiterState,
    condvars: BTreeMap<InstanceId, Arc<Condvar>>,
}

/// A new instance, and those that may execute now.
type NewInstance = (InstanceId, Vec<InstanceId>);

impl RateLimiter {
    /// A limiter whose resources are `capacities`; without any, what instances ask for.
    pub fn new(capacities: Vec<ResourceCapacity>) -> Arc<RateLimiter> {
        Arc::new(RateLimiter {
            state: Mutex::new(LimiterShared {
                machine: RateLimiterState::new(capacities),
                condvars: BTreeMap::new(),
            }),
            is_sharing: false,
        })
    }

    /// A limiter of `executions_max` executions at a time, which models share by weight.
    pub fn sharing(executions_max: u64) -> Arc<RateLimiter> {
        let capacity = ResourceCapacity {
            name: EXECUTIONS.to_owned(),
            count: executions_max.max(1),
            device: None,
        };
        Arc::new(RateLimiter {
            state: Mutex::new(LimiterShared {
                machine: RateLimiterState::new(vec![capacity]),
                condvars: BTreeMap::new(),
            }),
            is_sharing: true,
        })
    }

    /// A handle for an instance of `model`.
    ///
    /// # Errors
    /// As [`RateLimiter::handle`].
    pub(crate) fn handle_for(
        self: &Arc<Self>,
        model: &ModelVersion,
        spec: &InstanceSpec,
    ) -> Result<ResourceHandle, Error> {
        if !self.is_sharing {
            return self.handle(&spec.rate_limit, spec.device_id);
        }
        let weight = model.config.own.share_weight;
        let flow: Arc<str> = match &*model.namespace {
            "" => Arc::clone(&model.name),
            namespace => Arc::from(format!("{namespace}::{}", model.name)),
        };
        let resource = Resource {
            name: Arc::from(EXECUTIONS),
            device: None,
        };
        let needs = ResourceNeeds::from([(resource, 1)]);
        self.join(|machine| machine.add_to(&flow, needs, weight))
    }

    /// A handle for an instance on device `device` whose group says `limit`.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words if the instance could never execute, or if a resource's name
    /// is both global and not.
    pub(crate) fn handle(
        self: &Arc<Self>,
        limit: &RateLimit,
        device: i32,
    ) -> Result<ResourceHandle, Error> {
        let needs: ResourceNeeds = limit
            .resources
            .iter()
            .map(|resource| {
                let key = Resource {
                    name: Arc::clone(&resource.name),
                    device: (!resource.is_global).then_some(device),
                };
                (key, u64::from(resource.count))
            })
            .collect();
        self.join(|machine| machine.add(needs, limit.priority))
    }

    fn join(
        self: &Arc<Self>,
        add: impl FnOnce(&mut RateLimiterState) -> Result<NewInstance, UnmetNeeds>,
    ) -> Result<ResourceHandle, Error> {
        let condvar = Arc::new(Condvar::new());
        let mut state = self.lock();
        let (id, granted) =
            add(&mut state.machine).map_err(|unmet| Error::invalid(unmet.to_string()))?;
        state.condvars.insert(id, Arc::clone(&condvar));
        state.notify(&granted);
        drop(state);
        Ok(ResourceHandle {
            limiter: Arc::clone(self),
            id,
            condvar,
            is_held: false,
            held_since_ns: 0,
        })
    }

    fn lock(&self) -> MutexGuard<'_, LimiterShared> {
        // The machine's events leave it whole, or assert before they change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimiterShared {
    fn notify(&self, granted: &[InstanceId]) {
        for id in granted {
            if let Some(condvar) = self.condvars.get(id) {
                condvar.notify_one();
            }
        }
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}

/// An instance's place with the limiter. Dropping it gives back what it holds.
#[derive(Debug)]
pub(crate) struct ResourceHandle {
    limiter: Arc<RateLimiter>,
    id: InstanceId,
    condvar: Arc<Condvar>,
    is_held: bool,
    held_since_ns: u64,
}

impl ResourceHandle {
    /// Whether the instance may execute.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Waits for the instance's turn: until its resources are there, and it is next.
    pub(crate) fn acquire(&mut self) {
        debug_assert!(!self.is_held);
        let mut state = self.limiter.lock();
        let granted = state.machine.wait(self.id);
        state.notify(&granted);
        self.await_turn(state);
        self.is_held = true;
        self.held_since_ns = monotonic_ns();
    }

    /// Gives back what an execution held, and waits for the next turn.
    pub(crate) fn renew(&mut self) {
        debug_assert!(self.is_held);
        let mut state = self.limiter.lock();
        let cost = self.cost();
        let granted = state.machine.finish_at_cost(self.id, true, true, cost);
        state.notify(&granted);
        self.await_turn(state);
        self.held_since_ns = monotonic_ns();
    }

    /// Gives back what the instance holds. `has_executed`: it had use of it.
    pub(crate) fn release(&mut self, has_executed: bool) {
        debug_assert!(self.is_held);
        let mut state = self.limiter.lock();
        let cost = self.cost();
        let granted = state
            .machine
            .finish_at_cost(self.id, has_executed, false, cost);
        state.notify(&granted);
        self.is_held = false;
    }

    /// Gives back what the instance's warm-up held.
    pub(crate) fn release_after_warm_up(&mut self) {
        debug_assert!(self.is_held);
        let mut state = self.limiter.lock();
        let cost = self.cost();
        let granted = state.machine.finish_warm_up(self.id, cost);
        state.notify(&granted);
        self.is_held = false;
    }

    /// How long the handle was held, in us.
    fn cost(&self) -> u64 {
        (monotonic_ns().saturating_sub(self.held_since_ns) / 1_000).max(1)
    }

    fn await_turn(&self, state: MutexGuard<'_, LimiterShared>) {
        let waited = self
            .condvar
            .wait_while(state, |state| !state.machine.is_running(self.id));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for ResourceHandle {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        let granted = state.machine.remove(self.id);
        state.condvars.remove(&self.id);
        state.notify(&granted);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use conch_config::RateResource;

    use super::*;

    fn limit(resources: &[(&str, bool, u32)], priority: u32) -> RateLimit {
        let resources = resources
            .iter()
            .map(|(name, is_global, count)| RateResource {
                name: Arc::from(*name),
                is_global: *is_global,
                count: *count,
            });
        RateLimit {
            resources: resources.collect(),
            priority,
        }
    }

    #[test]
    fn never_more_execute_than_there_are_resources_for() {
        let limiter = RateLimiter::new(vec![ResourceCapacity {
            name: "R".to_owned(),
            count: 3,
            device: None,
        }]);
        let held = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for need in [1, 1, 2, 3] {
                let mut resources = limiter.handle(&limit(&[("R", true, need)], 1), 0).unwrap();
                let held = &held;
                scope.spawn(move || {
                    for turn in 0..300 {
                        if resources.is_held() {
                            resources.renew();
                        } else {
                            resources.acquire();
                        }
                        let need = u64::from(need);
                        assert!(held.fetch_add(need, Ordering::SeqCst) + need <= 3);
                        std::thread::yield_now();
                        held.fetch_sub(need, Ordering::SeqCst);
                        if turn % 3 == 0 {
                            resources.release(turn % 2 == 0);
                        }
                    }
                });
            }
        });
        assert_eq!(held.into_inner(), 0);
        // All handles are gone, and with them what they held.
        let mut resources = limiter.handle(&limit(&[("R", true, 3)], 1), 0).unwrap();
        resources.acquire();
    }

    /// A hundred executions, of which no more than two run at once.
    fn take_turns(resources: &mut ResourceHandle, running: &AtomicU64, turns: &AtomicU64) {
        for _ in 0..100 {
            if resources.is_held() {
                resources.renew();
            } else {
                resources.acquire();
            }
            assert!(running.fetch_add(1, Ordering::SeqCst) < 2);
            std::thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            turns.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn models_share_executions_and_all_get_some() {
        let limiter = RateLimiter::sharing(2);
        let spec = InstanceSpec {
            name: String::new(),
            kind: conch_config::InstanceKind::Cpu,
            device_id: 0,
            host_policy: String::new(),
            is_passive: false,
            profiles: Vec::new(),
            secondary_devices: Vec::new(),
            // What a group names is the other policy's.
            rate_limit: limit(&[("R", true, 9)], 3),
        };
        let (running, turns) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for weight in ["1", "100", "10000"] {
                let text = format!(
                    "parameters {{ key: 'CONCH_SHARE_WEIGHT' value {{ string_value: '{weight}' }} \
                     }}"
                );
                let model = crate::testing::model(&text);
                for _ in 0..2 {
                    let mut resources = limiter.handle_for(&model, &spec).unwrap();
                    let (running, turns) = (&running, &turns);
                    scope.spawn(move || take_turns(&mut resources, running, turns));
                }
            }
        });
        assert_eq!(turns.into_inner(), 600);
    }

    #[test]
    fn devices_have_resources_of_their_own() {
        let limiter = RateLimiter::new(Vec::new());
        let one = limit(&[("R", false, 1)], 1);
        let mut first = limiter.handle(&one, 0).unwrap();
        let mut second = limiter.handle(&one, 1).unwrap();
        first.acquire();
        second.acquire();
        let refused = limiter.handle(&limit(&[("R", true, 1)], 1), 0);
        assert_eq!(
            refused.unwrap_err(),
            Error::invalid(
                "Resource \"R\" is present as both global and device-specific resource in the \
                 model configuration."
            )
        );
    }
}
