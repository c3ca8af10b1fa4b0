//! What is told of each rate.

use std::time::Duration;

use serde_json::{Value, json};

use crate::load::{Arrivals, LatencyRecord, LoadProtocol};
use crate::options::BenchOptions;
use crate::printable::printable;

/// The shares of latencies that are told, with their names.
pub(super) const QUANTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// What became of one rate.
#[derive(Clone, Debug)]
pub(super) struct RateReport {
    /// Requests per second that were offered.
    pub(super) rate: f64,
    pub(super) due_count: u64,
    answered_count: u64,
    in_time_count: u64,
    failed_count: u64,
    unanswered_count: u64,
    /// Requests that are in flight at any time, so also when the rate ends.
    usual_late_count: f64,
    /// Answers per second while the rate was offered.
    pub(super) throughput: f64,
    /// As [`QUANTILES`]; with what was not answered, which counts as long as it was waited for.
    pub(super) latencies: [Duration; QUANTILES.len()],
    latency_max: Duration,
    reasons: Vec<String>,
}

impl RateReport {
    pub(super) fn new(
        rate: f64,
        due_count: u64,
        measured: Duration,
        record: &LatencyRecord,
    ) -> RateReport {
        RateReport {
            rate,
            due_count,
            answered_count: record.answered_count(),
            in_time_count: record.in_time_count(),
            failed_count: record.failed_count(),
            unanswered_count: record.unanswered_count(),
            usual_late_count: 2.0 * rate * record.latency(USUAL_QUANTILE).as_secs_f64(),
            throughput: record.in_time_count() as f64 / measured.as_secs_f64(),
            latencies: QUANTILES.map(|(_, quantile)| record.latency(quantile)),
            latency_max: record.latency_max(),
            reasons: record.reasons(),
        }
    }

    /// Whether all was answered well, and within `limit`, and no more was left when the rate ended
    /// than is usually in flight.
    pub(super) fn keeps_up(&self, limit: Option<Duration>) -> bool {
        let [_, _, p99, _] = self.latencies;
        let late_count = self.due_count.saturating_sub(self.in_time_count) as f64;
        let late_max = 1.0 + LATE_MAX * self.due_count as f64 + self.usual_late_count;
        let in_time = late_count <= late_max;
        let is_whole = self.failed_count == 0 && self.unanswered_count == 0;
        in_time && is_whole && self.answered_count > 0 && limit.is_none_or(|limit| p99 <= limit)
    }

    /// A row of the table.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{:>11.0}{:>11.0}", self.rate, self.throughput);
        for latency in self.latencies.iter().chain([&self.latency_max]) {
            line.push_str(&format!("{:>10.3}", milliseconds(*latency)));
        }
        line.push_str(&format!(
            "{:>9}{:>12}\n",
            self.failed_count, self.unanswered_count
        ));
        for reason in self.reasons.iter().take(REASONS_MAX) {
            line.push_str(&format!("            {}\n", printable(reason)));
        }
        line
    }

    fn document(&self, limit: Option<Duration>) -> Value {
        let mut document = json!({
            "offered_per_second": self.rate,
            "answered_per_second": self.throughput,
            "due": self.due_count,
            "answered": self.answered_count,
            "failed": self.failed_count,
            "unanswered": self.unanswered_count,
            "max_ms": milliseconds(self.latency_max),
            "keeps_up": self.keeps_up(limit),
            "reasons": self.reasons,
        });
        for ((name, _), latency) in QUANTILES.iter().zip(self.latencies) {
            document[format!("{}_ms", name.replace('.', "_"))] = milliseconds(latency).into();
        }
        document
    }
}

/// What is done, and the head of the table.
pub(super) fn head(options: &BenchOptions) -> String {
    let mut columns = format!("{:>11}{:>11}", "offered/s", "answered/s");
    let names = QUANTILES.iter().map(|(name, _)| *name).chain(["max"]);
    for name in names {
        columns.push_str(&format!("{:>10}", format!("{name} ms")));
    }
    columns.push_str(&format!("{:>9}{:>12}", "failed", "unanswered"));
    format!("{}\n{columns}\n", title(options))
}

/// What is measured, in one line.
pub(super) fn title(options: &BenchOptions) -> String {
    let protocol = match options.protocol {
        LoadProtocol::Http => "HTTP",
        LoadProtocol::Grpc => "gRPC",
    };
    let arrivals = match options.arrivals {
        Arrivals::Even => "even",
        Arrivals::Poisson => "Poisson",
    };
    format!(
        "{} at {}: {protocol}, {} connections, {arrivals} arrivals, {} s per rate",
        options.model,
        options.server.url.shown(),
        options.connection_count,
        options.measured.as_secs_f64(),
    )
}

