//! An open-loop load generator for HTTP/1.1 and gRPC: the one of `conch bench`, at one rate, with
//! the bytes of a file as every request's body. See `conch_client::load`.
//!
//! With `--late=skip` requests that fall due while their connection waits for an answer are not
//! sent, but counted. `--arrivals=poisson` spreads the requests as independent callers would, with
//! the same times in every run. With `--rate=0` the loop is closed: each connection sends again as
//! soon as it is answered.
#![forbid(unsafe_code)]

use conch_bench::arguments::Arguments;
use conch_client::load::{
    Arrivals, LatePolicy, LoadAddress, LoadProtocol, LoadTarget, OfferedLoad, RunTimes, offer,
};
use std::time::{Duration, Instant};

const USAGE: &str = "load --protocol=http|grpc --address=HOST:PORT --body=FILE \
                     [--path=/v2/models/identity/infer] [--json-bytes=N] [--rate=1000] \
                     [--arrivals=even|poisson] [--late=send|skip] [--connections=8] \
                     [--warm-up-seconds=1] [--seconds=10]";

fn main() {
    let mut arguments = Arguments::from_process(USAGE);
    let protocol = arguments.require("protocol");
    let (protocol, path) = match protocol.as_str() {
        "http" => (LoadProtocol::Http, "/v2/models/identity/infer"),
        "grpc" => (
            LoadProtocol::Grpc,
            "/inference.GRPCInferenceService/ModelInfer",
        ),
        _ => exit(&format!("unknown protocol '{protocol}'")),
    };
    let address = arguments.require("address");
    let file = arguments.require("body");
    let json_bytes: usize = arguments.take("json-bytes", 0);
    let path = arguments.take("path", path.to_owned());
    let rate: f64 = arguments.take("rate", 1000.0);
    let load = OfferedLoad {
        rate,
        arrivals: arguments.take("arrivals", Arrivals::Even),
        late: arguments.take("late", LatePolicy::Send),
        connection_count: arguments.take("connections", 8),
    };
    let warm_up = Duration::from_secs_f64(arguments.take("warm-up-seconds", 1.0));
    let measured = Duration::from_secs_f64(arguments.take("seconds", 10.0));
    arguments.finish();
    let socket_address = address
        .parse()
        .unwrap_or_else(|_| exit(&format!("'{address}' is not HOST:PORT")));
    let body = std::fs::read(&file).unwrap_or_else(|error| exit(&format!("{file}: {error}")));
    let target = LoadTarget {
        protocol,
        address: LoadAddress::Tcp(socket_address),
        host: address,
        path,
        body: body.into(),
        json_bytes: (json_bytes > 0).then_some(json_bytes),
        headers: Vec::new(),
        calls_max: usize::MAX,
    };
    let times = RunTimes {
        start: Instant::now(),
        warm_up,
        measured,
        grace: Duration::from_secs(10),
    };
    let record = offer(&target, load, times, |_| {}).unwrap_or_else(|error| exit(&error));
    println!("{}", record.report(rate, measured));
    if record.has_failures() {
        std::process::exit(1);
    }
}

fn exit(reason: &str) -> ! {
    eprintln!("{reason}\nusage: {USAGE}");
    std::process::exit(2)
}
