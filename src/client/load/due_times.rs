//! The times at which requests are due, and whether they count.

use std::time::{Duration, Instant};

/// How the requests of an offered rate are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal distances, the connections in turn.
    Even,
    /// As those of many independent callers: distances are exponential. The same in every run.
    Poisson,
}

impl std::str::FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "even" => Ok(Self::Even),
            "poisson" => Ok(Self::Poisson),
            _ => Err(format!("unknown arrivals '{text}'")),
        }
    }
}

/// The load that all connections together load.
#[derive(Debug, Clone, Copy)]
pub struct OfferedLoad {
    /// Requests per second; 0 closes the loop.
    pub rate: f64,
    pub connection_count: usize,
    pub arrivals: Arrivals,
    pub late: LatePolicy,
}

/// What is done about requests that fall due before the one ahead of them is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatePolicy {
    /// They are sent late, and their latency counts from when they were due.
    Send,
    /// They are not sent, but for the last one, whose latency counts from when it is sent.
    Skip,
}

impl std::str::FromStr for LatePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "send" => Ok(Self::Send),
            "skip" => Ok(Self::Skip),
            _ => Err(format!("unknown way to treat late requests: '{text}'")),
        }
    }
}

/// When the next request is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueRequest {
    pub due: Instant,
    /// Requests before it that are not sent.
    pub skipped_count: u64,
}

/// The distances between the requests of one connection.
#[derive(Debug, Clone)]
enum Gaps {
    /// The loop is closed: a request is due when the one before is answered.
    None,
    Even(Duration),
    /// The mean, and the state of the generator.
    Exponential(Duration, u64),
}

impl Gaps {
    fn next(&mut self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Even(interval) => *interval,
            Self::Exponential(mean, state) => mean.mul_f64(-(1.0 - uniform(state)).ln()),
        }
    }
}

/// A number of [0, 1) by splitmix64.
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// When a run begins, what of it is measured, and how long its last answers may take.
#[derive(Debug, Clone, Copy)]
pub struct RunTimes {
    pub start: Instant,
    /// Requests that are due so early do not count.
    pub warm_up: Duration,
    pub measured: Duration,
    /// For answers, behind the time at which the last request was due.
    pub grace: Duration,
}

impl RunTimes {
    /// When the last request may be due.
    pub fn end(&self) -> Instant {
        self.start + self.warm_up + self.measured
    }

    /// When the client stops to wait for answers.
    pub fn give_up(&self) -> Instant {
        self.end() + self.grace
    }

    /// Whether a request that was due at `due` is part of the measurement.
    pub fn counts(&self, due: Instant) -> bool {
        due >= self.start + self.warm_up
    }
}

/// The due times of one connection's requests.
#[derive(Debug, Clone)]
pub struct DueTimes {
    due: Instant,
    gaps: Gaps,
    late: LatePolicy,
    times: RunTimes,
}

impl DueTimes {
    /// The part of connection `index` in what is offered.
    pub fn new(times: RunTimes, load: OfferedLoad, index: usize) -> Self {
        let count = load.connection_count.max(1) as f64;
        let mut gaps = if load.rate > 0.0 {
            let interval = Duration::from_secs_f64(count / load.rate);
            match load.arrivals {
                Arrivals::Even => Gaps::Even(interval),
                Arrivals::Poisson => Gaps::Exponential(interval, index as u64),
            }
        } else {
            Gaps::None
        };
        let first = match &mut gaps {
            Gaps::Even(interval) => interval.mul_f64(index as f64 / count),
            other => other.next(),
        };
        Self {
            due: times.start + first,
            gaps,
            late: load.late,
            times,
        }
    }

    /// The next request's turn at `now`; `None` when the run is over.
    pub fn next(&mut self, now: Instant) -> Option<DueRequest> {
        let mut due = if self.is_closed() { now } else { self.due };
        self.due += self.gaps.next();
        let mut skipped_count = 0;
        if self.late == LatePolicy::Skip && due < now {
            due = now;
            while self.due <= now {
                // Distances may be shorter than the clock tells.
                self.due += self.gaps.next().max(Duration::from_nanos(1));
                skipped_count += 1;
            }
        }
        (due < self.times.end()).then_some(DueRequest { due, skipped_count })
    }

    /// Whether each request waits for the answer to the one before.
    pub fn is_closed(&self) -> bool {
        matches!(self.gaps, Gaps::None)
    }

    pub fn times(&self) -> RunTimes {
        self.times
    }

