//! Chooses the instance that may execute next: a passive state machine over the resources that
//! instances hold while they execute.
//!
//! ```text
//!          wait                 granted (by any event)
//! idle ──────────► waiting ──────────────────────────────► running
//!   ▲                 │ stop_waiting                          │
//!   └─────────────────┴───────────────────────────────────────┘ finish
//! ```
//!
//! **Order.** Each instance has a *pass*, which its priority raises with every execution, so that
//! of two that always have work the one of priority 2 gets half the turns of the one of priority 1:
//! upstream's `execution count x priority`. The lowest pass goes first, and of equal ones the one
//! that waits longer. A new instance has two executions behind it, as upstream's, which counts its
//! initialisation and its warm-up. An instance that was idle, or is new, is at most one turn behind
//! its competitors (those with a resource in common), one that had work all the time at most eight:
//! it does not catch up with what it missed. Upstream lets an instance run alone until it has
//! caught up with the life of all others.
//!
//! **Nobody stands in the way.** Whoever waits and finds its resources free is granted them, though
//! one with a lower pass waits for others (upstream tries the first alone). That could keep the
//! first waiting for ever, if it needs much and the others little; so it is passed over
//! [`OVERTAKEN_MAX`] times at most by such as take of what it needs: then what it needs is kept for
//! it.
//!
//! **Nobody starves.** A pass never falls, and stands still while its instance waits; every
//! execution of another raises that one's by 1 at least, so those with lower passes get before it a
//! bounded number of times; those with higher ones, [`OVERTAKEN_MAX`] times; and what then runs
//! ends.
//!
//! **Shares.** The other policy (start-time fair queueing): instances belong to *flows*, one per
//! model, and all need one of the same few executions. A flow has a tag, which each of its
//! executions raises by its cost divided by the flow's weight; an instance that begins to wait gets
//! the tag of its flow for a pass, or the pass of who was granted last if that is higher: a flow
//! that was idle has saved nothing, and one that is new owes nothing. When nobody waits or runs,
//! all tags are history, and who comes next begins beyond them.

mod resources;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use resources::capacities;

pub use resources::{Resource, ResourceCapacity, ResourceNeeds, UnmetNeeds};

/// A few: enough that instances with small needs use what a large one waits to be complete, and
/// still no more than that many executions.
pub const OVERTAKEN_MAX: u32 = 8;

/// Executions that a new instance has behind it: its initialisation and its warm-up.
const BIRTH_TURNS: u128 = 2;
/// How far an instance may be behind its competitors when it begins to wait: after it was idle, and
/// if it never was.
const TURNS_OF_THE_IDLE: u128 = 1;
const TURNS_OF_THE_BUSY: u128 = 8;

/// The stride of weight 1: enough digits for the quotient of any weight.
const SHARE_UNIT: u128 = 1 << 32;

pub type InstanceId = u64;

#[derive(Debug, Default)]
pub struct RateLimiterState {
    given: Vec<ResourceCapacity>,
    capacities: BTreeMap<Resource, u64>,
    held: BTreeMap<Resource, u64>,
    instances: BTreeMap<InstanceId, LimitedInstance>,
    /// Pass and number of arrival, so in the order of their turns.
    waiting: BTreeSet<(u128, u64, InstanceId)>,
    next_arrival: u64,
    next_id: InstanceId,
    /// The tags of flows.
    flows: BTreeMap<Arc<str>, u128>,
    /// The highest pass of a flow's instance that was granted a turn.
    granted_pass: u128,
}

