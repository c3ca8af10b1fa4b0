//! Curves in a terminal.

use super::curve::{axes, shown};
use super::report::{RateReport, milliseconds};

/// Percentiles over the rate; nothing for a single rate.
pub(super) fn plot(reports: &[RateReport]) -> String {
    if reports.len() < 2 {
        return String::new();
    }
    let (rates, latencies) = axes(reports);
    let column = |rate: f64| (rates.place(rate) * (WIDTH - 1) as f64).round() as usize;
    let row = |latency: f64| ((1.0 - latencies.place(latency)) * (HEIGHT - 1) as f64).round();
    let mut cells = vec![vec![' '; WIDTH]; HEIGHT];
    let mut set = |column: usize, row: f64, sign: char| {
        let cell = cells.get_mut(row as usize);
        if let Some(cell) = cell.and_then(|row| row.get_mut(column)) {
            *cell = sign;
        }
    };
    // Later ones over earlier: the median is seen where all are one.
    for (index, sign) in [(3, '#'), (2, '*'), (0, '.')] {
        for report in reports {
            let latency = report.latencies.get(index).copied().unwrap_or_default();
            set(column(report.rate), row(milliseconds(latency)), sign);
        }
    }
    let mut labels = vec![String::new(); HEIGHT];
    for tick in latencies.ticks(HEIGHT / 2) {
        if let Some(label) = labels.get_mut(row(tick) as usize) {
            *label = shown(tick);
        }
    }
    let mut text = format!("\n{:>9}  . p50   * p99   # p99.9\n", "ms");
    for (label, cells) in labels.iter().zip(&cells) {
        let cells: String = cells.iter().collect();
        text.push_str(format!("{label:>9} |{cells}").trim_end());
        text.push('\n');
    }
    text.push_str(&format!("{:>9} +{}\n", "", "-".repeat(WIDTH)));
    let mut line = String::new();
    for tick in rates.ticks(WIDTH / 10) {
        let start = (11 + column(tick)).max(line.len());
        if start > line.len() || line.is_empty() {
            line.push_str(&" ".repeat(start - line.len()));
            line.push_str(&format!("{} ", shown(tick)));
        }
    }
    text.push_str(&format!("{} requests/s\n\n", line.trim_end()));
    text
}

const WIDTH: usize = 60;
const HEIGHT: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::report;

    #[test]
    fn latencies_are_drawn_over_rates() {
        let reports = [
            report(100.0, 100, 1),
            report(1000.0, 100, 10),
            report(10_000.0, 100, 100),
        ];
        let text = plot(&reports);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 1 + HEIGHT + 3);
        // All percentiles are one here.
        assert_eq!(text.matches('.').count() - 1, 1 + reports.len(), "{text}");
        assert!(
            lines[2].starts_with("      100 |") && lines[2].ends_with('.'),
            "{text}"
        );
        assert!(lines[1 + HEIGHT].starts_with("        1 |."), "{text}");
        assert!(lines[3 + HEIGHT].trim_start().starts_with("100 "), "{text}");
        assert!(lines[3 + HEIGHT].ends_with("10k requests/s"), "{text}");
        assert_eq!(plot(&reports[..1]), "");
        let one_latency = [report(1.0, 100, 5), report(2.0, 100, 5)];
        assert!(!plot(&one_latency).is_empty());
    }
}
