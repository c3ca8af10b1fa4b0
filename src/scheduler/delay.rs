//! Tests of batching want requests to lie side by side before the first batch forms: the
//! environment may say how many.

/// The environment variable that delays the first batch until so many requests wait.
pub const REQUESTS_VARIABLE: &str = "TRITONSERVER_DELAY_SCHEDULER";
/// The one that counts requests of sequences that wait for a slot.
pub const BACKLOG_VARIABLE: &str = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER";

/// What must wait in a scheduler before it forms its first batch; from then on it means nothing. As
/// upstream's: the dynamic batcher, and the batcher of each instance under the oldest strategy,
/// count what they hold; the direct strategy counts what waits in the slots of all instances, and
/// what waits for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerDelay {
    pub request_count: usize,
    /// Requests of sequences that wait for a slot: only with a `request_count`, as upstream.
    pub backlog_count: usize,
}

impl SchedulerDelay {
    /// What the values of [`REQUESTS_VARIABLE`] and [`BACKLOG_VARIABLE`] ask for, if anything.
    pub fn parse(requests: &str, backlog: &str) -> Option<SchedulerDelay> {
        // What is no number is none, as for upstream.
        let count = |text: &str| text.trim().parse().unwrap_or(0);
        let hold = SchedulerDelay {
            request_count: count(requests),
            backlog_count: count(backlog),
        };
        (hold.request_count > 0).then_some(hold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_nothing_else() {
        let hold = |request_count, backlog_count| {
            Some(SchedulerDelay {
                request_count,
                backlog_count,
            })
        };
        for (requests, backlog, expected) in [
            ("", "", None),
            ("0", "3", None),
            ("x", "3", None),
            ("-1", "", None),
            ("4", "", hold(4, 0)),
            (" 4", "2", hold(4, 2)),
            ("4", "many", hold(4, 0)),
        ] {
            assert_eq!(
                SchedulerDelay::parse(requests, backlog),
                expected,
                "{requests:?} {backlog:?}"
            );
        }
    }
}
