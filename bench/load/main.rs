//! An open-loop load generator for HTTP/1.1 and gRPC: it sends at the times that the offered rate
//! asks for, whether or not earlier answers have come, and counts each latency from the time the
//! request was due. A server that stalls for a second is therefore charged for every request that
//! fell due in that second (no coordinated omission).
//!
//! One glommio executor on one CPU. HTTP/1.1 keeps one request at a time on each connection, so a
//! late answer delays the requests behind it, and their latency says so; gRPC sends on time and has
//! many calls open on each connection.
//!
//! `--arrivals=poisson` spreads the requests as independent callers would, with the same times in
//! every run. With `--rate=0` the loop is closed: each connection sends again as soon as it is
//! answered.
#![forbid(unsafe_code)]

mod grpc;
mod http1;
mod record;
mod schedule;

use conch_bench::arguments::Arguments;
use conch_bench::executor;
use futures_util::future::join_all;
use record::Record;
use schedule::{Arrivals, Offer, Schedule};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

const USAGE: &str = "load --protocol=http|grpc --address=HOST:PORT --body=FILE \
                     [--path=/v2/models/identity/infer] [--json-bytes=N] [--rate=1000] \
                     [--arrivals=even|poisson] [--connections=8] [--warm-up-seconds=1] \
                     [--seconds=10]";

/// What one connection needs to know about the requests it sends.
struct Target {
    address: SocketAddr,
    path: String,
    /// The whole body: JSON and tensors, or one framed gRPC message.
    body: Vec<u8>,
    /// Length of the JSON in front of binary tensors, where there are any.
    json_bytes: Option<usize>,
}

fn main() {
    let mut arguments = Arguments::from_process(USAGE);
    let protocol = arguments.require("protocol");
    let is_grpc = match protocol.as_str() {
        "http" => false,
        "grpc" => true,
        _ => exit(&format!("unknown protocol '{protocol}'")),
    };
    let address = arguments.require("address");
    let file = arguments.require("body");
    let json_bytes: usize = arguments.take("json-bytes", 0);
    let path = if is_grpc {
        "/inference.GRPCInferenceService/ModelInfer"
    } else {
        "/v2/models/identity/infer"
    };
    let path = arguments.take("path", path.to_owned());
    let rate: f64 = arguments.take("rate", 1000.0);
    let arrivals = arguments.take("arrivals", Arrivals::Even);
    let connection_count: usize = arguments.take("connections", 8);
    let warm_up = Duration::from_secs_f64(arguments.take("warm-up-seconds", 1.0));
    let measured = Duration::from_secs_f64(arguments.take("seconds", 10.0));
    arguments.finish();
    let target = Rc::new(Target {
        address: address
            .parse()
            .unwrap_or_else(|_| exit(&format!("'{address}' is not HOST:PORT"))),
        path,
        body: std::fs::read(&file).unwrap_or_else(|error| exit(&format!("{file}: {error}"))),
        json_bytes: (json_bytes > 0).then_some(json_bytes),
    });
    let record = Rc::new(RefCell::new(Record::default()));
    executor::run(async {
        let start = Instant::now();
        let offer = Offer {
            rate,
            connection_count,
            arrivals,
        };
        let schedule = |index| Schedule::new(start, warm_up, measured, offer, index);
        let tasks: Vec<_> = (0..connection_count)
            .map(|index| {
                let (target, record) = (Rc::clone(&target), Rc::clone(&record));
                let schedule = schedule(index);
                glommio::spawn_local(async move {
                    let outcome = if is_grpc {
                        grpc::run(&target, schedule, &record).await
                    } else {
                        http1::run(&target, schedule, &record).await
                    };
                    if let Err(reason) = outcome {
                        record.borrow_mut().lose_connection(&reason);
                    }
                })
            })
            .collect();
        join_all(tasks).await;
    });
    let record = record.borrow();
    println!("{}", record.report(rate, measured));
    if record.has_failures() {
        std::process::exit(1);
    }
}

fn exit(reason: &str) -> ! {
    eprintln!("{reason}\nusage: {USAGE}");
    std::process::exit(2)
}
