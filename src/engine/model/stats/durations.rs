//! A histogram of durations: fixed buckets, whose bounds are the numbers of two significant digits
//! that stand in the series E24, 24 a decade from 10 us to 91 s.
//!
//! From one bound to the next it is 10 % or so, which is what two significant digits tell of a
//! number that begins with 1; all 90 numbers of a decade would tell no more there. Buckets of all
//! models and servers are the same, so that histograms can be added up.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds of one decade, in tenths.
const SERIES: [u64; 24] = [
    10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91,
];
const DECADES: usize = 7;
/// How many durations are bounds.
pub const BOUND_COUNT: usize = SERIES.len() * DECADES;
/// One bucket up to each bound, one above all.
const BUCKET_COUNT: usize = BOUND_COUNT + 1;
/// A tenth of the first bound, ns.
const UNIT_NS: u64 = 1_000;

/// Upper bounds of the buckets, ns; the last is none.
static BOUNDS_NS: [u64; BUCKET_COUNT] = {
    let mut bounds = [u64::MAX; BUCKET_COUNT];
    let (mut index, mut unit_ns) = (0, UNIT_NS);
    while index < BOUND_COUNT {
        bounds[index] = SERIES[index % SERIES.len()] * unit_ns;
        index += 1;
        if index % SERIES.len() == 0 {
            unit_ns *= 10;
        }
    }
    bounds
};

/// The first octave with a bound: the smallest is 10,000 ns.
const FIRST_OCTAVE: u32 = 13;
/// The last one: the largest bound is 91e9 ns, below 2^37.
const LAST_OCTAVE: u32 = 36;
/// An octave has eight parts, each less than two steps of the series wide.
const PART_BITS: u32 = 3;
const PART_COUNT: usize = ((LAST_OCTAVE - FIRST_OCTAVE + 1) << PART_BITS) as usize;

/// By part: the first bucket that takes a duration of it.
static FIRST_BUCKETS: [u8; PART_COUNT] = {
    let mut firsts = [0; PART_COUNT];
    let mut part = 0;
    while part < PART_COUNT {
        let octave = FIRST_OCTAVE + (part >> PART_BITS) as u32;
        let eighths = (1 << PART_BITS) + (part as u64 & ((1 << PART_BITS) - 1));
        let low_ns = eighths << (octave - PART_BITS);
        let mut bucket = 0;
        while BOUNDS_NS[bucket] < low_ns {
            bucket += 1;
        }
        firsts[part] = bucket as u8;
        part += 1;
    }
    firsts
};

/// The bucket of a duration: the first whose bound is not below it.
fn bucket_of(duration_ns: u64) -> usize {
    let Some(octave) = duration_ns.checked_ilog2().filter(|o| *o >= FIRST_OCTAVE) else {
        return 0;
    };
    let eighths = duration_ns >> (octave - PART_BITS);
    let part = (((octave - FIRST_OCTAVE) << PART_BITS) as u64 + (eighths & 7)) as usize;
    let Some(first) = FIRST_BUCKETS.get(part) else {
        return BOUND_COUNT;
    };
    let mut bucket = usize::from(*first);
    while BOUNDS_NS
        .get(bucket)
        .is_some_and(|bound_ns| *bound_ns < duration_ns)
    {
        bucket += 1;
    }
    bucket
}

/// Upper bounds of all buckets but the last, in seconds.
pub fn duration_bounds() -> impl Iterator<Item = f64> {
    BOUNDS_NS[..BOUND_COUNT]
        .iter()
        .map(|bound_ns| *bound_ns as f64 / 1e9)
}

/// Counts of durations. Written by any thread, without a lock.
pub(super) struct DurationHistogram([AtomicU64; BUCKET_COUNT]);

impl DurationHistogram {
    pub(super) fn new() -> DurationHistogram {
        DurationHistogram(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(super) fn observe(&self, duration_ns: u64) {
        if let Some(count) = self.0.get(bucket_of(duration_ns)) {
            // Relaxed: the counts order nothing.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds the counts to `sums`, by bucket.
    pub(super) fn add_to(&self, sums: &mut DurationCounts) {
        for (sum, count) in sums.0.iter_mut().zip(&self.0) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
}

/// What a histogram of durations held at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurationCounts([u64; BUCKET_COUNT]);

impl DurationCounts {
    /// Counts by bucket: as many as [`duration_bounds`], and one more for what is above.
    pub fn counts(&self) -> &[u64] {
        &self.0
    }
}

impl Default for DurationCounts {
    fn default() -> DurationCounts {
        DurationCounts([0; BUCKET_COUNT])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_is_not_below_it() {
        let expected = |duration_ns: u64| {
            BOUNDS_NS
                .iter()
                .position(|bound_ns| duration_ns <= *bound_ns)
                .unwrap()
        };
        let near = |ns: u64| [ns.saturating_sub(1), ns, ns.saturating_add(1)];
        let edges = BOUNDS_NS.iter().copied().chain((0..64).map(|bit| 1 << bit));
        for duration_ns in edges.chain([0, u64::MAX]).flat_map(near) {
            assert_eq!(
                bucket_of(duration_ns),
                expected(duration_ns),
                "{duration_ns}"
            );
        }
    }

    #[test]
    fn bounds_have_two_digits_and_are_a_tenth_apart() {
        let bounds: Vec<f64> = duration_bounds().collect();
        assert_eq!((bounds[0], bounds[BOUND_COUNT - 1]), (1e-5, 91.0));
        for pair in bounds.windows(2) {
            let step = pair[1] / pair[0];
            assert!((1.05..1.17).contains(&step), "{pair:?}");
        }
        for bound in bounds {
            let text = format!("{bound}").replace('.', "");
            let digits = text.trim_matches('0');
            assert!(digits.len() <= 2, "{bound}");
        }
    }

    #[test]
    fn counts_are_read_by_bucket() {
        let histogram = DurationHistogram::new();
        for duration_ns in [0, 10_000, 10_001, 91_000_000_000, 91_000_000_001] {
            histogram.observe(duration_ns);
        }
        let mut sums = DurationCounts::default();
        histogram.add_to(&mut sums);
        let counts = sums.counts();
        assert_eq!(counts[..3], [2, 1, 0]);
        assert_eq!(counts[BOUND_COUNT - 1..], [1, 1]);
    }
}
