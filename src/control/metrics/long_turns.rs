//! Turns of network threads that lasted too long, by cause, and how long they waited for a CPU.
//!
//! The front end counts; this holds the numbers and shows them. What is 0 is not shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::text::{push_head, push_sample};

/// Why a turn lasted too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongTurnCause {
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
    pub const ALL: [LongTurnCause; 10] = [
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
pub struct LongTurns {
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
    pub fn add(&self, cause: LongTurnCause, duration_ns: u64) {
        // The order of `LongTurnCause::ALL` is that of its variants.
        let totals = &self.by_cause[cause as usize];
        totals.duration_ns.fetch_add(duration_ns, Ordering::Relaxed);
        totals.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were for that reason.
    pub fn count(&self, cause: LongTurnCause) -> u64 {
        self.by_cause[cause as usize].count.load(Ordering::Relaxed)
    }

    /// How long the thread waited for a CPU since it began, in its turns and before them.
    pub fn set_cpu_wait(&self, wait_ns: u64) {
        self.cpu_wait_ns.store(wait_ns, Ordering::Relaxed);
    }
}

/// Of all shards, in their order.
pub(super) fn render(text: &mut String, shards: &[Arc<LongTurns>]) {
    let in_us = |value: &AtomicU64| value.load(Ordering::Relaxed) / 1_000;
    push_family(
        text,
        "conch_shard_long_turns_total",
        "Turns of a network thread of a millisecond or longer, by cause",
        &by_cause(shards, |totals| totals.count.load(Ordering::Relaxed)),
    );
    push_family(
        text,
        "conch_shard_long_turn_duration_us",
        "Cumulative duration of such turns in microseconds",
        &by_cause(shards, |totals| in_us(&totals.duration_ns)),
    );
    let waits = shards.iter().zip(0..);
    let waits = waits.map(|(shard, index)| (index, None, in_us(&shard.cpu_wait_ns)));
    push_family(
        text,
        "conch_shard_cpu_wait_duration_us",
        "Cumulative time for which a network thread could run and had no CPU, in microseconds",
        &waits.collect::<Vec<_>>(),
    );
}

/// A shard, a cause, and a number.
type LongTurnRow = (u32, Option<LongTurnCause>, u64);

fn by_cause(shards: &[Arc<LongTurns>], value: impl Fn(&LongTurnTotals) -> u64) -> Vec<LongTurnRow> {
    let mut rows = Vec::new();
    for (shard, index) in shards.iter().zip(0..) {
        for (cause, totals) in LongTurnCause::ALL.into_iter().zip(&shard.by_cause) {
            rows.push((index, Some(cause), value(totals)));
        }
    }
    rows
}

fn push_family(text: &mut String, name: &str, help: &str, rows: &[LongTurnRow]) {
    let mut shown = rows.iter().filter(|(_, _, value)| *value > 0).peekable();
    if shown.peek().is_none() {
        return;
    }
    push_head(text, name, help, "counter");
    for (index, cause, value) in shown {
        let index = index.to_string();
        let shard = ("shard", &*index);
        match cause {
            Some(cause) => {
                push_sample(
                    text,
                    name,
                    &[shard, ("cause", cause.label())],
                    *value as f64,
                );
            }
            None => push_sample(text, name, &[shard], *value as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_was_is_shown() {
        let shards: Vec<Arc<LongTurns>> = (0..3).map(|_| Arc::default()).collect();
        let mut text = String::new();
        render(&mut text, &shards);
        assert_eq!(text, "");
        shards[0].add(LongTurnCause::NotScheduled, 1_500_000);
        shards[0].add(LongTurnCause::NotScheduled, 2_000_000);
        shards[2].add(LongTurnCause::Grpc, 1_000_999);
        shards[1].set_cpu_wait(7_000);
        render(&mut text, &shards);
        let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            rows,
            [
                "conch_shard_long_turns_total{shard=\"0\",cause=\"not_scheduled\"} 2",
                "conch_shard_long_turns_total{shard=\"2\",cause=\"grpc\"} 1",
                "conch_shard_long_turn_duration_us{shard=\"0\",cause=\"not_scheduled\"} 3500",
                "conch_shard_long_turn_duration_us{shard=\"2\",cause=\"grpc\"} 1000",
                "conch_shard_cpu_wait_duration_us{shard=\"1\"} 7",
            ]
        );
        assert_eq!(text.matches("# TYPE").count(), 3);
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
