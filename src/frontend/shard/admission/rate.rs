//! How fast a limit lets requests in.

/// Shorter stretches say little: room comes back batch by batch.
const STRETCH_NS: u64 = 20_000_000;
const STRETCH_COUNT: u64 = 8;

/// Measured over stretches of time in which somebody waited.
#[derive(Debug)]
pub(super) struct AdmissionRate {
    stretch_begin_ns: u64,
    stretch_count: u64,
    /// Of the last stretch: nanoseconds per request.
    interval_ns: Option<u64>,
}

impl AdmissionRate {
    pub(super) fn begin(now_ns: u64) -> AdmissionRate {
        AdmissionRate {
            stretch_begin_ns: now_ns,
            stretch_count: 0,
            interval_ns: None,
        }
    }

    /// A request was let in.
    pub(super) fn note(&mut self, now_ns: u64) {
        self.stretch_count += 1;
        let elapsed_ns = now_ns.saturating_sub(self.stretch_begin_ns);
        if elapsed_ns >= STRETCH_NS && self.stretch_count >= STRETCH_COUNT {
            *self = AdmissionRate {
                interval_ns: Some(elapsed_ns / self.stretch_count),
                ..AdmissionRate::begin(now_ns)
            };
        }
    }

    /// How long `count` requests take to be let in; none if that is not known.
    pub(super) fn expect_ns(&self, count: usize) -> Option<u64> {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        Some(self.interval_ns?.saturating_mul(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_that_of_a_whole_stretch() {
        let mut rate = AdmissionRate::begin(0);
        // Four batches of 64, one every 10 ms. The first request of the second and that of the
        // fourth end a stretch: 65 requests in 20 ms, and 128.
        for (batch, expected_ns) in [
            (1, None),
            (2, Some(20_000_000 / 65 * 100)),
            (3, Some(20_000_000 / 65 * 100)),
            (4, Some(20_000_000 / 128 * 100)),
        ] {
            for _ in 0..64 {
                rate.note(batch * 10_000_000);
            }
            assert_eq!(rate.expect_ns(100), expected_ns, "{batch}");
        }
    }

    #[test]
    fn few_requests_say_nothing() {
        let mut rate = AdmissionRate::begin(0);
        for number in 1..STRETCH_COUNT {
            rate.note(number * 1_000_000_000);
            assert_eq!(rate.expect_ns(1), None);
        }
        rate.note(8_000_000_000);
        assert_eq!(rate.expect_ns(3), Some(3_000_000_000));
        assert_eq!(rate.expect_ns(usize::MAX), Some(u64::MAX));
    }
}
