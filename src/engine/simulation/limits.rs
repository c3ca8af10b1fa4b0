//! The rate limiter of all versions, checked against a plain account of held resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_scheduler::rate_limit::{
    InstanceId, OVERTAKEN_MAX, RateLimiterState, Resource, ResourceCapacity, ResourceNeeds,
};
use conch_scheduler::testing::Random;

use crate::simulation::RuleViolation;
use crate::simulation::setup::VersionSetup;

/// The plain account beside the real rate limiter.
pub(super) struct ReferenceLimits {
    policy: LimitPolicy,
    machine: RateLimiterState,
    instances: BTreeMap<InstanceId, ReferenceInstance>,
}

#[derive(Debug)]
enum LimitPolicy {
    Free,
    /// Instances need resources: as many as are given (none: as the neediest wants) of each.
    Resources {
        given: Option<u64>,
    },
    /// So many executions, which models share by weight.
    Shares {
        executions_max: u64,
    },
}

/// The place of one instance.
struct ReferenceInstance {
    version: usize,
    core: usize,
    needs: ResourceNeeds,
    state: ReferenceState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReferenceState {
    Idle,
    /// So many others were let run meanwhile who need something of the same, and so many may be.
    Waiting {
        passed_count: u32,
        patience: u128,
    },
    Running,
}

impl ReferenceState {
    const BEGINS: ReferenceState = ReferenceState::Waiting {
        passed_count: 0,
        patience: u128::MAX,
    };
}

/// Whose turn it is: version and core.
pub(super) type GrantedCores = Vec<(usize, usize)>;

impl ReferenceLimits {
    pub(super) fn random(random: &mut Random) -> ReferenceLimits {
        let policy = match random.below(6) {
            0..3 => LimitPolicy::Free,
            3 => LimitPolicy::Resources { given: None },
            4 => LimitPolicy::Resources {
                given: Some(NEED_MAX + random.below(3)),
            },
            _ => LimitPolicy::Shares {
                executions_max: 1 + random.below(3),
            },
        };
        let capacity = |name: &str, count| ResourceCapacity {
            name: name.to_owned(),
            count,
            device: None,
        };
        let capacities = match policy {
            LimitPolicy::Free | LimitPolicy::Resources { given: None } => Vec::new(),
            LimitPolicy::Resources { given: Some(count) } => {
                NAMES.iter().map(|name| capacity(name, count)).collect()
            }
            LimitPolicy::Shares { executions_max } => vec![capacity(EXECUTIONS, executions_max)],
        };
        ReferenceLimits {
            policy,
            machine: RateLimiterState::new(capacities),
            instances: BTreeMap::new(),
        }
    }

    pub(super) fn is_free(&self) -> bool {
        matches!(self.policy, LimitPolicy::Free)
    }

    /// Resource handles for the instances of each core of a new version, and whose turn it is now;
    /// none where nothing is limited.
    pub(super) fn add(
        &mut self,
        version: usize,
        setup: &VersionSetup,
        random: &mut Random,
    ) -> Result<(Vec<Vec<InstanceId>>, GrantedCores), RuleViolation> {
        let flow: Arc<str> = Arc::from(random.one_of(&["a", "b"]));
        let rank = match self.policy {
            LimitPolicy::Shares { .. } => random.one_of(&[1, 100, 1_000]),
            _ => random.below(4) as u32,
        };
        let mut instances = vec![Vec::new(); setup.instance_counts.len()];
        let mut turns = GrantedCores::new();
        if self.is_free() {
            return Ok((instances, turns));
        }
        for (core, count) in setup.instance_counts.iter().enumerate() {
            for _ in 0..*count {
                let needs = self.needs(core, random);
                let added = match self.policy {
                    LimitPolicy::Shares { .. } => self.machine.add_to(&flow, needs.clone(), rank),
                    _ => self.machine.add(needs.clone(), rank),
                };
                let (id, granted) = added.map_err(|unmet| unmet.to_string())?;
                let instance = ReferenceInstance {
                    version,
                    core,
                    needs,
                    state: ReferenceState::Idle,
                };
                self.instances.insert(id, instance);
                instances[core].push(id);
                turns.extend(self.note(&granted, |_| true)?);
            }
        }
        Ok((instances, turns))
    }

    fn needs(&self, core: usize, random: &mut Random) -> ResourceNeeds {
        if let LimitPolicy::Shares { .. } = self.policy {
            return ResourceNeeds::from([(resource(EXECUTIONS, None), 1)]);
        }
        let mut needs = ResourceNeeds::new();
        for name in NAMES {
            // The last is one of each device.
            let device = (name == NAMES[2]).then_some(core as i32 % 2);
            let count = random.below(NEED_MAX * 2);
            if (1..=NEED_MAX).contains(&count) {
                needs.insert(resource(name, device), count);
            }
        }
        needs
    }

    /// An idle instance has work.
    pub(super) fn wait(&mut self, id: InstanceId) -> Result<GrantedCores, RuleViolation> {
        self.change(id, ReferenceState::Idle, ReferenceState::BEGINS)?;
        let granted = self.machine.wait(id);
        self.note(&granted, |instance| *instance == id)
    }

    /// A running one is done; with `has_more` it waits again at once.
    pub(super) fn finish(
        &mut self,
        id: InstanceId,
        has_executed: bool,
        has_more: bool,
        cost: u64,
    ) -> Result<GrantedCores, RuleViolation> {
        let next = match has_more {
            true => ReferenceState::BEGINS,
            false => ReferenceState::Idle,
        };
        self.change(id, ReferenceState::Running, next)?;
        let granted = self
            .machine
            .finish_at_cost(id, has_executed, has_more, cost);
        self.note(&granted, |instance| *instance == id)
    }

