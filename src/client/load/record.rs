//! Latencies and failures of one run, and the report about them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Everything that one run has seen. Times are kept to three digits, up to a minute.
pub struct LatencyRecord {
    /// Of answers, and of requests that are given up, which are at least as late.
    latencies_ns: Histogram<u64>,
    answered_count: u64,
    in_time_count: u64,
    unanswered_count: u64,
    failures: BTreeMap<String, u64>,
    lost: BTreeMap<String, u64>,
    skipped_count: u64,
    /// When the last request may be due.
    end: Instant,
}

impl LatencyRecord {
    /// Of a run that ends at `end`.
    pub fn new(end: Instant) -> Self {
        Self {
            latencies_ns: Histogram::new_with_bounds(100, 60_000_000_000, 3)
                .expect("the bounds are valid"),
            answered_count: 0,
            in_time_count: 0,
            unanswered_count: 0,
            failures: BTreeMap::new(),
            lost: BTreeMap::new(),
            skipped_count: 0,
            end,
        }
    }

    /// Counts an answer, which came at `now`, to a request that was due at `due`.
    pub fn answer(&mut self, due: Instant, now: Instant) {
        self.answered_count += 1;
        self.in_time_count += u64::from(now <= self.end);
        self.note_latency(due, now);
    }

    /// Counts a request that was due at `due` and has no answer by `now`, when the run ends.
    pub fn leave_unanswered(&mut self, due: Instant, now: Instant) {
        self.unanswered_count += 1;
        self.note_latency(due, now);
    }

    fn note_latency(&mut self, due: Instant, now: Instant) {
        let latency = now.saturating_duration_since(due).as_nanos();
        self.latencies_ns
            .saturating_record(u64::try_from(latency).unwrap_or(u64::MAX));
    }

    /// Counts requests that were not sent.
    pub fn skip(&mut self, count: u64) {
        self.skipped_count += count;
    }

    /// Counts a request that got no good answer.
    pub fn fail(&mut self, reason: &str) {
        count(&mut self.failures, reason);
    }

    /// Counts a connection that ended before its time.
    pub fn lose_connection(&mut self, reason: &str) {
        count(&mut self.lost, reason);
    }

    /// Whether anything went wrong, or nothing was answered at all.
    pub fn has_failures(&self) -> bool {
        !self.failures.is_empty()
            || !self.lost.is_empty()
            || self.unanswered_count > 0
            || self.answered_count == 0
    }

    pub fn answered_count(&self) -> u64 {
        self.answered_count
    }

    /// Answers before the last request may be due.
    pub fn in_time_count(&self) -> u64 {
        self.in_time_count
    }

    pub fn unanswered_count(&self) -> u64 {
        self.unanswered_count
    }

    pub fn failed_count(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Of the latencies, the share `quantile` is at most so long.
    pub fn latency(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latencies_ns.value_at_quantile(quantile))
    }

    pub fn latency_max(&self) -> Duration {
        Duration::from_nanos(self.latencies_ns.max())
    }

    /// Failures and lost connections, with their numbers.
    pub fn reasons(&self) -> Vec<String> {
        let reasons = self.failures.iter().chain(&self.lost);
        reasons
            .map(|(reason, count)| format!("{count} x {reason}"))
            .collect()
    }

    /// One JSON object: rates in requests per second, times in microseconds.
    pub fn report(&self, rate: f64, measured: Duration) -> String {
        let us = |latency: Duration| latency.as_nanos() as f64 / 1000.0;
        let reasons = serde_json::Value::from(self.reasons());
        format!(
            "{{\"offered_per_second\":{rate},\"answered_per_second\":{:.1},\"count\":{},\
             \"p50_us\":{:.1},\"p99_us\":{:.1},\
             \"p999_us\":{:.1},\"max_us\":{:.1},\"failed\":{},\"skipped\":{},\
             \"lost_connections\":{},\
             \"reasons\":{reasons}}}",
            self.answered_count as f64 / measured.as_secs_f64(),
            self.answered_count,
            us(self.latency(0.5)),
            us(self.latency(0.99)),
            us(self.latency(0.999)),
            us(self.latency_max()),
            self.failed_count(),
            self.skipped_count,
            self.lost.values().sum::<u64>(),
        )
    }
}

/// A server may give another reason each time; those beyond a bound are one.
fn count(counts: &mut BTreeMap<String, u64>, reason: &str) {
    let reason = match counts.len() < REASONS_MAX || counts.contains_key(reason) {
        true => reason,
        false => "other reasons",
    };
    *counts.entry(String::from(reason)).or_default() += 1;
}

const REASONS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_or_never_answered_is_told_apart() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut record = LatencyRecord::new(at(100));
        record.answer(at(0), at(10));
        record.answer(at(50), at(150));
        record.leave_unanswered(at(60), at(1060));
        assert_eq!(record.answered_count(), 2);
        assert_eq!(record.in_time_count(), 1);
        assert_eq!(record.unanswered_count(), 1);
        assert!(record.has_failures());
        assert_eq!(record.latency_max().as_millis() / 10, 100);
        assert_eq!(record.latency(0.5).as_millis() / 10, 10);
    }

    #[test]
    fn the_report_is_json() {
        let start = Instant::now();
        let mut record = LatencyRecord::new(start);
        record.answer(start, start + Duration::from_millis(2));
        record.fail("no 'model' \"x\"\u{1b}");
        let report = record.report(5.0, Duration::from_secs(2));
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["count"], 1);
        assert_eq!(report["answered_per_second"], 0.5);
        assert_eq!(report["reasons"][0], "1 x no 'model' \"x\"\u{1b}");
    }

    #[test]
    fn reasons_are_bounded() {
        let mut record = LatencyRecord::new(Instant::now());
        for number in 0..100 {
            record.fail(&format!("reason {number}"));
        }
        record.fail("reason 0");
        assert_eq!(record.reasons().len(), REASONS_MAX + 1);
        assert_eq!(record.failed_count(), 101);
        assert!(record.reasons().contains(&String::from("2 x reason 0")));
    }
}
