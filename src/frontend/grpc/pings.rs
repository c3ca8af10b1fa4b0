//! The client's pings: h2 answers pings and tells nobody.
//!
//! The rule is that of gRPC's C core. A ping that comes too soon after the one before is bad; what
//! is sent to the client meanwhile (headers, data, window updates) makes up for all bad ones, since
//! clients measure their bandwidth by pings. Without an open call pings may come every two hours,
//! unless they are permitted without calls. Who sends more bad pings than are borne is told so and
//! left.

use std::time::Duration;

use crate::options::GrpcConnections;

/// How far apart pings must be while no call is open; as upstream's library has it.
const INTERVAL_WITHOUT_CALLS: Duration = Duration::from_secs(2 * 60 * 60);

/// What is borne of one client's pings.
#[derive(Debug)]
pub(super) struct PingStrikes {
    interval_min: Duration,
    count_max: u32,
    are_welcome_without_calls: bool,
    /// Monotonic; none before the first, and after an excuse.
    last_ns: Option<u64>,
    count: u32,
}

impl PingStrikes {
    pub(super) fn new(options: &GrpcConnections) -> PingStrikes {
        PingStrikes {
            interval_min: options.ping_interval_min,
            count_max: options.ping_strikes_max,
            are_welcome_without_calls: options.pings_without_calls,
            last_ns: None,
            count: 0,
        }
    }

    /// Something was sent to the client.
    pub(super) fn excuse(&mut self) {
        self.last_ns = None;
        self.count = 0;
    }

    /// A ping came. Says whether it is one too many.
    pub(super) fn note_ping(&mut self, now_ns: u64, has_calls: bool) -> bool {
        let interval = if has_calls || self.are_welcome_without_calls {
            self.interval_min
        } else {
            INTERVAL_WITHOUT_CALLS
        };
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let is_bad = self
            .last_ns
            .replace(now_ns)
            .is_some_and(|last_ns| now_ns < last_ns.saturating_add(interval_ns));
        if !is_bad {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.count_max != 0 && self.count > self.count_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strikes_are_counted_as_upstream_counts_them() {
        const SECOND: u64 = 1_000_000_000;
        let options = GrpcConnections::default();
        let tolerated = |options: &GrpcConnections, has_calls, step_s: u64| {
            let mut strikes = PingStrikes::new(options);
            (0..50).find(|index| strikes.note_ping(index * step_s * SECOND, has_calls))
        };
        // The first is free, two are borne.
        assert_eq!(tolerated(&options, false, 1), Some(3));
        assert_eq!(tolerated(&options, true, 1), Some(3));
        assert_eq!(tolerated(&options, true, 300), None);
        assert_eq!(tolerated(&options, true, 299), Some(3));
        assert_eq!(
            tolerated(&options, false, 300),
            Some(3),
            "without calls every two hours"
        );
        assert_eq!(tolerated(&options, false, 7200), None);
        let permitted = GrpcConnections {
            pings_without_calls: true,
            ..options.clone()
        };
        assert_eq!(tolerated(&permitted, false, 300), None);
        let with_timeout = GrpcConnections {
            ping_strikes_max: 0,
            ..options.clone()
        };
        assert_eq!(tolerated(&with_timeout, false, 0), None);
        let mut strikes = PingStrikes::new(&options);
        for index in 0..50 {
            assert!(!strikes.note_ping(index, true));
            if index % 3 == 2 {
                strikes.excuse();
            }
        }
    }
}
