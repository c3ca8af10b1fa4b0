//! Latencies and failures of one run, and the report about them.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Everything that one run has seen. Times are kept to three digits, up to a minute.
pub struct Record {
    latencies_ns: Histogram<u64>,
    failures: BTreeMap<String, u64>,
    lost: BTreeMap<String, u64>,
    skipped_count: u64,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            latencies_ns: Histogram::new_with_bounds(100, 60_000_000_000, 3)
                .expect("the bounds are valid"),
            failures: BTreeMap::new(),
            lost: BTreeMap::new(),
            skipped_count: 0,
        }
    }
}

impl Record {
    /// Counts an answer to a request that was due at `due`.
    pub fn answer(&mut self, due: Instant) {
        let latency = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latencies_ns.saturating_record(latency);
    }

    /// Counts requests that were not sent.
    pub fn skip(&mut self, count: u64) {
        self.skipped_count += count;
    }

    /// Counts a request that got no good answer.
    pub fn fail(&mut self, reason: &str) {
        *self.failures.entry(reason.to_owned()).or_default() += 1;
    }

    /// Counts a connection that ended before its time.
    pub fn lose_connection(&mut self, reason: &str) {
        *self.lost.entry(reason.to_owned()).or_default() += 1;
    }

    /// Whether anything went wrong, or nothing was measured at all.
    pub fn has_failures(&self) -> bool {
        !self.failures.is_empty() || !self.lost.is_empty() || self.latencies_ns.is_empty()
    }

    /// One JSON object: rates in requests per second, times in microseconds.
    pub fn report(&self, rate: f64, measured: Duration) -> String {
        let quantile = |q| self.latencies_ns.value_at_quantile(q) as f64 / 1000.0;
        let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
        let reasons: Vec<String> = self
            .failures
            .iter()
            .chain(&self.lost)
            .map(|(reason, count)| format!("\"{count} x {}\"", reason.escape_default()))
            .collect();
        format!(
            "{{\"offered_per_second\":{rate},\"answered_per_second\":{:.1},\"count\":{},\
             \"p50_us\":{:.1},\"p99_us\":{:.1},\
             \"p999_us\":{:.1},\"max_us\":{:.1},\"failed\":{},\"skipped\":{},\
             \"lost_connections\":{},\
             \"reasons\":[{}]}}",
            self.latencies_ns.len() as f64 / measured.as_secs_f64(),
            self.latencies_ns.len(),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            self.latencies_ns.max() as f64 / 1000.0,
            sum(&self.failures),
            self.skipped_count,
            sum(&self.lost),
            reasons.join(",")
        )
    }
}
