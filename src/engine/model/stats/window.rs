//! A summary of durations: quantiles of the last minute, as upstream's summaries have them.
//!
//! Time is cut into slots of 12 s, of which the latest five count, so that a duration is seen for
//! 48 to 60 s, as in the five age buckets of a minute that upstream's client library keeps. That
//! library keeps samples under a lock and guarantees a quantile's rank within an error that the
//! configuration gives; here a slot counts durations in buckets 1/64 of an octave wide. The rank is
//! exact, the value within 0.8 %.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SLOT_NS: u64 = 12_000_000_000;
const SLOT_COUNT: usize = 5;
/// A slot whose counts are being cleared.
const CLEARING: u64 = u64::MAX;
/// Buckets of an octave; values below are their own buckets.
const PART_BITS: u32 = 6;
const PART_COUNT: usize = 1 << PART_BITS;
/// Values of 2^36 us (19 hours) and more count as the largest below.
const OCTAVE_COUNT: usize = 31;

/// The counts of one octave in all slots.
type Octave = [[AtomicU32; PART_COUNT]; SLOT_COUNT];

/// Durations in microseconds, of all time and of the last minute. Written by any thread, without a
/// lock. An octave's 1.3 KB are made when the first duration falls into it.
pub(super) struct SummaryWindow {
    count: AtomicU64,
    sum_us: AtomicU64,
    /// Which piece of time each slot has, counted from 1; 0: none yet.
    epochs: [AtomicU64; SLOT_COUNT],
    octaves: [OnceLock<Box<Octave>>; OCTAVE_COUNT],
}

impl SummaryWindow {
    pub(super) fn new() -> SummaryWindow {
        SummaryWindow {
            count: AtomicU64::new(0),
            sum_us: AtomicU64::new(0),
            epochs: std::array::from_fn(|_| AtomicU64::new(0)),
            octaves: std::array::from_fn(|_| OnceLock::new()),
        }
    }

