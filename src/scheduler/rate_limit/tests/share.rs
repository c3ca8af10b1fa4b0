//! Shares: flows that always have work get time by their weights, whatever a turn costs; who was
//! idle has saved nothing; random lives.

use std::collections::BTreeMap;

use crate::rate_limit::*;
use crate::testing::{Random, for_each_seed};

fn needs() -> ResourceNeeds {
    let resource = Resource {
        name: Arc::from("executions"),
        device: None,
    };
    ResourceNeeds::from([(resource, 1)])
}

fn machine(executions_max: u64) -> RateLimiterState {
    RateLimiterState::new(vec![ResourceCapacity {
        name: "executions".to_owned(),
        count: executions_max,
        device: None,
    }])
}

/// Flows that always have work, on a virtual clock: which instance runs until when, and how long
/// each flow has run.
struct Busy {
    machine: RateLimiterState,
    flow_of: BTreeMap<InstanceId, usize>,
    ends: BTreeSet<(u64, InstanceId, u64)>,
    used: Vec<u64>,
    now: u64,
}

impl Busy {
    /// Flows as (weight, instances).
    fn new(executions_max: u64, flows: &[(u32, usize)]) -> Busy {
        let mut busy = Busy {
            machine: machine(executions_max),
            flow_of: BTreeMap::new(),
            ends: BTreeSet::new(),
            used: vec![0; flows.len()],
            now: 0,
        };
        for (flow, (weight, count)) in flows.iter().enumerate() {
            let name: Arc<str> = Arc::from(format!("m{flow}"));
            for _ in 0..*count {
                let (id, _) = busy.machine.add_to(&name, needs(), *weight).unwrap();
                busy.flow_of.insert(id, flow);
            }
        }
        busy
    }

    fn begin(&mut self, granted: Vec<InstanceId>, mut cost: impl FnMut(usize) -> u64) {
        for id in granted {
            let cost = cost(self.flow_of[&id]);
            self.ends.insert((self.now + cost, id, cost));
        }
    }

    /// The next execution ends; its instance has more to do if its flow is among `busy`.
    fn step(&mut self, is_busy: impl Fn(usize) -> bool, cost: impl FnMut(usize) -> u64) {
        let (end, id, spent) = self.ends.pop_first().expect("somebody runs");
        self.now = end;
        let flow = self.flow_of[&id];
        self.used[flow] += spent;
        let granted = self.machine.finish_at_cost(id, true, is_busy(flow), spent);
        self.begin(granted, cost);
    }
}

