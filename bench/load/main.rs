//! An open-loop load generator for HTTP/1.1 and gRPC: it sends at the times that the offered rate
//! asks for, whether or not earlier answers have come, and counts each latency from the time the
//! request was due. A server that stalls for a second is therefore charged for every request that
//! fell due in that second (no coordinated omission).
//!
//! One executor on one CPU: conch's own for HTTP/1.1, as it costs less than the server, glommio for
//! gRPC. HTTP/1.1 keeps one request at a time on each connection, so a late answer delays the
//! requests behind it, and their latency says so; with `--late=skip` those that fall due meanwhile
//! are not sent, but counted. gRPC sends on time and has many calls open on each connection.
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
use conch_executor::{LocalExecutor, Options, Task, spawn};
use futures_util::future::join_all;
use record::Record;
use schedule::{Arrivals, LatePolicy, Offer, Schedule};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

const USAGE: &str = "load --protocol=http|grpc --address=HOST:PORT --body=FILE \
                     [--path=/v2/models/identity/infer] [--json-bytes=N] [--rate=1000] \
                     [--arrivals=even|poisson] [--late=send|skip] [--connections=8] \
                     [--warm-up-seconds=1] [--seconds=10]";

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
    let late = arguments.take("late", LatePolicy::Send);
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
    let start = Instant::now();
    let offer = Offer {
        rate,
        connection_count,
        arrivals,
        late,
    };
    let clients = (0..connection_count).map(|index| {
        let (target, record) = (Rc::clone(&target), Rc::clone(&record));
        let schedule = Schedule::new(start, warm_up, measured, offer, index);
        async move {
            let outcome = match is_grpc {
                true => grpc::run(&target, schedule, &record).await,
                false => http1::run(&target, schedule, &record).await,
            };
            if let Err(reason) = outcome {
                record.borrow_mut().lose_connection(&reason);
            }
        }
    });
    if is_grpc {
        executor::run(async {
            join_all(clients.map(glommio::spawn_local)).await;
        });
    } else {
        let own = LocalExecutor::new(&Options::default())
            .unwrap_or_else(|error| exit(&format!("no executor: {error}")));
        own.run(all(clients.collect()))
            .unwrap_or_else(|error| exit(&format!("the ring failed: {error}")));
    }
    let record = record.borrow();
    println!("{}", record.report(rate, measured));
    if record.has_failures() {
        std::process::exit(1);
    }
}

/// Runs `clients`, each as a task of its own, until all are over.
async fn all<Client: Future<Output = ()> + 'static>(clients: Vec<Client>) {
    let left = Rc::new(Cell::new(clients.len()));
    let waker: Rc<RefCell<Option<Waker>>> = Rc::default();
    let tasks: Vec<Task> = clients
        .into_iter()
        .map(|client| {
            let (left, waker) = (Rc::clone(&left), Rc::clone(&waker));
            spawn(async move {
                client.await;
                left.set(left.get() - 1);
                if let (0, Some(waker)) = (left.get(), &*waker.borrow()) {
                    waker.wake_by_ref();
                }
            })
        })
        .collect();
    poll_fn(|context| {
        *waker.borrow_mut() = Some(context.waker().clone());
        match left.get() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
    drop(tasks);
}

fn exit(reason: &str) -> ! {
    eprintln!("{reason}\nusage: {USAGE}");
    std::process::exit(2)
}
