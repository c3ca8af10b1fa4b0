//! The client's pings, of which there may be too many.
//!
//! The rule is that of gRPC's C core. A ping that comes too soon after the one before is bad; what
//! is sent to the client meanwhile (headers, data, window updates) makes up for all bad ones, since
//! clients measure their bandwidth by pings. Without an open call pings may come every two hours,
//! unless they are permitted without calls. Who sends more bad pings than are borne is told so and
//! left.

use std::time::Duration;

/// How far apart pings must be while no call is open; as upstream's library has it.
const INTERVAL_WITHOUT_CALLS: Duration = Duration::from_secs(2 * 60 * 60);

/// Which pings of a client are bad, and how many of those are borne.
#[derive(Clone, Copy, Debug)]
pub struct PingPolicy {
    /// Pings that come sooner after one another, while the client is sent nothing, are bad.
    pub interval_min: Duration,
    /// Bad pings that are borne; 0: any number.
    pub strikes_max: u32,
    /// The interval holds also while no call is open, which else is two hours.
    pub are_welcome_without_calls: bool,
}

/// What is borne of one client's pings.
#[derive(Debug)]
pub(crate) struct PingStrikes {
    policy: PingPolicy,
    /// Monotonic; 0 before the first, and after an excuse.
    last_ns: u64,
    count: u32,
}

impl PingStrikes {
    pub(crate) fn new(policy: PingPolicy) -> PingStrikes {
        PingStrikes {
            policy,
            last_ns: 0,
            count: 0,
        }
    }

    /// Something was sent to the client.
    pub(crate) fn excuse(&mut self) {
        self.last_ns = 0;
        self.count = 0;
    }

    /// A ping came. Says whether it is one too many.
    pub(crate) fn note_ping(&mut self, now_ns: u64, has_calls: bool) -> bool {
        let interval = if has_calls || self.policy.are_welcome_without_calls {
            self.policy.interval_min
        } else {
            INTERVAL_WITHOUT_CALLS
        };
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let last_ns = std::mem::replace(&mut self.last_ns, now_ns);
        let is_bad = last_ns != 0 && now_ns < last_ns.saturating_add(interval_ns);
        if !is_bad {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.policy.strikes_max != 0 && self.count > self.policy.strikes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strikes_are_counted_as_upstream_counts_them() {
        const SECOND: u64 = 1_000_000_000;
        let policy = PingPolicy {
            interval_min: Duration::from_secs(300),
            strikes_max: 2,
            are_welcome_without_calls: false,
        };
        let tolerated = |policy: PingPolicy, has_calls, step_s: u64| {
            let mut strikes = PingStrikes::new(policy);
            (0..50).find(|index| strikes.note_ping((1 + index * step_s) * SECOND, has_calls))
        };
        // The first is free, two are borne.
        assert_eq!(tolerated(policy, false, 1), Some(3));
        assert_eq!(tolerated(policy, true, 1), Some(3));
        assert_eq!(tolerated(policy, true, 300), None);
        assert_eq!(tolerated(policy, true, 299), Some(3));
        assert_eq!(
            tolerated(policy, false, 300),
            Some(3),
            "without calls every two hours"
        );
        assert_eq!(tolerated(policy, false, 7200), None);
        let permitted = PingPolicy {
            are_welcome_without_calls: true,
            ..policy
        };
        assert_eq!(tolerated(permitted, false, 300), None);
        let without_limit = PingPolicy {
            strikes_max: 0,
            ..policy
        };
        assert_eq!(tolerated(without_limit, false, 0), None);
        let mut strikes = PingStrikes::new(policy);
        for index in 0..50 {
            assert!(!strikes.note_ping(1 + index, true));
            if index % 3 == 2 {
                strikes.excuse();
            }
        }
    }
}
