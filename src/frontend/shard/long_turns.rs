//! Turns of network threads that lasted too long, by cause, and how long they waited for a CPU.
//!
//! `shard/runtime` tells them, the watchdog the waits.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use conch_control::metrics::{FamilyKind, FamilySamples, LabelledValue};

/// Why a turn lasted too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongTurnCause {
    /// Others had the CPU.
    NotScheduled,
    /// Off the CPU, though nobody here took it: the thread slept in a system call, its process was
    /// stopped, or the host of a virtual machine had the CPU.
    Suspended,
    /// Pages were read from a disk, or many were touched for the first time.
    PageFaults,
    /// The shard executed a model in place of a core.
    InlineExecution,
    /// The shard offered its CPU to a core, which kept it.
    CpuOffer,
    /// A look at the deadlines of all connections.
    Sweep,
    /// Connections that came.
    NewConnections,
    /// Work for a connection of HTTP.
    Http,
    /// Work for a connection of gRPC.
    Grpc,
    Other,
}

impl LongTurnCause {
    pub(crate) const ALL: [LongTurnCause; 10] = [
        LongTurnCause::NotScheduled,
        LongTurnCause::Suspended,
        LongTurnCause::PageFaults,
        LongTurnCause::InlineExecution,
        LongTurnCause::CpuOffer,
        LongTurnCause::Sweep,
        LongTurnCause::NewConnections,
        LongTurnCause::Http,
        LongTurnCause::Grpc,
        LongTurnCause::Other,
    ];

    const fn label(self) -> &'static str {
        match self {
            LongTurnCause::NotScheduled => "not_scheduled",
            LongTurnCause::Suspended => "suspended",
            LongTurnCause::PageFaults => "page_faults",
            LongTurnCause::InlineExecution => "inline_execution",
            LongTurnCause::CpuOffer => "cpu_offer",
            LongTurnCause::Sweep => "sweep",
            LongTurnCause::NewConnections => "new_connections",
            LongTurnCause::Http => "http",
            LongTurnCause::Grpc => "grpc",
            LongTurnCause::Other => "other",
        }
    }
}

/// Of one shard.
#[derive(Debug, Default)]
pub(crate) struct LongTurns {
    by_cause: [LongTurnTotals; LongTurnCause::ALL.len()],
    cpu_wait_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct LongTurnTotals {
    count: AtomicU64,
    duration_ns: AtomicU64,
}

impl LongTurns {
    /// Counts one.
    pub(crate) fn add(&self, cause: LongTurnCause, duration_ns: u64) {
        // The order of `LongTurnCause::ALL` is that of its variants.
        let totals = &self.by_cause[cause as usize];
        totals.duration_ns.fetch_add(duration_ns, Ordering::Relaxed);
        totals.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were for that reason.
    #[cfg(test)]
    pub(crate) fn count(&self, cause: LongTurnCause) -> u64 {
        self.by_cause[cause as usize].count.load(Ordering::Relaxed)
    }

    /// How long the thread waited for a CPU since it began, in its turns and before them.
    pub(crate) fn set_cpu_wait(&self, wait_ns: u64) {
        self.cpu_wait_ns.store(wait_ns, Ordering::Relaxed);
    }
}

/// Those of all shards, in their order. What is 0 is not shown.
pub(crate) fn families(shards: &[&LongTurns]) -> [FamilySamples; 3] {
    let counter = |name, help, samples| FamilySamples {
        name,
        help,
        kind: FamilyKind::Counter,
        samples,
    };
    let in_seconds = |ns: &AtomicU64| ns.load(Ordering::Relaxed) as f64 / 1e9;
    let waits = shards.iter().zip(0_u32..);
    let waits =
        waits.filter_map(|(shard, index)| sample(index, None, in_seconds(&shard.cpu_wait_ns)));
    [
        counter(
            "conch_shard_long_turns_total",
            "Turns of a network thread of a millisecond or longer, by cause",
            by_cause(shards, |totals| totals.count.load(Ordering::Relaxed) as f64),
        ),
        counter(
            "conch_shard_long_turn_seconds_total",
            "How long these turns were together, in seconds",
            by_cause(shards, |totals| in_seconds(&totals.duration_ns)),
        ),
        counter(
            "conch_shard_cpu_wait_seconds_total",
            "How long a network thread could run and had no CPU, in seconds",
            waits.collect(),
        ),
    ]
}

fn by_cause(shards: &[&LongTurns], value: impl Fn(&LongTurnTotals) -> f64) -> Vec<LabelledValue> {
    let mut samples = Vec::new();
    for (shard, index) in shards.iter().zip(0_u32..) {
        let causes = LongTurnCause::ALL.into_iter().zip(&shard.by_cause);
        samples
            .extend(causes.filter_map(|(cause, totals)| sample(index, Some(cause), value(totals))));
    }
    samples
}

/// None of what never happened.
fn sample(shard: u32, cause: Option<LongTurnCause>, value: f64) -> Option<LabelledValue> {
    let mut labels = vec![("shard", Cow::Owned(shard.to_string()))];
    labels.extend(cause.map(|cause| ("cause", Cow::Borrowed(cause.label()))));
    (value > 0.0).then_some(LabelledValue { labels, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_was_is_shown() {
        let shards: [LongTurns; 3] = Default::default();
        let shown = || {
            let families = families(&shards.each_ref()).into_iter();
            let samples = families.flat_map(|family| family.samples);
            let rows = samples.map(|sample| {
                let labels: Vec<_> = sample.labels.iter().map(|(_, value)| &**value).collect();
                (labels.join(" "), sample.value)
            });
            rows.collect::<Vec<_>>()
        };
        assert_eq!(shown(), []);
        shards[0].add(LongTurnCause::NotScheduled, 1_500_000);
        shards[0].add(LongTurnCause::NotScheduled, 2_000_000);
        shards[2].add(LongTurnCause::Grpc, 1_000_000);
        shards[1].set_cpu_wait(7_000);
        let expected = [
            ("0 not_scheduled", 2.0),
            ("2 grpc", 1.0),
            ("0 not_scheduled", 0.0035),
            ("2 grpc", 0.001),
            ("1", 0.000_007),
        ];
        let expected = expected.map(|(labels, value)| (labels.to_owned(), value));
        assert_eq!(shown(), expected);
    }

    #[test]
    fn each_cause_has_its_place_and_name() {
        let turns = LongTurns::default();
        let mut labels = std::collections::BTreeSet::new();
        for (cause, place) in LongTurnCause::ALL.into_iter().zip(0..) {
            assert_eq!(cause as usize, place);
            assert!(labels.insert(cause.label()));
            turns.add(cause, 1);
            assert_eq!(turns.count(cause), 1);
        }
    }
}
