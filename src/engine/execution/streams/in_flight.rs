//! The batches in flight of one instance, and when to look at them next. No clock of its own.
//!
//! The device works on one batch after the other, so only the first in flight is waited for. How
//! long one takes is learned: the core looks shortly before that time is over, then in small steps.

use conch_sync::SPIN_MAX_NS;

/// The shortest wait between two looks: a thread that is woken costs about as much.
const STEP_MIN_NS: u64 = 50_000;
/// The longest.
const STEP_MAX_NS: u64 = 5_000_000;

#[derive(Debug)]
pub(crate) struct InFlightBatches {
    count: usize,
    /// Since when the call that enqueued the first ran, if that had the device for itself.
    alone_since_ns: Option<u64>,
    /// When the device could begin the first.
    front_since_ns: u64,
    /// How long one takes on the device; 0: not known.
    service_ns: u64,
    /// Looks at the first that found it in flight.
    look_count: u32,
    /// When the spin for the first began.
    spun_ns: Option<u64>,
    spins: bool,
}

/// What ended at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedBatches {
    pub(crate) count: usize,
    /// How long a batch took that had the device for itself, from the begin of the call that
    /// enqueued it to its end: one after the other would follow each other so.
    pub(crate) alone_ns: Option<u64>,
}

impl InFlightBatches {
    /// `spins`: the core has a CPU that it may keep for some microseconds.
    pub(crate) fn new(spins: bool) -> InFlightBatches {
        InFlightBatches {
            count: 0,
            alone_since_ns: None,
            front_since_ns: 0,
            service_ns: 0,
            look_count: 0,
            spun_ns: None,
            spins,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A batch was enqueued, by a call that began at `call_ns`. The device may have begun as soon,
    /// but is not waited for before `now_ns`.
    pub(crate) fn begin(&mut self, call_ns: u64, now_ns: u64) {
        self.alone_since_ns = self.is_empty().then_some(call_ns);
        if self.is_empty() {
            self.watch_front(now_ns);
        }
        self.count += 1;
    }

    /// A look found `left` batches in flight. More than there were: as many as there were.
    pub(crate) fn look(&mut self, now_ns: u64, left: usize) -> EndedBatches {
        let count = self.count.saturating_sub(left);
        if count == 0 {
            self.look_count = self.look_count.saturating_add(1);
            return EndedBatches {
                count,
                alone_ns: None,
            };
        }
        let elapsed_ns = now_ns.saturating_sub(self.front_since_ns);
        self.learn(elapsed_ns / count as u64);
        self.count -= count;
        self.watch_front(now_ns);
        let alone_since_ns = self.alone_since_ns;
        EndedBatches {
            count,
            alone_ns: alone_since_ns.map(|since_ns| now_ns.saturating_sub(since_ns)),
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// When to look next; not later than now: at once. Never asked while nothing is in flight.
    pub(crate) fn next_look_ns(&mut self, now_ns: u64) -> u64 {
        let elapsed_ns = now_ns.saturating_sub(self.front_since_ns);
        // An eighth before it is expected: a batch that is over by then shows that they became
        // shorter.
        let first_ns = self.service_ns - self.service_ns / 8;
        if first_ns > STEP_MIN_NS && elapsed_ns < first_ns {
            return self.front_since_ns + first_ns;
        }
        if self.spins {
            let spun_ns = *self.spun_ns.get_or_insert(now_ns);
            if now_ns.saturating_sub(spun_ns) < SPIN_MAX_NS {
                return now_ns;
            }
        }
        let expected_ns = if elapsed_ns < 2 * self.service_ns {
            self.service_ns / 32
        } else {
            elapsed_ns / 8
        };
        now_ns + expected_ns.clamp(STEP_MIN_NS, STEP_MAX_NS)
    }

    /// Whether the device works on the first for longer than `timeout_ns`; 0: it may.
    pub(crate) fn is_overdue(&self, now_ns: u64, timeout_ns: u64) -> bool {
        timeout_ns > 0
            && !self.is_empty()
            && now_ns.saturating_sub(self.front_since_ns) >= timeout_ns
    }

    fn watch_front(&mut self, now_ns: u64) {
        self.front_since_ns = now_ns;
        self.look_count = 0;
        self.spun_ns = None;
    }

    fn learn(&mut self, sample_ns: u64) {
        // One that was over at the first look may have been over for long: what it took is less.
        let is_upper_bound = self.look_count == 0;
        self.service_ns = match (self.service_ns, is_upper_bound) {
            (0, _) => sample_ns,
            (known_ns, true) => known_ns.min(sample_ns),
            (known_ns, false) => (known_ns * 3 + sample_ns) / 4,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for a batch that takes `service_ns`, as a core does. Returns how often it looked, and
    /// how late it was.
    fn wait(in_flight: &mut InFlightBatches, now_ns: &mut u64, service_ns: u64) -> (u64, u64) {
        let end_ns = *now_ns + service_ns;
        in_flight.begin(*now_ns, *now_ns);
        for looks in 1.. {
            // A look takes a microsecond.
            *now_ns = in_flight.next_look_ns(*now_ns).max(*now_ns + 1_000);
            let left = usize::from(*now_ns < end_ns);
            if in_flight.look(*now_ns, left).count == 1 {
                return (looks, *now_ns - end_ns);
            }
        }
        unreachable!()
    }

    #[test]
    fn looks_are_few_and_in_time() {
        for (service_ns, looks_max, late_max) in [
            (5_000, 30, 6_000),
            (100_000, 30, 50_000),
            (1_000_000, 30, 60_000),
            (10_000_000, 30, 320_000),
            (1_000_000_000, 60, 5_000_000),
        ] {
            let (mut in_flight, mut now_ns) = (InFlightBatches::new(true), 1);
            for _ in 0..20 {
                wait(&mut in_flight, &mut now_ns, service_ns);
            }
            let (looks, late_ns) = wait(&mut in_flight, &mut now_ns, service_ns);
            assert!(looks <= looks_max, "{looks} looks at {service_ns} ns");
            assert!(late_ns <= late_max, "{late_ns} ns late at {service_ns} ns");
        }
    }

    #[test]
    fn a_long_batch_keeps_no_cpu_busy() {
        for spins in [false, true] {
            let (mut in_flight, mut now_ns) = (InFlightBatches::new(spins), 1);
            // Of which nothing is known: 20 us of looks, then waits that grow.
            let (looks, _) = wait(&mut in_flight, &mut now_ns, 10_000_000_000);
            assert!(looks < 2_200, "{looks} looks in 10 s");
        }
    }

    #[test]
    fn batches_that_become_shorter_or_longer_are_learned() {
        let (mut in_flight, mut now_ns) = (InFlightBatches::new(false), 1);
        for service_ns in [1_000_000, 100_000_000, 1_000_000] {
            for _ in 0..40 {
                wait(&mut in_flight, &mut now_ns, service_ns);
            }
            let (_, late_ns) = wait(&mut in_flight, &mut now_ns, service_ns);
            assert!(late_ns <= service_ns / 8, "{late_ns} ns late");
        }
    }

    #[test]
    fn only_the_first_is_overdue() {
        let mut in_flight = InFlightBatches::new(false);
        assert!(!in_flight.is_overdue(100, 5));
        in_flight.begin(9, 10);
        in_flight.begin(11, 12);
        assert!(!in_flight.is_overdue(14, 5));
        assert!(in_flight.is_overdue(15, 5));
        assert!(!in_flight.is_overdue(1_000, 0));
        let ended_now = in_flight.look(15, 1);
        assert_eq!((ended_now.count, ended_now.alone_ns), (1, None));
        // The device began the second now.
        assert!(!in_flight.is_overdue(19, 5));
        assert!(in_flight.is_overdue(20, 5));
        let ended_now = in_flight.look(22, 0);
        // The first was there when it began.
        assert_eq!((ended_now.count, ended_now.alone_ns), (1, None));
        // A backend that counts wrongly.
        assert_eq!(in_flight.look(23, 9).count, 0);
        assert!(in_flight.is_empty());
    }
    #[test]
    fn only_a_batch_that_no_other_met_was_alone() {
        let mut in_flight = InFlightBatches::new(false);
        let mut alone_of = |events: &[(u64, bool)]| {
            let mut alone_ns = Vec::new();
            for (now_ns, is_begin) in events {
                match is_begin {
                    // The call took 1 ns.
                    true => in_flight.begin(now_ns - 1, *now_ns),
                    false => {
                        let left = in_flight.count() - 1;
                        alone_ns.push(in_flight.look(*now_ns, left).alone_ns);
                    }
                }
            }
            assert!(in_flight.is_empty());
            alone_ns
        };
        assert_eq!(alone_of(&[(1, true), (9, false)]), [Some(9)]);
        let overlapping = [(10, true), (11, true), (20, false), (25, false)];
        assert_eq!(alone_of(&overlapping), [None, None]);
        let chained = [(30, true), (31, true), (40, false), (41, true)];
        let chained = [&chained[..], &[(50, false), (60, false)]].concat();
        assert_eq!(alone_of(&chained), [None; 3]);
        assert_eq!(alone_of(&[(70, true), (73, false)]), [Some(4)]);
    }
}
