//! Detects shards that do not get their CPU, and widens their affinity.
//!
//! The system counts for each thread how long it was runnable and had to wait
//! (`/proc/self/task/<id>/schedstat`). A shard that waits for a good part of the time is starving:
//! something else runs on its CPU, be it another server or a model of this one. With
//! `--shard-affinity=auto` it may then run on all of the process's CPUs, and returns to its own
//! after a calm while.
//!
//! This is the state machine alone; the watchdog feeds it and does what it says.

use std::time::Duration;

use crate::ShardAffinity;

/// A shard starves if it waits for this part of the time. On a CPU of its own, or beside models
/// that give way to it, it waits for less than a hundredth; beside one busy stranger for about half
/// of the time in which it wants to run.
const STARVING_PART: u64 = 10;
/// The calm that is asked for doubles each time it was not enough, up to so many times the first:
/// who shares CPUs with a neighbour for good is not thrown back onto its neighbour's CPU once per
/// minute.
const CALM_FACTOR_MAX: u32 = 16;

/// What the system says of a thread at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadSample {
    pub(crate) at_ns: u64,
    /// On a CPU, since the thread began.
    pub(crate) ran_ns: u64,
    /// Runnable, waiting for a CPU, since the thread began. Of a wait that lasts only after it is
    /// over.
    pub(crate) waited_ns: u64,
}

impl ThreadSample {
    /// Reads `schedstat`: nanoseconds on a CPU, nanoseconds waiting for one, and turns.
    pub(crate) fn parse(at_ns: u64, text: &str) -> Option<ThreadSample> {
        let mut figures = text.split_ascii_whitespace().map(str::parse);
        let (ran, waited) = (figures.next()?, figures.next()?);
        Some(ThreadSample {
            at_ns,
            ran_ns: ran.ok()?,
            waited_ns: waited.ok()?,
        })
    }
}

/// Where a shard runs, and since when it has not been kept from it.
///
/// ```text
///   home ──starving──► wide ──calm for long enough──► home
/// ```
#[derive(Debug)]
pub(crate) struct StarvationPolicy {
    affinity: ShardAffinity,
    first_calm: Duration,
    last: Option<ThreadSample>,
    is_wide: bool,
    /// How often `first_calm` it has to be calm.
    calm_factor: u32,
    calm_since_ns: u64,
    /// When it came home; 0: it never left.
    home_since_ns: u64,
}

/// What a sample shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StarvationFinding {
    pub(crate) is_starving: bool,
    pub(crate) waited_ns: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) step: AffinityStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AffinityStep {
    Stay,
    /// Let it run on all CPUs.
    Widen,
    /// Let it run on its own CPU only.
    Narrow,
}

impl StarvationPolicy {
    pub(crate) fn new(affinity: ShardAffinity, first_calm: Duration) -> StarvationPolicy {
        StarvationPolicy {
            affinity,
            first_calm,
            last: None,
            is_wide: affinity == ShardAffinity::Set,
            calm_factor: 1,
            calm_since_ns: 0,
            home_since_ns: 0,
        }
    }

    /// Takes in a sample; none for the first, which has nothing to be compared with.
    /// `is_unanswered`: the shard was woken before the last sample, and has not shown since that it
    /// turns.
    pub(crate) fn observe(
        &mut self,
        sample: ThreadSample,
        is_unanswered: bool,
    ) -> Option<StarvationFinding> {
        let last = self.last.replace(sample)?;
        let elapsed_ns = sample.at_ns.saturating_sub(last.at_ns);
        let mut waited_ns = sample.waited_ns.saturating_sub(last.waited_ns);
        if is_unanswered && waited_ns == 0 && sample.ran_ns == last.ran_ns {
            // A wait that is not over yet is not in the figures.
            waited_ns = elapsed_ns;
        }
        let waited_ns = waited_ns.min(elapsed_ns);
        let is_starving = elapsed_ns > 0 && waited_ns >= elapsed_ns / STARVING_PART;
        Some(StarvationFinding {
            is_starving,
            waited_ns,
            elapsed_ns,
            step: self.step(sample.at_ns, is_starving),
        })
    }