    /// Whether requests are due at times that do not depend on answers.
    pub(super) fn has_own_times(&self) -> bool {
        !self.is_closed() && self.late == LatePolicy::Send
    }

    /// How many requests of the measurement are still to come, at their own times; none in a closed
    /// loop.
    pub fn count_due(&self) -> u64 {
        if self.is_closed() {
            return 0;
        }
        let mut rest = self.clone();
        let start = self.times.start;
        let turns = std::iter::from_fn(|| rest.next(start));
        turns.filter(|turn| self.times.counts(turn.due)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn load(rate: f64, connection_count: usize, arrivals: Arrivals) -> OfferedLoad {
        OfferedLoad {
            rate,
            connection_count,
            arrivals,
            late: LatePolicy::Send,
        }
    }

    fn run(start: Instant, warm_up: Duration, measured: Duration) -> RunTimes {
        RunTimes {
            start,
            warm_up,
            measured,
            grace: SECOND,
        }
    }

    /// Times after the start, of all connections, and whether they count; one second of warm-up.
    fn times(load: OfferedLoad, measured: Duration) -> Vec<(Duration, bool)> {
        let start = Instant::now();
        let run = run(start, SECOND, measured);
        let mut due = Vec::new();
        for index in 0..load.connection_count {
            let mut times = DueTimes::new(run, load, index);
            let (before, count) = (due.len(), times.count_due());
            while let Some(turn) = times.next(start) {
                assert_eq!(turn.skipped_count, 0);
                due.push((turn.due - start, run.counts(turn.due)));
            }
            let counted = due.iter().skip(before).filter(|(_, counts)| *counts);
            assert_eq!(counted.count() as u64, count);
        }
        due.sort();
        due
    }

    #[test]
    fn connections_take_turns_and_stop_at_the_end() {
        let due = times(load(100.0, 4, Arrivals::Even), SECOND);
        assert_eq!(due.len(), 200);
        assert_eq!(due.iter().filter(|(_, counts)| *counts).count(), 100);
        for (index, (time, _)) in due.iter().enumerate() {
            assert_eq!(time.as_millis(), index as u128 * 10);
        }
    }

    #[test]
    fn independent_callers_come_at_the_rate_and_by_chance() {
        let due = times(load(1000.0, 8, Arrivals::Poisson), 99 * SECOND);
        // A hundred seconds at 1,000: the deviation is the root, 316.
        assert!((98_500..101_500).contains(&due.len()), "{}", due.len());
        assert_eq!(due, times(load(1000.0, 8, Arrivals::Poisson), 99 * SECOND));
        // Per slice of 10 ms the variance is the mean, 10; of even arrivals it would be 0.
        let mut slices = vec![0.0_f64; 10_000];
        for (time, _) in &due {
            slices[(time.as_millis() / 10) as usize] += 1.0;
        }
        let mean = slices.iter().sum::<f64>() / slices.len() as f64;
        let squares = slices.iter().map(|count| (count - mean).powi(2));
        let variance = squares.sum::<f64>() / slices.len() as f64;
        assert!((0.9..1.1).contains(&(variance / mean)), "{variance}");
    }

    #[test]
    fn a_closed_loop_is_always_due() {
        let start = Instant::now();
        let run = run(start, Duration::ZERO, SECOND);
        let mut times = DueTimes::new(run, load(0.0, 1, Arrivals::Even), 0);
        assert_eq!(times.next(start).map(|turn| turn.due), Some(start));
        assert_eq!(times.next(start + 2 * SECOND), None);
    }

    #[test]
    fn who_is_late_sends_all_or_one() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        // One request per 100 ms; those of 0, 350, 350, 350 and 600 ms are asked for.
        for (late, expected) in [
            (
                LatePolicy::Send,
                [(0, 0), (100, 0), (200, 0), (300, 0), (400, 0)],
            ),
            (
                LatePolicy::Skip,
                [(0, 0), (350, 2), (400, 0), (500, 0), (600, 0)],
            ),
        ] {
            let load = OfferedLoad {
                late,
                ..load(10.0, 1, Arrivals::Even)
            };
            let mut times = DueTimes::new(run(start, Duration::ZERO, SECOND), load, 0);
            let turns = [0, 350, 350, 350, 600].map(|now| times.next(at(now)));
            let expected = expected.map(|(due, skipped_count)| DueRequest {
                due: at(due),
                skipped_count,
            });
            assert_eq!(turns, expected.map(Some), "{late:?}");
        }
    }
}
