//! The rate limiter: instances execute only while they hold the resources that their group names (`--rate-limit=execution_count`).
//!
//! One [`Limiter`] per server, one [`Seat`] per instance that executes. A core that finds work for its instance takes the seat's resources
//! before it forms a batch, so what arrives meanwhile joins it, and gives them back when the execution is over; who gets them is up to
//! [`machine`]. A core that waits for resources is to its model's queue like one that executes: others look after the rest.
//!
//! Without the flag there is no limiter, and instances have no seats.

mod machine;
mod resources;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use conch_config::RateLimit;

use crate::Error;
use machine::{InstanceId, Machine};
use resources::{Needs, Resource};

pub use resources::Capacity;

/// See the module.
pub(crate) struct Limiter {
    /// Held for one event at a time; waits are outside.
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    bells: BTreeMap<InstanceId, Arc<Condvar>>,
}

impl Limiter {
    /// A limiter whose resources are `capacities`; without any, what instances ask for.
    pub(crate) fn new(capacities: Vec<Capacity>) -> Arc<Limiter> {
        Arc::new(Limiter {
            state: Mutex::new(State {
                machine: Machine::new(capacities),
                bells: BTreeMap::new(),
            }),
        })
    }

    /// A seat for an instance on device `device` whose group says `limit`.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words if the instance could never execute, or if a resource's name is both global and not.
    pub(crate) fn seat(self: &Arc<Self>, limit: &RateLimit, device: i32) -> Result<Seat, Error> {
        let needs: Needs = limit
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
        let bell = Arc::new(Condvar::new());
        let mut state = self.lock();
        let (id, granted) = state
            .machine
            .add(needs, limit.priority)
            .map_err(|unmet| Error::invalid(unmet.to_string()))?;
        state.bells.insert(id, Arc::clone(&bell));
        state.ring(&granted);
        drop(state);
        Ok(Seat {
            limiter: Arc::clone(self),
            id,
            bell,
            is_held: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The machine's events leave it whole, or assert before they change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn ring(&self, granted: &[InstanceId]) {
        for id in granted {
            if let Some(bell) = self.bells.get(id) {
                bell.notify_one();
            }
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}

/// An instance's place with the limiter. Dropping it gives back what it holds.
#[derive(Debug)]
pub(crate) struct Seat {
    limiter: Arc<Limiter>,
    id: InstanceId,
    bell: Arc<Condvar>,
    is_held: bool,
}

impl Seat {
    /// Whether the instance may execute.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Waits for the instance's turn: until its resources are there, and it is next.
    pub(crate) fn acquire(&mut self) {
        debug_assert!(!self.is_held);
        let mut state = self.limiter.lock();
        let granted = state.machine.wait(self.id);
        state.ring(&granted);
        self.await_turn(state);
        self.is_held = true;
    }

    /// Gives back what an execution held, and waits for the next turn.
    pub(crate) fn renew(&mut self) {
        debug_assert!(self.is_held);
        let mut state = self.limiter.lock();
        let granted = state.machine.finish(self.id, true, true);
        state.ring(&granted);
        self.await_turn(state);
    }

    /// Gives back what the instance holds. `has_executed`: it had use of it.
    pub(crate) fn release(&mut self, has_executed: bool) {
        debug_assert!(self.is_held);
        let mut state = self.limiter.lock();
        let granted = state.machine.finish(self.id, has_executed, false);
        state.ring(&granted);
        self.is_held = false;
    }

    fn await_turn(&self, state: MutexGuard<'_, State>) {
        let waited = self
            .bell
            .wait_while(state, |state| !state.machine.is_running(self.id));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.limiter.lock();
        let granted = state.machine.remove(self.id);
        state.bells.remove(&self.id);
        state.ring(&granted);
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
        let limiter = Limiter::new(vec![Capacity {
            name: "R".to_owned(),
            count: 3,
            device: None,
        }]);
        let held = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for need in [1, 1, 2, 3] {
                let mut seat = limiter.seat(&limit(&[("R", true, need)], 1), 0).unwrap();
                let held = &held;
                scope.spawn(move || {
                    for turn in 0..300 {
                        if seat.is_held() {
                            seat.renew();
                        } else {
                            seat.acquire();
                        }
                        let need = u64::from(need);
                        assert!(held.fetch_add(need, Ordering::SeqCst) + need <= 3);
                        std::thread::yield_now();
                        held.fetch_sub(need, Ordering::SeqCst);
                        if turn % 3 == 0 {
                            seat.release(turn % 2 == 0);
                        }
                    }
                });
            }
        });
        assert_eq!(held.into_inner(), 0);
        // All seats are gone, and with them what they held.
        let mut seat = limiter.seat(&limit(&[("R", true, 3)], 1), 0).unwrap();
        seat.acquire();
    }

    #[test]
    fn devices_have_resources_of_their_own() {
        let limiter = Limiter::new(Vec::new());
        let one = limit(&[("R", false, 1)], 1);
        let mut first = limiter.seat(&one, 0).unwrap();
        let mut second = limiter.seat(&one, 1).unwrap();
        first.acquire();
        second.acquire();
        let refused = limiter.seat(&limit(&[("R", true, 1)], 1), 0);
        assert_eq!(
            refused.unwrap_err(),
            Error::invalid(
                "Resource \"R\" is present as both global and device-specific resource in the model configuration."
            )
        );
    }
}