    /// An idle one goes.
    pub(super) fn remove(&mut self, id: InstanceId) -> Result<GrantedCores, RuleViolation> {
        self.change(id, ReferenceState::Idle, ReferenceState::Idle)?;
        self.instances.remove(&id);
        let granted = self.machine.remove(id);
        self.note(&granted, |_| true)
    }

    fn change(
        &mut self,
        id: InstanceId,
        from: ReferenceState,
        to: ReferenceState,
    ) -> Result<(), RuleViolation> {
        let instance = self.instances.get_mut(&id).ok_or("no such slot")?;
        if instance.state != from {
            return Err(format!("slot {id} is {:?}, not {from:?}", instance.state));
        }
        instance.state = to;
        Ok(())
    }

    /// The machine lets some run: who waits, and no more than there is room for. What may happen to
    /// those that `is_new` says is reckoned anew first, as they begin to wait, or there are others
    /// than before.
    fn note(
        &mut self,
        granted: &[InstanceId],
        is_new: impl Fn(&InstanceId) -> bool,
    ) -> Result<GrantedCores, RuleViolation> {
        let is_sharing = matches!(self.policy, LimitPolicy::Shares { .. });
        for (id, instance) in &mut self.instances {
            if let ReferenceState::Waiting { patience, .. } = &mut instance.state
                && is_new(id)
            {
                *patience = match is_sharing || granted.contains(id) {
                    true => u128::MAX,
                    false => self.machine.patience(*id) + granted.len() as u128,
                };
            }
        }
        let mut turns = GrantedCores::new();
        for id in granted {
            let instance = self.instances.get_mut(id).ok_or("nobody gets a turn")?;
            if !matches!(instance.state, ReferenceState::Waiting { .. }) {
                return Err(format!("slot {id} gets a turn while {:?}", instance.state));
            }
            instance.state = ReferenceState::Running;
            turns.push((instance.version, instance.core));
            let taken = instance.needs.clone();
            for need in taken.keys() {
                let (held, capacity) = (self.held(need), self.capacity(need));
                if held > capacity {
                    return Err(format!("{held} of {capacity} {need:?} are taken"));
                }
            }
            for other in self.instances.values_mut() {
                if let ReferenceState::Waiting {
                    passed_count,
                    patience,
                } = &mut other.state
                    && other.needs.keys().any(|need| taken.contains_key(need))
                {
                    *passed_count += 1;
                    *patience = patience.checked_sub(1).ok_or("one starves")?;
                }
            }
        }
        Ok(turns)
    }

    fn held(&self, resource: &Resource) -> u64 {
        let running = self
            .instances
            .values()
            .filter(|instance| instance.state == ReferenceState::Running);
        running
            .filter_map(|instance| instance.needs.get(resource))
            .sum()
    }

    fn capacity(&self, resource: &Resource) -> u64 {
        match self.policy {
            LimitPolicy::Free => 0,
            LimitPolicy::Shares { executions_max } => executions_max,
            LimitPolicy::Resources { given: Some(given) } => given,
            LimitPolicy::Resources { given: None } => {
                let needs = self
                    .instances
                    .values()
                    .filter_map(|instance| instance.needs.get(resource));
                needs.max().copied().unwrap_or(0)
            }
        }
    }

    /// Nobody waits beside what it needs, but for such as was overtaken too often: what that needs
    /// is kept for it.
    pub(super) fn check(&self) -> Result<(), RuleViolation> {
        for (id, instance) in &self.instances {
            let ReferenceState::Waiting { .. } = instance.state else {
                continue;
            };
            let has_room = instance
                .needs
                .iter()
                .all(|(need, count)| self.held(need) + count <= self.capacity(need));
            let gives_way = self.instances.values().any(|other| {
                let passed = match other.state {
                    ReferenceState::Waiting { passed_count, .. } => passed_count >= OVERTAKEN_MAX,
                    _ => false,
                };
                passed
                    && other
                        .needs
                        .keys()
                        .any(|need| instance.needs.contains_key(need))
            });
            if has_room && !gives_way {
                return Err(format!(
                    "slot {id} waits for {:?}, which is free",
                    instance.needs
                ));
            }
        }
        Ok(())
    }

    /// Nobody has anything to do: all is given back, so that one who needs everything gets it at
    /// once.
    pub(super) fn check_end(&mut self) -> Result<(), RuleViolation> {
        if self.is_free() {
            return Ok(());
        }
        if !self.machine.is_at_rest() {
            return Err("somebody waits or runs at the end".into());
        }
        let resources = self
            .instances
            .values()
            .flat_map(|instance| instance.needs.keys());
        let all: ResourceNeeds = resources
            .map(|resource| (resource.clone(), self.capacity(resource)))
            .collect();
        let added = self.machine.add(all, 1);
        let (id, _) = added.map_err(|unmet| unmet.to_string())?;
        if self.machine.wait(id) != [id] {
            return Err("not everything is given back".into());
        }
        Ok(())
    }
}

fn resource(name: &str, device: Option<i32>) -> Resource {
    Resource {
        name: Arc::from(name),
        device,
    }
}

const EXECUTIONS: &str = "executions";
const NAMES: [&str; 3] = ["R", "S", "T"];
/// The most that an instance needs of one resource.
const NEED_MAX: u64 = 3;