#[derive(Debug)]
struct LimitedInstance {
    needs: ResourceNeeds,
    /// What an execution adds to the pass: the priority, at least 1. Of a flow, what a unit of cost
    /// adds to its tag.
    stride: u128,
    flow: Option<Arc<str>>,
    pass: u128,
    /// Its last turn was in vain.
    was_vain: bool,
    state: InstanceState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstanceState {
    Idle,
    Waiting {
        arrival: u64,
        /// By such as came later in the order and took of what it needs.
        overtaken_count: u32,
    },
    Running,
}

impl LimitedInstance {
    /// Another instance, which came later in the order, was granted `taken`. True if that kept this
    /// one waiting and no other may do so again.
    fn count_overtaking(&mut self, taken: &ResourceNeeds) -> bool {
        let InstanceState::Waiting {
            overtaken_count, ..
        } = &mut self.state
        else {
            return false;
        };
        if !self.needs.keys().any(|need| taken.contains_key(need)) {
            return false;
        }
        *overtaken_count += 1;
        *overtaken_count >= OVERTAKEN_MAX
    }

    /// Whether what it needs is reserved for it.
    fn is_overtaken_max(&self) -> bool {
        matches!(self.state, InstanceState::Waiting { overtaken_count, .. }
            if overtaken_count >= OVERTAKEN_MAX)
    }
}

impl RateLimiterState {
    pub fn new(given: Vec<ResourceCapacity>) -> RateLimiterState {
        RateLimiterState {
            given,
            ..RateLimiterState::default()
        }
    }

    /// An idle instance more, and who may run now: there may be more of its resources.
    ///
    /// # Errors
    /// If its needs, beside those of all others, cannot be met: then there is none more.
    pub fn add(
        &mut self,
        needs: ResourceNeeds,
        priority: u32,
    ) -> Result<(InstanceId, Vec<InstanceId>), UnmetNeeds> {
        let all = self.instances.values().map(|instance| &instance.needs);
        self.capacities = capacities(all.chain([&needs]), &self.given)?;
        let id = self.next_id;
        self.next_id += 1;
        let stride = u128::from(priority.max(1));
        let instance = LimitedInstance {
            needs,
            stride,
            flow: None,
            pass: BIRTH_TURNS * stride,
            was_vain: false,
            state: InstanceState::Idle,
        };
        self.instances.insert(id, instance);
        Ok((id, self.grant()))
    }

    /// An idle instance of `flow` more, whose executions cost it the less the higher `weight`.
    ///
    /// # Errors
    /// As [`RateLimiterState::add`].
    pub fn add_to(
        &mut self,
        flow: &Arc<str>,
        needs: ResourceNeeds,
        weight: u32,
    ) -> Result<(InstanceId, Vec<InstanceId>), UnmetNeeds> {
        let (id, granted) = self.add(needs, 1)?;
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.flow = Some(Arc::clone(flow));
            instance.pass = 0;
            instance.stride = (SHARE_UNIT / u128::from(weight.max(1))).max(1);
        }
        self.flows.entry(Arc::clone(flow)).or_default();
        Ok((id, granted))
    }

    /// One less, whatever it does; returns who is granted its turn for that. There may be less of
    /// its resources afterwards.
    pub fn remove(&mut self, id: InstanceId) -> Vec<InstanceId> {
        self.stop_waiting(id);
        let Some(instance) = self.instances.remove(&id) else {
            return Vec::new();
        };
        if instance.state == InstanceState::Running {
            self.release(&instance.needs);
        }
        let all = self.instances.values().map(|instance| &instance.needs);
        if let Ok(capacities) = capacities(all, &self.given) {
            self.capacities = capacities;
        }
        if let Some(flow) = &instance.flow {
            let is_its = |other: &LimitedInstance| other.flow.as_ref() == Some(flow);
            if !self.instances.values().any(is_its) {
                self.flows.remove(flow);
            }
        }
        let granted = self.grant();
        self.note_rest();
        granted
    }

    /// An idle instance has work. Returns who may run now: it, or nobody.
    pub fn wait(&mut self, id: InstanceId) -> Vec<InstanceId> {
        self.start_waiting(id, TURNS_OF_THE_IDLE);
        self.grant()
    }