    /// Counts a duration that ended at `now_ns`.
    pub(super) fn observe(&self, duration_ns: u64, now_ns: u64) {
        // Whole microseconds, also in the sum, as upstream counts them.
        let duration_us = duration_ns / 1_000;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(duration_us, Ordering::Relaxed);
        let (octave, part) = place_of(duration_us);
        let slot = self.slot_at(epoch_at(now_ns));
        let made = || {
            Box::new(std::array::from_fn(|_| {
                std::array::from_fn(|_| AtomicU32::new(0))
            }))
        };
        let counts = self
            .octaves
            .get(octave)
            .map(|octave| octave.get_or_init(made));
        if let Some(count) = counts.and_then(|slots| slots.get(slot)?.get(part)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The slot for `epoch`, cleared of what it had before. While another thread clears it, the
    /// one before: that is still in the window.
    fn slot_at(&self, epoch: u64) -> usize {
        let slot = slot_of(epoch);
        let Some(owner) = self.epochs.get(slot) else {
            return 0;
        };
        let seen = owner.load(Ordering::Acquire);
        if seen >= epoch && seen != CLEARING {
            return slot;
        }
        let is_ours = seen != CLEARING
            && owner
                .compare_exchange(seen, CLEARING, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !is_ours {
            return slot_of(epoch - 1);
        }
        for octave in self.octaves.iter().filter_map(OnceLock::get) {
            for count in octave.get(slot).into_iter().flatten() {
                count.store(0, Ordering::Relaxed);
            }
        }
        // Release pairs with the Acquire above: who sees the epoch sees the counts cleared.
        owner.store(epoch, Ordering::Release);
        slot
    }

    /// What it holds at `now_ns`.
    pub(super) fn read(&self, now_ns: u64) -> DurationSummary {
        let epoch = epoch_at(now_ns);
        let is_recent = |slot: &usize| {
            let of_slot = self
                .epochs
                .get(*slot)
                .map_or(0, |owner| owner.load(Ordering::Acquire));
            (epoch.saturating_sub(SLOT_COUNT as u64 - 1).max(1)..=epoch).contains(&of_slot)
        };
        let slots: Vec<usize> = (0..SLOT_COUNT).filter(is_recent).collect();
        let mut recent = Vec::new();
        for (octave, counts) in self.octaves.iter().enumerate() {
            let Some(counts) = counts.get() else { continue };
            for part in 0..PART_COUNT {
                let count = slots
                    .iter()
                    .filter_map(|slot| Some(counts.get(*slot)?.get(part)?.load(Ordering::Relaxed)))
                    .fold(0, |sum, count| sum + u64::from(count));
                if count > 0 {
                    recent.push((middle_of(octave, part), count));
                }
            }
        }
        DurationSummary {
            count: self.count.load(Ordering::Relaxed),
            sum_us: self.sum_us.load(Ordering::Relaxed),
            recent,
        }
    }
}

/// What a summary says at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationSummary {
    /// Of all time.
    pub count: u64,
    pub sum_us: u64,
    /// Durations of the last minute in us, ascending, and how often they were.
    recent: Vec<(u64, u64)>,
}

impl DurationSummary {
    /// The duration that a share `quantile` of those of the last minute does not exceed, in us;
    /// none if there were none.
    pub fn quantile_us(&self, quantile: f64) -> Option<u64> {
        let total: u64 = self.recent.iter().map(|(_, count)| count).sum();
        let rank = (quantile * total as f64).ceil() as u64;
        let mut below = 0;
        let mut found = None;
        for (duration_us, count) in &self.recent {
            below += count;
            found = Some(*duration_us);
            if below >= rank.max(1) {
                break;
            }
        }
        found
    }
}

fn epoch_at(now_ns: u64) -> u64 {
    now_ns / SLOT_NS + 1
}

fn slot_of(epoch: u64) -> usize {
    (epoch % SLOT_COUNT as u64) as usize
}

/// The octave and the part of it that a value falls into. The first octave is of the values below
/// 64, each of which has a part of its own.
fn place_of(value: u64) -> (usize, usize) {
    let value = value.min((1 << (PART_BITS as usize + OCTAVE_COUNT - 1)) - 1);
    let octave = value
        .checked_ilog2()
        .unwrap_or(0)
        .saturating_sub(PART_BITS - 1);
    let part = match octave {
        0 => value,
        // The leading bit is that of the octave.
        octave => (value >> (octave - 1)) - PART_COUNT as u64,
    };
    (octave as usize, part as usize & (PART_COUNT - 1))
}

/// The middle of the values of a part.
fn middle_of(octave: usize, part: usize) -> u64 {
    match octave {
        0 => part as u64,
        octave => {
            let low = (PART_COUNT + part) << (octave - 1);
            (low + ((1 << (octave - 1)) - 1) / 2) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_known_within_a_percent() {
        let mut last = (0, 0);
        let dense = 0..3_000_u64;
        let sparse = (0..1_000).map(|step| 1.025_f64.powi(step) as u64);
        for value in dense.chain(sparse.filter(|value| (3_000..1 << 36).contains(value))) {
            let (octave, part) = place_of(value);
            assert!((octave, part) >= last, "{value}");
            last = (octave, part);
            let middle = middle_of(octave, part);
            assert!(middle.abs_diff(value) * 125 <= value, "{value} is {middle}");
        }
        assert_eq!(place_of(u64::MAX), place_of((1 << 36) - 1));
    }

    #[test]
    fn quantiles_are_of_the_durations_seen() {
        let window = SummaryWindow::new();
        assert_eq!(window.read(0).quantile_us(0.5), None);
        for duration_us in 1..=60 {
            window.observe(duration_us * 1_000 + 999, 5);
        }
        let summary = window.read(5);
        assert_eq!((summary.count, summary.sum_us), (60, 30 * 61));
        for (quantile, expected) in [(0.0, 1), (0.5, 30), (0.9, 54), (0.99, 60), (1.0, 60)] {
            assert_eq!(summary.quantile_us(quantile), Some(expected), "{quantile}");
        }
    }

    #[test]
    fn a_minute_later_durations_are_forgotten() {
        let window = SummaryWindow::new();
        window.observe(7_000, 0);
        // Seen for four more slots, whether others come or not.
        assert_eq!(window.read(5 * SLOT_NS - 1).quantile_us(0.5), Some(7));
        assert_eq!(window.read(5 * SLOT_NS).quantile_us(0.5), None);
        window.observe(9_000, 4 * SLOT_NS);
        assert_eq!(window.read(4 * SLOT_NS).quantile_us(0.5), Some(7));
        // The slot of the first is cleared for this one.
        window.observe(11_000, 5 * SLOT_NS);
        let summary = window.read(5 * SLOT_NS);
        assert_eq!(
            (summary.quantile_us(0.0), summary.quantile_us(1.0)),
            (Some(9), Some(11))
        );
        // Count and sum are of all time.
        assert_eq!((summary.count, summary.sum_us), (3, 27));
        window.observe(1_000, 500 * SLOT_NS);
        assert_eq!(window.read(500 * SLOT_NS).quantile_us(1.0), Some(1));
    }

    #[test]
    fn nothing_is_lost_while_slots_turn() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 2_000;
        let window = SummaryWindow::new();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        window.observe(round * 1_000, round * SLOT_NS / 100);
                    }
                });
            }
        });
        let summary = window.read((ROUNDS - 1) * SLOT_NS / 100);
        assert_eq!(summary.count, THREADS * ROUNDS);
        assert_eq!(summary.sum_us, THREADS * (ROUNDS * (ROUNDS - 1) / 2));
        assert!(summary.quantile_us(1.0).is_some());
    }
}
