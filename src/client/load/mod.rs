//! An open-loop load generator for HTTP/1.1 and gRPC: it sends at the times that the offered rate
//! asks for, whether or not earlier answers have come, and counts each latency from the time the
//! request was due. A server that stalls for a second is therefore charged for every request that
//! fell due in that second (no coordinated omission).
//!
//! One executor on the calling thread, which costs less than the server. HTTP/1.1 keeps one request
//! at a time on each connection, so a late answer delays the requests behind it, and their latency
//! says so. gRPC sends on time and has many calls open on each connection.

mod due_times;
mod grpc;
mod head;
mod http1;
mod record;
mod stream;
mod target;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use conch_executor::{LocalExecutor, Options, Task, Timer, spawn};
use futures_util::future::{Either, select};

pub use due_times::{Arrivals, DueTimes, LatePolicy, OfferedLoad, RunTimes};
pub(crate) use grpc::framed;
pub use record::LatencyRecord;
pub use target::{LoadAddress, LoadProtocol, LoadTarget};

/// Offers a load until it is over and its answers are there, or are given up. `watch` is told every
/// now and then how it goes.
///
/// # Errors
/// The kernel's: there is no ring.
pub fn offer(
    target: &LoadTarget,
    load: OfferedLoad,
    times: RunTimes,
    watch: impl Fn(&LatencyRecord) + 'static,
) -> Result<LatencyRecord, String> {
    let target = Rc::new(target.clone());
    let record = Rc::new(RefCell::new(LatencyRecord::new(times.end())));
    let executor = executor()?;
    let watched = Rc::clone(&record);
    let clients: Vec<_> = (0..load.connection_count)
        .map(|index| {
            let due_times = DueTimes::new(times, load, index);
            serve(Rc::clone(&target), due_times, Rc::clone(&record))
        })
        .collect();
    let ran = executor.run(async {
        let watching = spawn(async move {
            loop {
                Timer::after(WATCH_INTERVAL).await;
                watch(&watched.borrow());
            }
        });
        all(clients).await;
        drop(watching);
    });
    ran.map_err(|error| format!("the ring failed: {error}"))?;
    drop(executor);
    match Rc::try_unwrap(record) {
        Ok(record) => Ok(record.into_inner()),
        Err(_) => Err(String::from("a connection outlived its run")),
    }
}

/// One call of gRPC: the message of its answer.
///
/// # Errors
/// Why there is none.
pub(crate) fn call(target: &LoadTarget, timeout: Duration, max: usize) -> Result<Bytes, String> {
    let executor = executor()?;
    let answer = executor.run(grpc::call(target, timeout, max));
    answer.map_err(|error| format!("the ring failed: {error}"))?
}

fn executor() -> Result<LocalExecutor, String> {
    LocalExecutor::new(&Options::default()).map_err(|error| format!("no executor: {error}"))
}

/// Drives one connection to its end.
async fn serve(target: Rc<LoadTarget>, due_times: DueTimes, record: Rc<RefCell<LatencyRecord>>) {
    let done = Cell::new(0);
    let times = due_times.times();
    let limit = times.give_up().saturating_duration_since(Instant::now());
    let run = async {
        match target.protocol {
            LoadProtocol::Http => http1::run(&target, due_times.clone(), &record, &done).await,
            LoadProtocol::Grpc => grpc::run(&target, due_times.clone(), &record, &done).await,
        }
    };
    let reason = match select(pin!(run), pin!(Timer::after(limit))).await {
        Either::Left((Ok(()), _)) => return,
        Either::Left((Err(reason), _)) => reason,
        Either::Right(_) => String::from("no answer in time"),
    };
    let mut record = record.borrow_mut();
    record.lose_connection(&reason);
    if !due_times.has_own_times() {
        return;
    }
    // What is left of its requests, which is not to look better than what was answered late. Over
    // gRPC some later ones may have been answered instead.
    let mut rest = due_times;
    let mut index = 0;
    while let Some(turn) = rest.next(times.start) {
        index += 1;
        if index > done.get() && times.counts(turn.due) {
            record.leave_unanswered(turn.due, times.give_up());
        }
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

const WATCH_INTERVAL: Duration = Duration::from_millis(200);
