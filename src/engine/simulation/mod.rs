//! The deterministic simulator. Each seed is one story: random clients, cores, faults and reloads
//! on a virtual clock, and after every event the rules are looked at.
//!
//! - [`world`]: schedulers (of sequences, too), claims, the order of responses and the limiter of
//!   executions. The scheduler is compared with a plain model of it.
//! - [`streams`]: the same with instances that keep batches in flight.
//! - [`device_cores`]: models that share the core of a device, and calls that block it.
//! - [`ensembles`]: requests of ensembles that run through real queues. Answers are compared with
//!   what the graph makes.
//!
//! `scripts/simulate` runs many seeds of each; the test suite a slice. A seed that breaks a rule is
//! lived through again, and told.

pub(crate) mod plain;

mod agenda;
mod clients;
mod cores;
mod device_cores;
mod device_models;
mod ensembles;
mod inline_model;
mod limits;
mod models;
mod reference;
mod request;
mod rules;
mod setup;
mod streams;
mod trace;
mod version;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::simulation::device_cores::DeviceSimulation;
use crate::simulation::ensembles::EnsembleSimulation;
use crate::simulation::trace::SeedTrace;
use crate::simulation::world::Simulation;

/// A rule that did not hold.
type RuleViolation = String;
type RuleResult = Result<(), RuleViolation>;

/// Each seed has so many events at least: fewer would be seeds in which hardly anything happens.
const EVENT_COUNT_MIN: u64 = 200;

/// Seeds that once broke a rule, and what they found: defects in their own words, or planted bugs
/// by the names of their patches in `tests/planted`. They run first, always.
const KEPT: &[(u64, &str)] = &[
    (
        0,
        "lost-wake, slot-leak, young-backlog; of ensembles place-twice, lost-end",
    ),
    (1, "early-idle, lost-deadline, over-capacity, stale-slot"),
    (
        2,
        "head-of-line, lost-turn, order-of-arrival, resource-leak, second-turn, unready",
    ),
    (
        3,
        "cancelled-goes-on, starved, two-at-once; of ensembles last-error",
    ),
    (5, "wrong-level"),
    (6, "reordered"),
    (7, "stale-generation"),
    (10, "bound-off-by-one"),
    (11, "longer-timeout"),
    (12, "too-early"),
    (21, "lost-call"),
    (118, "arrives-again"),
    (545, "lost-return"),
    (2_645, "comes-back-twice"),
    (2_852, "occupied-for-ever"),
    (17_259, "short-memory; of ensembles forgotten-turn"),
];
/// What the test suite runs.
const SLICE: u64 = 1_500;

/// Lives through a seed: how many events it had, or the rule that did not hold, and its story.
type RunSeed = fn(u64, SeedTrace) -> (Result<u64, RuleViolation>, SeedTrace);

/// What each seed lives through.
const LIVES: [(&str, RunSeed); LIVES_COUNT] = [
    ("schedulers", live_schedulers),
    ("ensembles", live_ensembles),
    ("streams", live_streams),
    ("device cores", live_device_cores),
];
const LIVES_COUNT: usize = 4;

fn live_schedulers(seed: u64, trace: SeedTrace) -> (Result<u64, RuleViolation>, SeedTrace) {
    live_world(Simulation::new(seed, trace))
}

fn live_streams(seed: u64, trace: SeedTrace) -> (Result<u64, RuleViolation>, SeedTrace) {
    live_world(Simulation::with_streams(seed, trace))
}

fn live_world(mut world: Simulation) -> (Result<u64, RuleViolation>, SeedTrace) {
    let held = caught(|| world.live());
    (held.map(|()| world.event_count), world.trace)
}

fn live_ensembles(seed: u64, mut trace: SeedTrace) -> (Result<u64, RuleViolation>, SeedTrace) {
    let mut world = EnsembleSimulation::new(seed);
    let held = caught(|| world.live(&mut trace));
    (held.map(|()| world.event_count), trace)
}

fn live_device_cores(seed: u64, mut trace: SeedTrace) -> (Result<u64, RuleViolation>, SeedTrace) {
    let mut world = DeviceSimulation::new(seed);
    let held = caught(|| world.live(&mut trace));
    (held.map(|()| world.event_count), trace)
}

/// A panic breaks a rule, too.
fn caught(live: impl FnOnce() -> RuleResult) -> RuleResult {
    catch_unwind(AssertUnwindSafe(live)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", words.unwrap_or("without words")))
    })
}

/// Runs seeds on all CPUs until one fails. Returns how many events there were in each of [`LIVES`].
fn run(seeds: std::ops::Range<u64>) -> Result<[u64; LIVES_COUNT], String> {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(u64::MAX);
    let event_counts = [const { AtomicU64::new(0) }; LIVES_COUNT];
    let thread_count = std::thread::available_parallelism().map_or(1, usize::from);
    let live_on = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end || seed > failed.load(Ordering::Relaxed) {
            return;
        }
        for ((_, live), event_count) in LIVES.iter().zip(&event_counts) {
            match live(seed, SeedTrace::default()).0 {
                Ok(count) => event_count.fetch_add(count, Ordering::Relaxed),
                Err(_) => failed.fetch_min(seed, Ordering::Relaxed),
            };
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..thread_count {
            scope.spawn(live_on);
        }
    });
    let seed = failed.into_inner();
    if seed == u64::MAX {
        return Ok(event_counts.map(AtomicU64::into_inner));
    }
    for (name, live) in LIVES {
        if let (Err(breach), trace) = live(seed, SeedTrace::told()) {
            return Err(format!("{trace}seed {seed} of {name}: {breach}"));
        }
    }
    Err(format!("seed {seed} does not end the same way each time"))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number"))
    })
}

#[test]
fn every_rule_holds_in_every_seed() {
    for (seed, found) in KEPT {
        run(*seed..seed + 1).unwrap_or_else(|trace| panic!("{trace}\nkept, as it found {found}"));
    }
    let first = number("CONCH_FIRST_SEED", 0);
    let count = number("CONCH_SEEDS", SLICE);
    let started = std::time::Instant::now();
    let seeds = first..first.saturating_add(count);
    let event_counts = run(seeds).unwrap_or_else(|trace| panic!("{trace}"));
    println!(
        "{count} seeds in {:.1?}: every rule holds",
        started.elapsed()
    );
    for ((name, _), event_count) in LIVES.iter().zip(event_counts) {
        println!("{event_count} events of {name}");
    }
}

/// Rules that nothing ever meets hold always.
#[test]
fn batches_overlap_in_many_lives() {
    let overlaps = |seed: &u64| {
        let mut world = Simulation::with_streams(*seed, SeedTrace::default());
        world
            .live()
            .unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
        world.overlap_count > 0
    };
    let count = (0..200).filter(overlaps).count();
    assert!(count >= 50, "{count} of 200 lives");
}

#[test]
fn submitters_execute_steps_in_many_lives() {
    let executes = |seed: &u64| {
        let mut world = EnsembleSimulation::new(*seed);
        let held = world.live(&mut SeedTrace::default());
        held.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
        world.executes_steps_of_turns()
    };
    let count = (0..200).filter(executes).count();
    assert!(count >= 25, "{count} of 200 lives");
}

#[test]
fn models_move_in_many_lives() {
    let moves = |seed: &u64| {
        let mut world = DeviceSimulation::new(*seed);
        let held = world.live(&mut SeedTrace::default());
        held.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
        world.move_count > 0
    };
    let count = (0..200).filter(moves).count();
    assert!(count >= 50, "{count} of 200 lives");
}