    fn step(&mut self, now_ns: u64, is_starving: bool) -> AffinityStep {
        if is_starving {
            self.calm_since_ns = now_ns;
        }
        if self.affinity != ShardAffinity::Auto {
            return AffinityStep::Stay;
        }
        let calm_ns = u64::try_from(self.first_calm.as_nanos())
            .unwrap_or(u64::MAX)
            .saturating_mul(self.calm_factor.into());
        if is_starving && !self.is_wide {
            let is_soon =
                self.home_since_ns != 0 && now_ns.saturating_sub(self.home_since_ns) < calm_ns;
            self.calm_factor = match is_soon {
                true => (self.calm_factor * 2).min(CALM_FACTOR_MAX),
                false => 1,
            };
            self.is_wide = true;
            return AffinityStep::Widen;
        }
        if self.is_wide && now_ns.saturating_sub(self.calm_since_ns) >= calm_ns {
            self.is_wide = false;
            self.home_since_ns = now_ns;
            return AffinityStep::Narrow;
        }
        AffinityStep::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const CALM: Duration = Duration::from_secs(60);

    /// A shard that is looked at ten times per second.
    struct Shard {
        state: StarvationPolicy,
        sample: ThreadSample,
    }

    impl Shard {
        fn new(affinity: ShardAffinity) -> Shard {
            let sample = ThreadSample {
                at_ns: 3_600_000 * MS,
                ran_ns: 0,
                waited_ns: 0,
            };
            let mut state = StarvationPolicy::new(affinity, CALM);
            assert_eq!(state.observe(sample, true), None);
            Shard { state, sample }
        }

        /// A tenth of a second passes, in which it runs and waits for so many milliseconds.
        fn pass(&mut self, ran_ms: u64, waited_ms: u64) -> StarvationFinding {
            self.sample.at_ns += 100 * MS;
            self.sample.ran_ns += ran_ms * MS;
            self.sample.waited_ns += waited_ms * MS;
            self.state.observe(self.sample, false).unwrap()
        }

        /// How many tenths of a second it stays wide, without waiting.
        fn calm(&mut self) -> u64 {
            let count = (1..).find(|_| self.pass(20, 0).step == AffinityStep::Narrow);
            count.unwrap()
        }
    }

    /// Recorded on two CPUs that some ten busy processes shared: when, `schedstat` of a shard, and
    /// whether it starved. It has nothing to do, then serves two clients who ask for its health,
    /// then has nothing to do again.
    const RECORDED: [(u64, &str, bool); 10] = [
        (3_012_656_099_111, "1608722 89394891 5\n", false),
        (3_012_800_112_442, "1608722 89394891 5\n", false),
        (3_013_468_165_729, "1608722 89394891 5\n", false),
        (3_013_569_692_791, "3537883 114605106 13\n", true),
        (3_013_684_219_339, "4355118 210149307 16\n", true),
        (3_013_796_580_796, "20727144 281622217 181\n", true),
        (3_014_896_925_000, "152392600 841512302 1760\n", true),
        (3_015_108_090_445, "170846268 870503291 2030\n", true),
        (3_015_335_279_145, "171498335 886633336 2034\n", false),
        (3_015_436_119_703, "171498335 886633336 2034\n", false),
    ];

    #[test]
    fn recorded_figures() {
        let mut state = StarvationPolicy::new(ShardAffinity::Auto, CALM);
        let mut steps = Vec::new();
        for (at_ns, text, expected) in RECORDED {
            let sample = ThreadSample::parse(at_ns, text).unwrap();
            if let Some(finding) = state.observe(sample, false) {
                assert_eq!(finding.is_starving, expected, "{text:?}");
                steps.push(finding.step);
            }
        }
        use AffinityStep::{Stay, Widen};
        assert_eq!(steps[..4], [Stay, Stay, Widen, Stay]);
        assert!(steps[4..].iter().all(|step| *step == Stay));
        for bad in ["", "1", "x 1 1", "1 x 1", "-1 2 3"] {
            assert_eq!(ThreadSample::parse(0, bad), None, "{bad:?}");
        }
    }

    #[test]
    fn at_the_edge() {
        for (waited_ms, expected) in [(0, false), (9, false), (10, true), (100, true), (450, true)]
        {
            let mut shard = Shard::new(ShardAffinity::Auto);
            let finding = shard.pass(5, waited_ms);
            assert_eq!(finding.is_starving, expected, "{waited_ms}");
            assert_eq!(finding.step == AffinityStep::Widen, expected);
            assert_eq!(finding.waited_ns, (waited_ms * MS).min(100 * MS));
        }
    }

    #[test]
    fn widens_at_once_and_returns_after_a_calm_minute() {
        let mut shard = Shard::new(ShardAffinity::Auto);
        assert_eq!(shard.pass(50, 0).step, AffinityStep::Stay);
        assert_eq!(shard.pass(50, 40).step, AffinityStep::Widen);
        for _ in 0..599 {
            assert_eq!(shard.pass(50, 9).step, AffinityStep::Stay);
        }
        // The minute begins anew.
        assert_eq!(shard.pass(50, 10).step, AffinityStep::Stay);
        assert_eq!(shard.calm(), 600);
        assert_eq!(shard.pass(50, 0).step, AffinityStep::Stay);
    }

    #[test]
    fn a_lasting_neighbour_is_met_ever_more_rarely() {
        let mut shard = Shard::new(ShardAffinity::Auto);
        let mut calms = Vec::new();
        for _ in 0..7 {
            assert_eq!(shard.pass(1, 90).step, AffinityStep::Widen);
            calms.push(shard.calm() / 600);
        }
        assert_eq!(calms, [1, 2, 4, 8, 16, 16, 16]);
        // At home for longer than that: a new neighbour.
        for _ in 0..16 * 600 {
            assert_eq!(shard.pass(1, 0).step, AffinityStep::Stay);
        }
        assert_eq!(shard.pass(1, 90).step, AffinityStep::Widen);
        assert_eq!(shard.calm(), 600);
    }

    #[test]
    fn a_wait_that_lasts_is_seen() {
        let mut shard = Shard::new(ShardAffinity::Auto);
        shard.sample.at_ns += 100 * MS;
        let mut idle = StarvationPolicy::new(ShardAffinity::Auto, CALM);
        idle.last = shard.state.last;
        assert!(
            !idle.observe(shard.sample, false).unwrap().is_starving,
            "it sleeps"
        );
        let finding = shard.state.observe(shard.sample, true).unwrap();
        assert!(finding.is_starving && finding.waited_ns == 100 * MS);
        // It ran, so it is busy, not kept away.
        shard.sample.at_ns += 100 * MS;
        shard.sample.ran_ns += 100 * MS;
        assert!(!shard.state.observe(shard.sample, true).unwrap().is_starving);
    }

    #[test]
    fn other_affinities_stay_as_they_are() {
        for affinity in [ShardAffinity::Pinned, ShardAffinity::Set] {
            let mut shard = Shard::new(affinity);
            let finding = shard.pass(1, 90);
            assert!(finding.is_starving && finding.step == AffinityStep::Stay);
            for _ in 0..1_000 {
                assert_eq!(shard.pass(1, 0).step, AffinityStep::Stay);
            }
        }
    }
}
