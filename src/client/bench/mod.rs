//! `conch bench`: a ladder of rates, a line for each, and curves of latency over the rate.

mod curve;
mod ladder;
mod plot;
mod report;
mod requests;
mod svg;

use std::io::{IsTerminal as _, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::ClientError;
use crate::load::{DueTimes, LatePolicy, LatencyRecord, LoadTarget, OfferedLoad, RunTimes, offer};
use crate::options::BenchOptions;
use ladder::Ladder;
use report::RateReport;

/// Drives a server at one rate after the other, and tells `output` how it goes. Blocks for as long
/// as that takes.
///
/// # Errors
/// The model does not answer as it is asked, or no rate is one that the server keeps up with.
pub fn bench(options: &BenchOptions, output: &mut dyn Write) -> Result<(), ClientError> {
    let target = requests::target(options)?;
    print(output, &report::head(options));
    let mut ladder = Ladder::new(options.rates.clone());
    let mut reports: Vec<RateReport> = Vec::new();
    while let Some(rate) = ladder.next() {
        let report = run(options, &target, rate)?;
        print(output, &report.line());
        ladder.note(rate, report.keeps_up(options.latency_limit));
        reports.push(report);
    }
    reports.sort_by(|left, right| left.rate.total_cmp(&right.rate));
    print(output, &plot::plot(&reports));
    print(output, &report::verdict(&reports, options.latency_limit));
    if let Some(path) = &options.svg {
        write(path, &svg::document(options, &reports))?;
    }
    if let Some(path) = &options.json {
        write(path, &report::document(options, &reports))?;
    }
    match reports.iter().any(|report| report.keeps_up(None)) {
        true => Ok(()),
        false => Err(ClientError::Failed(String::from(
            "the server kept up with none of these rates",
        ))),
    }
}

/// Offers one rate.
fn run(options: &BenchOptions, target: &LoadTarget, rate: f64) -> Result<RateReport, ClientError> {
    let load = OfferedLoad {
        rate,
        connection_count: options.connection_count,
        arrivals: options.arrivals,
        late: LatePolicy::Send,
    };
    let times = RunTimes {
        start: Instant::now(),
        warm_up: options.warm_up,
        measured: options.measured,
        grace: GRACE,
    };
    let due = |index| DueTimes::new(times, load, index).count_due();
    let due_count = (0..load.connection_count).map(due).sum();
    let times = RunTimes {
        // Counting takes a while.
        start: Instant::now(),
        ..times
    };
    let is_watched = std::io::stderr().is_terminal();
    let seconds = (times.warm_up + times.measured).as_secs_f64();
    let watch = move |record: &LatencyRecord| {
        if is_watched {
            let elapsed = times.start.elapsed().as_secs_f64();
            eprint!(
                "\r{rate:>12.0}/s  {elapsed:.1} of {seconds:.1} s, {} answers\x1b[K",
                record.answered_count()
            );
        }
    };
    let record = offer(target, load, times, watch).map_err(ClientError::Failed)?;
    if is_watched {
        eprint!("\r\x1b[K");
    }
    Ok(RateReport::new(rate, due_count, options.measured, &record))
}

/// Whoever reads may be gone.
fn print(output: &mut dyn Write, text: &str) {
    let _ = output.write_all(text.as_bytes());
    let _ = output.flush();
}

fn write(path: &Path, text: &str) -> Result<(), ClientError> {
    std::fs::write(path, text)
        .map_err(|cause| ClientError::Failed(format!("'{}': {cause}", path.display())))
}

/// For answers behind the last request of a rate. What is later is counted as not answered.
const GRACE: Duration = Duration::from_secs(2);
