//! The times at which requests are due, and whether they count.

use std::time::{Duration, Instant};

/// The due times of one connection's requests.
#[derive(Debug, Clone)]
pub struct Schedule {
    first: Instant,
    /// Zero in a closed loop.
    interval: Duration,
    measured_from: Instant,
    end: Instant,
    sent_count: u32,
}

impl Schedule {
    /// The part of connection `index` out of `connection_count` in an offered `rate` per second; 0
    /// closes the loop.
    ///
    /// The connections take turns, so that the whole offered load is evenly spaced.
    pub fn new(
        start: Instant,
        warm_up: Duration,
        measured: Duration,
        rate: f64,
        connection_count: usize,
        index: usize,
    ) -> Self {
        let interval = if rate > 0.0 {
            Duration::from_secs_f64(connection_count as f64 / rate)
        } else {
            Duration::ZERO
        };
        Self {
            first: start + interval.mul_f64(index as f64 / connection_count.max(1) as f64),
            interval,
            measured_from: start + warm_up,
            end: start + warm_up + measured,
            sent_count: 0,
        }
    }

    /// The time at which the next request is due at `now`; `None` when the run is over.
    pub fn next(&mut self, now: Instant) -> Option<Instant> {
        let due = if self.interval.is_zero() {
            now
        } else {
            self.first + self.interval * self.sent_count
        };
        self.sent_count += 1;
        (due < self.end).then_some(due)
    }

    /// Whether each request waits for the answer to the one before.
    pub fn is_closed(&self) -> bool {
        self.interval.is_zero()
    }

    /// Whether a request that was due at `due` is part of the measurement.
    pub fn counts(&self, due: Instant) -> bool {
        due >= self.measured_from
    }

    /// When the client stops to wait for answers: ten seconds after the last request was due.
    pub fn give_up(&self) -> Instant {
        self.end + Duration::from_secs(10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns_and_stop_at_the_end() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut due = Vec::new();
        for index in 0..4 {
            let mut schedule = Schedule::new(start, second, second, 100.0, 4, index);
            while let Some(time) = schedule.next(start) {
                due.push((time - start, schedule.counts(time)));
            }
        }
        due.sort();
        assert_eq!(due.len(), 200);
        assert_eq!(due.iter().filter(|(_, counts)| *counts).count(), 100);
        for (index, (time, _)) in due.iter().enumerate() {
            assert_eq!(time.as_millis(), index as u128 * 10);
        }
    }

    #[test]
    fn a_closed_loop_is_always_due() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, Duration::ZERO, Duration::from_secs(1), 0.0, 1, 0);
        assert_eq!(schedule.next(start), Some(start));
        assert_eq!(schedule.next(start + Duration::from_secs(2)), None);
    }
}
