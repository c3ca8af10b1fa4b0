//! The deterministic simulator: schedulers (of sequences, too), claims and the order of responses on a virtual clock, under random clients, cores, faults and
//! reloads. Each seed is one story; after every event the rules are looked at, and the scheduler is compared with a plain model of it.
//!
//! `scripts/simulate` runs many seeds; the test suite a slice. A seed that breaks a rule is lived through again, and told.

pub(crate) mod plain;
pub(crate) mod random;

mod book;
mod card;
mod setup;
mod story;
mod version;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use story::Story;
use world::World;

/// Seeds that once broke a rule.
const KEPT: &[u64] = &[];
/// What the test suite runs.
const SLICE: u64 = 3_000;

/// How a seed ended: how many events it had, or the rule that did not hold.
fn live(seed: u64, story: Story) -> (Result<u64, String>, Story) {
    let mut world = World::new(seed, story);
    let lived = catch_unwind(AssertUnwindSafe(|| world.live()));
    let outcome = match lived {
        Ok(held) => held.map(|()| world.event_count),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("a panic: {}", words.unwrap_or("without words")))
        }
    };
    (outcome, world.story)
}

/// Runs seeds on all CPUs until one fails. Returns how many events there were.
fn run(seeds: std::ops::Range<u64>) -> Result<u64, String> {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(u64::MAX);
    let event_count = AtomicU64::new(0);
    let thread_count = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..thread_count {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || seed > failed.load(Ordering::Relaxed) {
                        return;
                    }
                    match live(seed, Story::default()).0 {
                        Ok(count) => {
                            event_count.fetch_add(count, Ordering::Relaxed);
                        }
                        Err(_) => {
                            failed.fetch_min(seed, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        u64::MAX => Ok(event_count.into_inner()),
        seed => {
            let (outcome, story) = live(seed, Story::told());
            let breach = outcome.expect_err("a seed ends the same way each time");
            Err(format!("{story}seed {seed}: {breach}"))
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number"))
    })
}

#[test]
fn every_rule_holds_in_every_seed() {
    for seed in KEPT {
        run(*seed..seed + 1).unwrap_or_else(|story| panic!("{story}"));
    }
    let first = number("CONCH_FIRST_SEED", 0);
    let count = number("CONCH_SEEDS", SLICE);
    let event_count =
        run(first..first.saturating_add(count)).unwrap_or_else(|story| panic!("{story}"));
    // Fewer would be seeds in which hardly anything happens.
    assert!(event_count >= 200 * count, "{event_count} events");
    println!("{count} seeds, {event_count} events: every rule holds");
}