    /// [`RateLimiterState::finish_at_cost`] of a turn that cost 1.
    #[cfg(test)]
    pub fn finish(
        &mut self,
        id: InstanceId,
        has_executed: bool,
        has_more: bool,
    ) -> Vec<InstanceId> {
        self.finish_at_cost(id, has_executed, has_more, 1)
    }

    /// A running instance is done. It may not have executed: another of its model may have taken
    /// the work; that costs nothing unless it happens again. With `has_more` it waits again at
    /// once, and gets its next turn in its order. `cost` is what a flow pays for. Returns who may
    /// run now.
    pub fn finish_at_cost(
        &mut self,
        id: InstanceId,
        has_executed: bool,
        has_more: bool,
        cost: u64,
    ) -> Vec<InstanceId> {
        let Some(instance) = self.instances.get_mut(&id) else {
            return Vec::new();
        };
        assert_eq!(instance.state, InstanceState::Running);
        instance.state = InstanceState::Idle;
        let is_charged = has_executed || instance.was_vain;
        instance.was_vain = !has_executed;
        let needs = std::mem::take(&mut instance.needs);
        if is_charged {
            match &instance.flow {
                None => instance.pass += instance.stride,
                Some(flow) => {
                    let (flow, pass) = (Arc::clone(flow), instance.pass);
                    let price = instance.stride.saturating_mul(u128::from(cost));
                    self.charge(&flow, pass, price);
                }
            }
        }
        self.release(&needs);
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.needs = needs;
        }
        if has_more {
            self.start_waiting(id, TURNS_OF_THE_BUSY);
        }
        let granted = self.grant();
        self.note_rest();
        granted
    }

    /// A running instance has executed its warm-up, which is among its [`BIRTH_TURNS`]; only a flow
    /// pays for it. Returns who may run now.
    pub fn finish_warm_up(&mut self, id: InstanceId, cost: u64) -> Vec<InstanceId> {
        let is_of_flow = |instance: &LimitedInstance| instance.flow.is_some();
        let is_charged = self.instances.get(&id).is_some_and(is_of_flow);
        let granted = self.finish_at_cost(id, is_charged, false, cost);
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.was_vain = false;
        }
        granted
    }

    pub fn is_running(&self, id: InstanceId) -> bool {
        let instance = self.instances.get(&id);
        instance.is_some_and(|instance| instance.state == InstanceState::Running)
    }

    /// How many turns those with a resource in common may get before `id`, which waits and is of no
    /// flow.
    #[doc(hidden)]
    pub fn patience(&self, id: InstanceId) -> u128 {
        let own = &self.instances[&id];
        let competes = |other: &LimitedInstance| {
            let mut needs = other.needs.keys();
            needs.any(|need| own.needs.contains_key(need))
        };
        let others = self.instances.iter().filter(|(other, _)| **other != id);
        let before: u128 = others
            .filter(|(_, other)| competes(other) && other.pass <= own.pass)
            .map(|(_, other)| (own.pass - other.pass) / other.stride + 1)
            .sum();
        // Every other turn may be in vain.
        2 * before + u128::from(OVERTAKEN_MAX)
    }

    /// Raises the tag of `flow` for a turn that began at `pass`; its instances that wait get back
    /// in line by it.
    fn charge(&mut self, flow: &Arc<str>, pass: u128, price: u128) {
        let Some(tag) = self.flows.get_mut(flow) else {
            return;
        };
        *tag = (*tag).max(pass).saturating_add(price);
        for (id, instance) in &mut self.instances {
            if let InstanceState::Waiting { arrival, .. } = instance.state
                && instance.flow.as_ref() == Some(flow)
                && instance.pass < *tag
            {
                self.waiting.remove(&(instance.pass, arrival, *id));
                instance.pass = *tag;
                self.waiting.insert((instance.pass, arrival, *id));
            }
        }
    }

    /// Whether nobody waits or runs.
    pub fn is_at_rest(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty()
    }

    /// When nobody waits or runs, no flow is owed anything.
    fn note_rest(&mut self) {
        if self.is_at_rest() {
            let highest = self.flows.values().copied().max().unwrap_or(0);
            self.granted_pass = self.granted_pass.max(highest);
        }
    }

    /// No longer among those that wait.
    fn stop_waiting(&mut self, id: InstanceId) {
        if let Some(instance) = self.instances.get_mut(&id)
            && let InstanceState::Waiting { arrival, .. } = instance.state
        {
            instance.state = InstanceState::Idle;
            self.waiting.remove(&(instance.pass, arrival, id));
        }
    }

    /// Begins to wait, at most so many turns behind its competitors.
    fn start_waiting(&mut self, id: InstanceId, turns_max: u128) {
        let Some(entering) = self.instances.get(&id) else {
            return;
        };
        assert_eq!(entering.state, InstanceState::Idle);
        let tag = entering.flow.as_ref().and_then(|flow| self.flows.get(flow));
        let competes = |other: &&LimitedInstance| {
            other.state != InstanceState::Idle
                && other
                    .needs
                    .keys()
                    .any(|need| entering.needs.contains_key(need))
        };
        let pass = match tag {
            Some(tag) => self.granted_pass.max(*tag),
            None => {
                // A turn of its own, or of the other's, if that counts more.
                let behind = |other: &LimitedInstance| {
                    let turn = entering.stride.max(other.stride);
                    other.pass.saturating_sub(turn.saturating_mul(turns_max))
                };
                let competitors = self.instances.values().filter(competes);
                let floor = competitors.map(behind).min();
                entering.pass.max(floor.unwrap_or(0))
            }
        };
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.pass = pass;
            instance.state = InstanceState::Waiting {
                arrival,
                overtaken_count: 0,
            };
            self.waiting.insert((pass, arrival, id));
        }
    }

    /// Lets run whoever can, in order.
    fn grant(&mut self) -> Vec<InstanceId> {
        let mut granted = Vec::new();
        // Of those that were tried and still wait.
        let mut passed_over: Vec<InstanceId> = Vec::new();
        let mut kept: BTreeSet<Resource> = BTreeSet::new();
        for (_, _, id) in &self.waiting {
            let Some(instance) = self.instances.get(id) else {
                continue;
            };
            let is_kept = instance.needs.keys().any(|need| kept.contains(need));
            if !is_kept && self.has_room(&instance.needs) {
                for (need, count) in &instance.needs {
                    *self.held.entry(need.clone()).or_default() += count;
                }
                granted.push(*id);
                let taken = instance.needs.clone();
                for other in &passed_over {
                    if let Some(other) = self.instances.get_mut(other)
                        && other.count_overtaking(&taken)
                    {
                        kept.extend(other.needs.keys().cloned());
                    }
                }
                continue;
            }
            if instance.is_overtaken_max() {
                kept.extend(instance.needs.keys().cloned());
            }
            passed_over.push(*id);
        }
        for id in &granted {
            if let Some(instance) = self.instances.get_mut(id) {
                if let InstanceState::Waiting { arrival, .. } = instance.state {
                    self.waiting.remove(&(instance.pass, arrival, *id));
                }
                instance.state = InstanceState::Running;
                if instance.flow.is_some() {
                    self.granted_pass = self.granted_pass.max(instance.pass);
                }
            }
        }
        granted
    }

    fn has_room(&self, needs: &ResourceNeeds) -> bool {
        needs.iter().all(|(need, count)| {
            let held = self.held.get(need).copied().unwrap_or(0);
            let capacity = self.capacities.get(need).copied().unwrap_or(0);
            held.checked_add(*count).is_some_and(|sum| sum <= capacity)
        })
    }

    /// The resources of an instance that runs no longer are free.
    fn release(&mut self, needs: &ResourceNeeds) {
        for (need, count) in needs {
            if let Some(held) = self.held.get_mut(need) {
                let rest = held.checked_sub(*count);
                *held = rest.expect("a resource is released once");
                if *held == 0 {
                    self.held.remove(need);
                }
            }
        }
    }
}
