//! Which rate comes next.

use crate::options::RateLadder;

/// Which rate comes next.
pub(super) struct Ladder {
    rates: RateLadder,
    index: usize,
    /// The largest that the server kept up with, and the smallest that was too much.
    good: Option<f64>,
    bad: Option<f64>,
    between_count: usize,
}

impl Ladder {
    pub(super) fn new(rates: RateLadder) -> Ladder {
        Ladder {
            rates,
            index: 0,
            good: None,
            bad: None,
            between_count: 0,
        }
    }

    /// The next rate; none if all is known.
    pub(super) fn next(&mut self) -> Option<f64> {
        let first = match &self.rates {
            RateLadder::Given(rates) => {
                self.index += 1;
                return rates.get(self.index - 1).copied();
            }
            RateLadder::Doubling { first } => *first,
        };
        match (self.good, self.bad) {
            (None, None) => Some(first),
            (Some(good), None) => Some(good * 2.0).filter(|rate| *rate <= RATE_MAX),
            (Some(good), Some(bad)) if self.between_count < BETWEEN_MAX => {
                self.between_count += 1;
                Some((good * bad).sqrt().round()).filter(|rate| good < *rate && *rate < bad)
            }
            _ => None,
        }
    }

    /// Takes note of what became of a rate.
    pub(super) fn note(&mut self, rate: f64, is_good: bool) {
        match is_good {
            true => self.good = Some(self.good.unwrap_or(rate).max(rate)),
            false => self.bad = Some(self.bad.unwrap_or(rate).min(rate)),
        }
    }
}

/// No client here offers as much.
const RATE_MAX: f64 = 2_000_000.0;
/// Rates between the last that was good and the first that was too much: the knee to a fifth.
const BETWEEN_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates for a server that keeps up with as many.
    fn climbed(rates: RateLadder, capacity: f64) -> Vec<f64> {
        let mut ladder = Ladder::new(rates);
        let mut climbed = Vec::new();
        while let Some(rate) = ladder.next() {
            climbed.push(rate);
            assert!(climbed.len() < 100);
            ladder.note(rate, rate <= capacity);
        }
        climbed
    }

    #[test]
    fn rates_double_until_they_are_too_much() {
        let doubling = RateLadder::Doubling { first: 100.0 };
        for (capacity, expected) in [
            (500.0, &[100.0, 200.0, 400.0, 800.0, 566.0, 476.0][..]),
            (700.0, &[100.0, 200.0, 400.0, 800.0, 566.0, 673.0]),
            (50.0, &[100.0]),
        ] {
            assert_eq!(climbed(doubling.clone(), capacity), expected);
        }
        assert_eq!(climbed(doubling, f64::MAX).last(), Some(&1_638_400.0));
        let small = RateLadder::Doubling { first: 1.0 };
        assert_eq!(climbed(small, 1.0), [1.0, 2.0]);
        let given = RateLadder::Given(vec![5.0, 1.0]);
        assert_eq!(climbed(given, 0.0), [5.0, 1.0]);
    }
}