/// Executions at a time, flows as (weight, instances), what a turn of each costs, the shares of
/// time in percent.
type Case = (u64, &'static [(u32, usize)], &'static [u64], &'static [u64]);

#[test]
fn time_is_shared_by_weight_whatever_a_turn_costs() {
    let table: [Case; 6] = [
        (1, &[(100, 1), (100, 1)], &[10, 10], &[50, 50]),
        (1, &[(100, 1), (100, 1)], &[10, 1_000], &[50, 50]),
        (1, &[(100, 4), (100, 1)], &[10, 10], &[50, 50]),
        (1, &[(300, 1), (100, 2)], &[7, 90], &[75, 25]),
        (
            2,
            &[(100, 2), (200, 2), (700, 3)],
            &[50, 20, 10],
            &[10, 20, 70],
        ),
        // One instance cannot use more than one of two executions; the others get what is left.
        (2, &[(10_000, 1), (1, 2)], &[10, 10], &[50, 50]),
    ];
    for (executions_max, flows, costs, shares) in table {
        let mut busy = Busy::new(executions_max, flows);
        let ids: Vec<InstanceId> = busy.flow_of.keys().copied().collect();
        for id in ids {
            let granted = busy.machine.wait(id);
            busy.begin(granted, |flow| costs[flow]);
        }
        while busy.now < 1_000_000 {
            busy.step(|_| true, |flow| costs[flow]);
        }
        let total: u64 = busy.used.iter().sum();
        for (flow, share) in shares.iter().enumerate() {
            let found = busy.used[flow] * 1_000 / total;
            assert!(found.abs_diff(share * 10) <= 5, "{flows:?} {:?}", busy.used);
        }
    }
}

#[test]
fn who_was_idle_or_is_new_has_saved_nothing() {
    let mut busy = Busy::new(1, &[(100, 1), (100, 1), (100, 1)]);
    let granted = busy.machine.wait(0);
    busy.begin(granted, |_| 10);
    for _ in 0..1_000 {
        busy.step(|flow| flow == 0, |_| 10);
    }
    // The second comes while the first is at it.
    assert!(busy.machine.wait(1).is_empty());
    let mut before = busy.used.clone();
    for _ in 0..100 {
        busy.step(|_| true, |_| 10);
    }
    assert_eq!(
        (busy.used[0] - before[0], busy.used[1] - before[1]),
        (500, 500)
    );
    // Nobody has anything to do, then the third comes before the others: they do not wait until it
    // has caught up.
    while !busy.ends.is_empty() {
        busy.step(|_| false, |_| 10);
    }
    let granted = busy.machine.wait(2);
    busy.begin(granted, |_| 10);
    assert!(busy.machine.wait(0).is_empty());
    before.clone_from(&busy.used);
    for _ in 0..100 {
        busy.step(|_| true, |_| 10);
    }
    assert_eq!(
        (busy.used[0] - before[0], busy.used[2] - before[2]),
        (500, 500)
    );
}

/// Seeds that once failed.
const KEPT: &[u64] = &[];

/// Random flows that come, idle, and go: never more run than may, nobody waits beside a free
/// execution, and flows that wait all the time get time by their weights, up to what their
/// instances run at once.
#[test]
fn random_lives_are_fair() {
    for_each_seed(KEPT, 2_000, live);
}

fn live(seed: u64) {
    let mut random = Random(seed);
    let executions_max = 1 + random.below(3);
    let flow_count = 2 + random.below(4) as usize;
    // As many instances as there are executions, so that any flow could use all of them.
    let flows: Vec<(u32, usize)> = (0..flow_count)
        .map(|_| {
            let count = executions_max + random.below(2);
            (random.one_of(&[1, 10, 100, 250, 1_000]), count as usize)
        })
        .collect();
    let mut busy = Busy::new(executions_max, &flows);
    const COST_MAX: u64 = 50;
    // Those that always have work are compared; the others come and go.
    let always = 2;
    let mut most_granted = 0;
    let ids: Vec<InstanceId> = busy.flow_of.keys().copied().collect();
    for id in ids {
        if busy.flow_of[&id] < always {
            let granted = busy.machine.wait(id);
            busy.begin(granted, |_| 1 + seed % COST_MAX);
        }
    }
    for _ in 0..400 {
        if random.chance(1, 3) {
            let idle: Vec<InstanceId> = busy
                .machine
                .instances
                .iter()
                .filter(|(_, instance)| instance.state == InstanceState::Idle)
                .map(|(id, _)| *id)
                .collect();
            if !idle.is_empty() {
                let id = random.one_of(&idle);
                let granted = busy.machine.wait(id);
                busy.begin(granted, |_| 1 + random.below(COST_MAX));
            }
        }
        let goes_on = random.chance(1, 2);
        busy.step(
            |flow| flow < always || goes_on,
            |_| 1 + random.below(COST_MAX),
        );
        let running = busy.ends.len() as u64;
        assert!(running <= executions_max);
        assert!(busy.machine.waiting.is_empty() || running == executions_max);
        assert!(
            busy.machine.granted_pass >= most_granted,
            "time goes one way"
        );
        most_granted = busy.machine.granted_pass;
    }
    // The bound of start-time fair queueing, with every instance of a flow running at once.
    let lag = |flow: usize| {
        let (weight, count) = flows[flow];
        (count as u64 * COST_MAX * 2) as f64 / f64::from(weight)
    };
    let normal = |flow: usize| busy.used[flow] as f64 / f64::from(flows[flow].0);
    let difference = (normal(0) - normal(1)).abs();
    assert!(
        difference <= lag(0) + lag(1),
        "{flows:?} {:?}: {difference}",
        busy.used
    );
}
