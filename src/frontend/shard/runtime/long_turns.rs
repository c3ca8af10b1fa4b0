//! Why a turn of a shard lasted too long.
//!
//! A cause is what half of the turn went to, or more. Looked for first is what is sure: an offer of
//! the CPU that was taken, then that the thread was not on a CPU, then page faults, then work whose
//! time was measured. The rest is of the protocol whose tasks the longest part of the turn had.

use std::sync::Arc;

use conch_executor::{LongTurn, LongTurnObserver};

use crate::shard::long_turns::{LongTurnCause, LongTurns};
use crate::shard::stage::ShardStage;

/// What a page costs that is touched first, about: the way into the kernel and its zeroing.
const FAULT_NS: u64 = 2_000;

/// Counts a shard's long turns.
pub(super) fn observer(long_turns: Arc<LongTurns>) -> LongTurnObserver {
    Box::new(move |turn| {
        let cause = cause(turn);
        let duration_us = turn.duration_ns / 1_000;
        conch_log::verbose!(1, "a turn of a shard lasted {duration_us} us: {cause:?}");
        long_turns.add(cause, turn.duration_ns);
    })
}

fn cause(turn: &LongTurn) -> LongTurnCause {
    let half_ns = turn.duration_ns / 2;
    let spent_ns = |stage: ShardStage| turn.spent_ns.get(stage as usize).copied().unwrap_or(0);
    let is_for = |stage| spent_ns(stage) >= half_ns;
    let usage = turn.usage;
    if is_for(ShardStage::CpuOffer) {
        return LongTurnCause::CpuOffer;
    }
    let off_cpu_ns = turn.duration_ns.saturating_sub(usage.cpu_ns);
    if off_cpu_ns >= half_ns {
        return match usage {
            usage if usage.preemption_count > 0 => LongTurnCause::NotScheduled,
            // A backend waits for something of its own.
            _ if is_for(ShardStage::InlineExecution) => LongTurnCause::InlineExecution,
            usage if usage.major_fault_count > 0 => LongTurnCause::PageFaults,
            _ => LongTurnCause::Suspended,
        };
    }
    if is_for(ShardStage::InlineExecution) {
        return LongTurnCause::InlineExecution;
    }
    if usage.minor_fault_count.saturating_mul(FAULT_NS) >= half_ns {
        return LongTurnCause::PageFaults;
    }
    if is_for(ShardStage::Sweep) {
        return LongTurnCause::Sweep;
    }
    if is_for(ShardStage::NewConnection) {
        return LongTurnCause::NewConnections;
    }
    match turn.longest_part.only() {
        Some(stage) if stage == ShardStage::Http as usize => LongTurnCause::Http,
        Some(stage) if stage == ShardStage::Grpc as usize => LongTurnCause::Grpc,
        _ => LongTurnCause::Other,
    }
}

#[cfg(test)]
mod tests {
    use conch_executor::{STAGES_MAX, StageSet};
    use conch_net::ThreadUsage;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A turn of 4 ms.
    fn turn(cpu_ns: u64, preemption_count: u64, faults: [u64; 2]) -> LongTurn {
        LongTurn {
            duration_ns: 4 * MS,
            usage: ThreadUsage {
                cpu_ns,
                minor_fault_count: faults[0],
                major_fault_count: faults[1],
                preemption_count,
            },
            spent_ns: [0; STAGES_MAX],
            longest_part: StageSet::of(&[ShardStage::Http as usize]),
        }
    }

    fn spent(stage: ShardStage, duration_ns: u64, turn: LongTurn) -> LongTurn {
        let mut spent_ns = turn.spent_ns;
        spent_ns[stage as usize] = duration_ns;
        LongTurn { spent_ns, ..turn }
    }

    fn entered(stages: &[ShardStage]) -> LongTurn {
        let stages: Vec<usize> = stages.iter().map(|stage| *stage as usize).collect();
        LongTurn {
            longest_part: StageSet::of(&stages),
            ..turn(4 * MS, 0, [0, 0])
        }
    }

    #[test]
    fn the_cause_is_what_half_of_the_turn_went_to() {
        use LongTurnCause::*;
        let inline = ShardStage::InlineExecution;
        for (number, (turn, expected)) in [
            // Off the CPU, for half of the time and a little less.
            (turn(2 * MS, 1, [0, 0]), NotScheduled),
            (turn(2 * MS + 1, 1, [0, 0]), Http),
            (turn(0, 0, [0, 0]), Suspended),
            // Though CPU time may be told with an error.
            (turn(9 * MS, 0, [0, 0]), Http),
            // Pages: from a disk, first touched, and too few to be the cause.
            (turn(MS, 0, [0, 1]), PageFaults),
            (turn(MS, 1, [0, 1]), NotScheduled),
            (turn(4 * MS, 0, [1_000, 0]), PageFaults),
            (turn(4 * MS, 0, [999, 3]), Http),
            // A model that computes, one that waits, and one that lost its CPU.
            (
                spent(inline, 3 * MS, turn(4 * MS, 0, [0, 0])),
                InlineExecution,
            ),
            (spent(inline, 3 * MS, turn(0, 0, [0, 0])), InlineExecution),
            (spent(inline, 3 * MS, turn(0, 2, [0, 0])), NotScheduled),
            (
                spent(inline, 3 * MS, turn(4 * MS, 0, [5_000, 0])),
                InlineExecution,
            ),
            (spent(inline, 2 * MS - 1, turn(4 * MS, 0, [0, 0])), Http),
            // An offer that was taken is no preemption.
            (
                spent(ShardStage::CpuOffer, 3 * MS, turn(0, 4, [0, 0])),
                CpuOffer,
            ),
            (
                spent(ShardStage::CpuOffer, MS, turn(0, 4, [0, 0])),
                NotScheduled,
            ),
            (
                spent(ShardStage::Sweep, 2 * MS, turn(4 * MS, 0, [0, 0])),
                Sweep,
            ),
            (
                spent(ShardStage::Sweep, 2 * MS, turn(0, 0, [0, 0])),
                Suspended,
            ),
            (
                spent(ShardStage::NewConnection, 2 * MS, turn(4 * MS, 0, [0, 0])),
                NewConnections,
            ),
            (entered(&[ShardStage::Grpc]), Grpc),
            (entered(&[ShardStage::Http]), Http),
            (entered(&[ShardStage::Http, ShardStage::Grpc]), Other),
            (entered(&[]), Other),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(cause(&turn), expected, "{number}: {turn:?}");
        }
    }

    #[test]
    fn the_observer_counts() {
        let long_turns = Arc::<LongTurns>::default();
        let observe = observer(Arc::clone(&long_turns));
        observe(&entered(&[ShardStage::Grpc]));
        observe(&turn(0, 1, [0, 0]));
        for cause in LongTurnCause::ALL {
            let expected = matches!(cause, LongTurnCause::Grpc | LongTurnCause::NotScheduled);
            assert_eq!(long_turns.count(cause), u64::from(expected), "{cause:?}");
        }
    }
}
