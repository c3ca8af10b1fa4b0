//! Pressure on what all connections share: bytes and places. The watchdog looks at it ten times per
//! second and leaves orders, which the shards carry out when its heartbeat arrives.
//!
//! Bytes: while more are used than should be, connections are dropped that hold bytes and have not
//! moved for a while, from those that hold most on. A shard knows its own alone, so it tells what
//! the largest of them holds, and in the next round drops those that hold at least half of what the
//! largest of all shards does. Places: near the connections' limit those that have been idle for
//! longest are asked to end, by each shard in proportion to what it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use conch_log::LogLimiter;
use conch_memory::Budget;

/// Between two looks at all connections.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Idle connections are asked to end while more than all but an eighth of the places are taken.
const SPARE_PART: usize = 8;

/// What one round is to bring. Relaxed: figures that guard nothing.
#[derive(Debug)]
pub(crate) struct PressureOrders {
    budget: Arc<Budget>,
    connections_max: usize,
    stalled_looks_max: u32,
    /// Bytes still to be freed in this round.
    excess_bytes: AtomicU64,
    /// What the largest stalled connection holds that was seen in this round.
    largest_bytes: AtomicU64,
    /// Who holds less is not dropped in this round.
    drop_from_bytes: AtomicU64,
    /// Idle connections to be asked to end per [`PARTS`] open ones.
    idle_parts: AtomicUsize,
    limiter: LogLimiter,
}

const PARTS: usize = 1 << 10;

impl PressureOrders {
    /// `stall_timeout` of zero: no connection is dropped for what it holds.
    pub(crate) fn new(
        budget: &Arc<Budget>,
        connections_max: usize,
        stall_timeout: Duration,
    ) -> Arc<PressureOrders> {
        let looks = stall_timeout.as_millis().div_ceil(LOOK_PERIOD.as_millis());
        let stalled_looks_max = match u32::try_from(looks) {
            Ok(looks) if looks > 0 => looks,
            _ => u32::MAX,
        };
        Arc::new(PressureOrders {
            budget: Arc::clone(budget),
            connections_max,
            stalled_looks_max,
            excess_bytes: AtomicU64::new(0),
            largest_bytes: AtomicU64::new(0),
            drop_from_bytes: AtomicU64::new(u64::MAX),
            idle_parts: AtomicUsize::new(0),
            limiter: LogLimiter::default(),
        })
    }

    /// Begins a round, of a server with so many connections. The watchdog's.
    pub(crate) fn begin_round(&self, connection_count: usize) {
        let largest_bytes = self.largest_bytes.swap(0, Ordering::Relaxed);
        let drop_from_bytes = match largest_bytes {
            0 => u64::MAX,
            bytes => bytes / 2,
        };
        self.drop_from_bytes
            .store(drop_from_bytes, Ordering::Relaxed);
        let excess_bytes = self.budget.excess_bytes();
        self.excess_bytes.store(excess_bytes, Ordering::Relaxed);
        let wanted_count = self.connections_max - self.connections_max / SPARE_PART;
        let excess_count = connection_count.saturating_sub(wanted_count);
        let parts = (excess_count * PARTS).div_ceil(connection_count.max(1));
        self.idle_parts.store(parts, Ordering::Relaxed);
    }

    pub(crate) fn stalled_looks_max(&self) -> u32 {
        self.stalled_looks_max
    }

    /// How many idle ones of `count` connections are to be asked to end.
    pub(crate) fn begin_idle(&self, count: usize) -> usize {
        (self.idle_parts.load(Ordering::Relaxed) * count).div_ceil(PARTS)
    }

    /// A connection has stalled that holds so much. Says whether it may be dropped in this round.
    pub(crate) fn note_stalled(&self, held_bytes: u64) -> bool {
        self.largest_bytes.fetch_max(held_bytes, Ordering::Relaxed);
        held_bytes >= self.drop_from_bytes.load(Ordering::Relaxed)
            && self.excess_bytes.load(Ordering::Relaxed) > 0
    }

    /// Whether a stalled connection that holds so much is to be dropped: then it counts as freed.
    pub(crate) fn take_stalled(&self, held_bytes: u64, now_ns: u64) -> bool {
        let excess =
            self.excess_bytes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |excess| {
                    (excess > 0).then(|| excess.saturating_sub(held_bytes))
                });
        if excess.is_err() {
            return false;
        }
        let count = self.budget.note_dropped();
        self.limiter.warn(
            now_ns,
            format_args!(
                "dropped a connection that held {held_bytes} bytes without moving while \
                 --memory-limit-bytes is nearly reached; {count} so far"
            ),
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conch_memory::Charge;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_largest_are_dropped_until_there_is_room() {
        let budget = Budget::with_reserve(100 * MIB, 0);
        let orders = PressureOrders::new(&budget, 100, Duration::from_secs(1));
        assert_eq!(orders.stalled_looks_max(), 10);
        let mut charge = Charge::empty(&budget);
        charge.cover(70 * MIB).unwrap();
        orders.begin_round(0);
        for held_mib in [3, 20, 10] {
            assert!(!orders.note_stalled(held_mib * MIB), "no pressure");
        }
        charge.cover(80 * MIB).unwrap();
        orders.begin_round(0);
        // The largest of the last round held 20.
        let may_be_dropped = [3, 9, 10, 20].map(|held_mib| orders.note_stalled(held_mib * MIB));
        assert_eq!(may_be_dropped, [false, false, true, true]);
        let dropped = [20, 15, 10].map(|held_mib| orders.take_stalled(held_mib * MIB, 0));
        assert_eq!(dropped, [true, true, false], "30 MiB more than half");
        charge.shrink(0);
        orders.begin_round(0);
        assert!(!orders.note_stalled(20 * MIB) && !orders.take_stalled(20 * MIB, 0));
    }

    #[test]
    fn idle_connections_end_where_places_run_short() {
        let orders = PressureOrders::new(&Budget::new(MIB), 800, Duration::ZERO);
        assert_eq!(orders.stalled_looks_max(), u32::MAX);
        for (count, own_count, excess) in [
            (0, 0, 0),
            (700, 700, 0),
            (800, 800, 100),
            (800, 80, 10),
            (701, 701, 2),
        ] {
            orders.begin_round(count);
            assert_eq!(
                orders.begin_idle(own_count),
                excess,
                "{own_count} of {count}"
            );
        }
    }
}
