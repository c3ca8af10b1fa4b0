//! The command line of `conch bench`.

use std::path::PathBuf;
use std::time::Duration;

use conch_client::ServerUrl;
use conch_client::load::{Arrivals, LoadProtocol};
use conch_client::options::{BenchOptions, DEFAULT_GRPC_URL, RateLadder};

use crate::client::ClientArguments;
use crate::client_words::{ClientWord, ClientWords};
use crate::flag::EarlyExit;

/// Reads the words behind `conch bench`.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn parse_bench(words: impl Iterator<Item = String>) -> Result<BenchOptions, EarlyExit> {
    let mut words = ClientWords::new(words, BENCH_HINT);
    let mut client = ClientArguments::new(BENCH_TIMEOUT)?;
    let mut protocol = LoadProtocol::Http;
    let mut arrivals = Arrivals::Poisson;
    let (mut rates, mut first, mut connections) = (None, 100.0, None);
    let (mut measured, mut warm_up) = (Duration::from_secs(5), Duration::from_secs(1));
    let (mut calls_max, mut latency_limit) = (1024, None);
    let (mut svg, mut json) = (None, None);
    while let Some(word) = words.next()? {
        // Load is not encrypted.
        let is_of_tls = matches!(&word, ClientWord::Option(name) if name == "ca-certificate");
        if !is_of_tls && client.take(&word, &mut words)? {
            continue;
        }
        let ClientWord::Option(name) = word else {
            continue;
        };
        match name.as_str() {
            "help" => return Err(EarlyExit::BenchHelp),
            "protocol" => {
                let choices = [("http", LoadProtocol::Http), ("grpc", LoadProtocol::Grpc)];
                protocol = words.choice(&name, &choices)?;
            }
            "arrivals" => {
                let choices = [("even", Arrivals::Even), ("poisson", Arrivals::Poisson)];
                arrivals = words.choice(&name, &choices)?;
            }
            "rates" => rates = Some(words.parsed(&name, parse_rates)?),
            "start-rate" => first = words.number(&name, RATE_MIN, RATE_MAX)?,
            "latency-limit-ms" => {
                let milliseconds = words.number(&name, 0.001, 60_000.0)?;
                latency_limit = Some(Duration::from_secs_f64(milliseconds / 1e3));
            }
            "seconds" => {
                measured = Duration::from_secs_f64(words.number(&name, 0.1, SECONDS_MAX)?);
            }
            "warm-up-seconds" => {
                warm_up = Duration::from_secs_f64(words.number(&name, 0.0, SECONDS_MAX)?);
            }
            "connections" => connections = Some(words.number(&name, 1, CONNECTIONS_MAX)?),
            "in-flight" => calls_max = words.number(&name, 1, CALLS_MAX)?,
            "svg" => svg = Some(PathBuf::from(words.value(&name)?)),
            "json" => json = Some(PathBuf::from(words.value(&name)?)),
            _ => return Err(words.bad(format!("There is no option --{name}"))),
        }
    }
    if protocol == LoadProtocol::Grpc && !client.has_url {
        client.server.url = ServerUrl::parse(DEFAULT_GRPC_URL).map_err(EarlyExit::BadCommand)?;
    }
    let default_connections = match protocol {
        LoadProtocol::Http => 64,
        LoadProtocol::Grpc => 4,
    };
    let model = client
        .model
        .ok_or_else(|| words.bad(String::from("No model is named")))?;
    Ok(BenchOptions {
        server: client.server,
        protocol,
        model,
        version: client.version,
        tensors: client.tensors,
        parameters: client.parameters,
        rates: rates.unwrap_or(RateLadder::Doubling { first }),
        measured,
        warm_up,
        arrivals,
        connection_count: connections.unwrap_or(default_connections),
        calls_max,
        latency_limit,
        svg,
        json,
    })
}

fn parse_rates(text: &str) -> Result<RateLadder, String> {
    let rate = |word: &str| {
        let rate = word.trim().parse().ok();
        rate.filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate))
    };
    let rates: Option<Vec<f64>> = text.split(',').map(rate).collect();
    match rates {
        Some(rates) if rates.len() <= RATES_MAX => Ok(RateLadder::Given(rates)),
        _ => Err(format!(
            "'{text}' is no list of up to {RATES_MAX} numbers from {RATE_MIN} to {RATE_MAX}"
        )),
    }
}

const BENCH_HINT: &str = "Usage: conch bench MODEL [options]; 'conch bench --help' tells more.";
/// For what is asked before the load.
const BENCH_TIMEOUT: Duration = Duration::from_secs(300);
const RATE_MIN: f64 = 0.1;
const RATE_MAX: f64 = 2_000_000.0;
const RATES_MAX: usize = 100;
/// An hour of each rate.
const SECONDS_MAX: f64 = 3_600.0;
/// Connections and calls that one process can be expected to have.
const CONNECTIONS_MAX: usize = 4_096;
const CALLS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<BenchOptions, EarlyExit> {
        parse_bench(line.split_whitespace().map(String::from))
    }

    #[test]
    fn words_become_options() {
        let plain = parsed("m").unwrap();
        assert_eq!(plain.rates, RateLadder::Doubling { first: 100.0 });
        assert_eq!(
            (plain.connection_count, plain.arrivals),
            (64, Arrivals::Poisson)
        );
        assert_eq!(plain.server.url.shown(), "http://127.0.0.1:8000");
        let full = parsed(
            "m --protocol=grpc --rates=1,2.5 --latency-limit-ms=2.5 --seconds=0.5 \
             --warm-up-seconds=0 --arrivals=even --connections=2 --in-flight=3 --svg=s --json=j \
             --random --version=2",
        )
        .unwrap();
        assert_eq!(full.protocol, LoadProtocol::Grpc);
        assert_eq!(full.server.url.shown(), "http://127.0.0.1:8001");
        assert_eq!(full.rates, RateLadder::Given(vec![1.0, 2.5]));
        assert_eq!(full.latency_limit, Some(Duration::from_micros(2500)));
        assert_eq!(
            (full.measured, full.warm_up),
            (Duration::from_millis(500), Duration::ZERO)
        );
        assert_eq!((full.connection_count, full.calls_max), (2, 3));
        assert_eq!(
            (full.svg, full.json),
            (Some(PathBuf::from("s")), Some(PathBuf::from("j")))
        );
        let url = parsed("m --protocol=grpc --url=h:1").unwrap().server.url;
        assert_eq!(url.shown(), "http://h:1");
    }

    #[test]
    fn words_that_say_nothing_are_refused() {
        for (line, expected) in [
            ("", "No model is named"),
            ("m --rates=", "is no list"),
            ("m --rates=1,0", "is no list"),
            ("m --rates=1,nan", "is no list"),
            ("m --start-rate=inf", "is no number"),
            ("m --connections=0", "is no number from 1 to 4096"),
            ("m --protocol=ftp", "is none of http, grpc"),
            (
                "m --ca-certificate=x",
                "There is no option --ca-certificate",
            ),
            ("m --output=x", "There is no option --output"),
        ] {
            let Err(EarlyExit::BadCommand(reason)) = parsed(line) else {
                panic!("{line}");
            };
            assert!(reason.contains(expected), "{line}: {reason}");
            assert!(reason.contains("Usage: conch bench MODEL"), "{reason}");
        }
        assert_eq!(parsed("m --help").unwrap_err(), EarlyExit::BenchHelp);
    }
}