/// The largest rate that the server kept up with.
pub(super) fn verdict(reports: &[RateReport], limit: Option<Duration>) -> String {
    let within = limit.map_or_else(String::new, |limit| {
        format!(" with p99 within {} ms", milliseconds(limit))
    });
    match reports.iter().rfind(|report| report.keeps_up(limit)) {
        Some(best) => format!("keeps up with {:.0}/s{within}\n", best.rate),
        None => format!("keeps up with none of these rates{within}\n"),
    }
}

/// All figures, in JSON.
pub(super) fn document(options: &BenchOptions, reports: &[RateReport]) -> String {
    let limit = options.latency_limit;
    let rates: Vec<Value> = reports
        .iter()
        .map(|report| report.document(limit))
        .collect();
    let document = json!({
        "model": options.model,
        "url": options.server.url.shown(),
        "protocol": match options.protocol {
            LoadProtocol::Http => "http",
            LoadProtocol::Grpc => "grpc",
        },
        "arrivals": match options.arrivals {
            Arrivals::Even => "even",
            Arrivals::Poisson => "poisson",
        },
        "connections": options.connection_count,
        "seconds": options.measured.as_secs_f64(),
        "latency_limit_ms": limit.map(milliseconds),
        "rates": rates,
    });
    format!("{document:#}\n")
}

pub(super) fn milliseconds(latency: Duration) -> f64 {
    latency.as_secs_f64() * 1e3
}

/// Of what was due, beside what is usually in flight.
const LATE_MAX: f64 = 0.02;
/// Latencies grow for as long as a server does not keep up; those of the beginning are the usual.
const USUAL_QUANTILE: f64 = 0.1;
/// Reasons that are shown below a row.
const REASONS_MAX: usize = 3;

#[cfg(test)]
pub(super) mod tests {
    use std::time::Instant;

    use super::*;

    /// A rate of which so many of a hundred were answered in so many milliseconds.
    pub(crate) fn report(rate: f64, answered: u64, milliseconds: u64) -> RateReport {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut record = LatencyRecord::new(after(1000));
        for index in 0..100 {
            match index < answered {
                true => record.answer(start, after(milliseconds)),
                false => record.leave_unanswered(start, after(3000)),
            }
        }
        RateReport::new(rate, 100, Duration::from_secs(1), &record)
    }

    #[test]
    fn a_server_keeps_up_or_does_not() {
        let limit = Some(Duration::from_millis(50));
        for (answered, milliseconds, limit, expected) in [
            (100, 10, None, true),
            (99, 10, None, false),
            (100, 10, limit, true),
            (100, 60, limit, false),
            (0, 10, None, false),
        ] {
            let report = report(100.0, answered, milliseconds);
            assert_eq!(
                report.keeps_up(limit),
                expected,
                "{answered} {milliseconds}"
            );
        }
    }

    /// A server that answers so many per second, of a hundred per second that are due.
    fn served(capacity: u64) -> RateReport {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut record = LatencyRecord::new(at(10_000));
        for index in 0..1000 {
            let due = index * 10;
            // 50 ms, and those ahead of it.
            record.answer(at(due), at(50 + due.max(index * 1000 / capacity)));
        }
        RateReport::new(100.0, 1000, Duration::from_secs(10), &record)
    }

    #[test]
    fn what_is_in_flight_at_the_end_is_no_backlog() {
        for (capacity, expected) in [(100, true), (1000, true), (90, false), (50, false)] {
            assert_eq!(served(capacity).keeps_up(None), expected, "{capacity}");
        }
    }

    #[test]
    fn rows_and_verdicts() {
        let reports = [report(100.0, 100, 10), report(200.0, 50, 10)];
        let row = reports[0].line();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            (words[0], words[1], words[7], words[8]),
            ("100", "100", "0", "0")
        );
        assert!(words[2].starts_with("10.0"), "{row}");
        assert_eq!(reports[1].line().split_whitespace().last(), Some("50"));
        assert_eq!(verdict(&reports, None), "keeps up with 100/s\n");
        let limit = Some(Duration::from_millis(5));
        assert_eq!(
            verdict(&reports, limit),
            "keeps up with none of these rates with p99 within 5 ms\n"
        );
        assert_eq!(reports[0].document(None)["keeps_up"], json!(true));
    }
}
