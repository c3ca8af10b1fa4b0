//! Curves as a drawing: a file of its own, without scripts or fonts.

use super::curve::{LogAxis, axes, shown};
use super::report::{QUANTILES, RateReport, milliseconds, title};
use crate::options::BenchOptions;

/// Percentiles of latency over the offered rate. Rates that the server did not keep up with have
/// hollow points.
pub(super) fn document(options: &BenchOptions, reports: &[RateReport]) -> String {
    drawing(
        &title(options),
        reports,
        options.latency_limit.map(milliseconds),
    )
}

fn drawing(title: &str, reports: &[RateReport], limit: Option<f64>) -> String {
    let (rates, latencies) = axes(reports);
    let x = |rate: f64| LEFT + rates.place(rate) * WIDTH;
    let y = |latency: f64| TOP + (1.0 - latencies.place(latency)) * HEIGHT;
    let mut body = grid(rates, latencies, &x, &y);
    if let Some(limit) = limit {
        let at = y(limit);
        let end = LEFT + WIDTH;
        body.push_str(&format!(
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#c33\" \
             stroke-dasharray=\"6 4\"/>\n"
        ));
    }
    for (index, ((name, _), color)) in QUANTILES.iter().zip(COLORS).enumerate() {
        let points: Vec<(f64, f64, bool)> = reports
            .iter()
            .map(|report| {
                let latency = report.latencies.get(index).copied().unwrap_or_default();
                let place = (x(report.rate), y(milliseconds(latency)));
                (place.0, place.1, report.keeps_up(None))
            })
            .collect();
        let line: Vec<String> = points
            .iter()
            .map(|(x, y, _)| format!("{x:.1},{y:.1}"))
            .collect();
        body.push_str(&format!(
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>\n",
            line.join(" ")
        ));
        for (x, y, keeps_up) in points {
            let fill = if keeps_up { color } else { "#fff" };
            body.push_str(&format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{color}\"/>\n"
            ));
        }
        let at = TOP + 16.0 + 18.0 * index as f64;
        body.push_str(&text(LEFT + 14.0, at, "start", color, name));
    }
    let (middle, bottom) = (LEFT + WIDTH / 2.0, TOP + HEIGHT);
    body.push_str(&text(middle, TOP - 18.0, "middle", "#222", title));
    body.push_str(&text(
        middle,
        bottom + 42.0,
        "middle",
        "#222",
        "offered requests/s",
    ));
    body.push_str(&text(LEFT - 8.0, TOP - 18.0, "end", "#222", "ms"));
    let (full_width, full_height) = (LEFT + WIDTH + 30.0, TOP + HEIGHT + 60.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {full_width} {full_height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// Lines and numbers at round values, and the frame.
fn grid(
    rates: LogAxis,
    latencies: LogAxis,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
) -> String {
    let (right, bottom) = (LEFT + WIDTH, TOP + HEIGHT);
    let mut grid = String::new();
    let line = |x1: f64, y1: f64, x2: f64, y2: f64| {
        format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>\n"
        )
    };
    for tick in rates.ticks(12) {
        grid.push_str(&line(x(tick), TOP, x(tick), bottom));
        grid.push_str(&text(
            x(tick),
            bottom + 20.0,
            "middle",
            "#222",
            &shown(tick),
        ));
    }
    for tick in latencies.ticks(16) {
        grid.push_str(&line(LEFT, y(tick), right, y(tick)));
        grid.push_str(&text(
            LEFT - 8.0,
            y(tick) + 4.0,
            "end",
            "#222",
            &shown(tick),
        ));
    }
    grid.push_str(&format!(
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" \
         stroke=\"#888\"/>\n"
    ));
    grid
}

fn text(x: f64, y: f64, anchor: &str, color: &str, content: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{}</text>\n",
        escaped(content)
    )
}

/// A model's name may have any signs.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars().filter(|sign| !sign.is_control()) {
        match sign {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            other => escaped.push(other),
        }
    }
    escaped
}

const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 360.0;
/// Told apart by those who see few colours as well.
const COLORS: [&str; QUANTILES.len()] = ["#0072b2", "#009e73", "#e69f00", "#d55e00"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::report;

    #[test]
    fn curves_are_drawn() {
        let reports = [report(100.0, 100, 1), report(1000.0, 50, 10)];
        let drawn = drawing("a <b> & c", &reports, Some(5.0));
        assert_eq!(drawn.matches("<polyline").count(), QUANTILES.len());
        assert_eq!(drawn.matches("<circle").count(), 2 * QUANTILES.len());
        assert_eq!(
            drawn.matches("fill=\"#fff\" stroke=").count(),
            QUANTILES.len()
        );
        assert_eq!(drawn.matches("stroke-dasharray").count(), 1);
        assert!(drawn.contains("a &lt;b&gt; &amp; c"));
        assert!(drawn.contains(">p99.9</text>") && drawn.ends_with("</svg>\n"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }
}
