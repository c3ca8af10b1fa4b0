//! One gRPC connection: calls are opened when they are due, however many are still unanswered, up
//! to a bound.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use conch_executor::{Task, Timer, spawn};
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::client::{ResponseFuture, SendRequest};
use percent_encoding::percent_decode_str;

use super::due_times::DueTimes;
use super::record::LatencyRecord;
use super::stream::SocketStream;
use super::target::LoadTarget;

/// Sends the calls that are due and records their answers. `done` counts those that are answered.
///
/// # Errors
/// The reason why the connection could not be used to the end.
pub(super) async fn run(
    target: &LoadTarget,
    mut due_times: DueTimes,
    record: &RefCell<LatencyRecord>,
    done: &Cell<u64>,
) -> Result<(), String> {
    let (mut client, driver) = connect(target).await?;
    let times = due_times.times();
    let mut calls = FuturesUnordered::new();
    while let Some(turn) = due_times.next(Instant::now()) {
        let due = turn.due;
        if times.counts(due) {
            record.borrow_mut().skip(turn.skipped_count);
        }
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            beside(Timer::after(wait), &mut calls).await;
        }
        let ready = beside(client.ready(), &mut calls).await;
        client = ready.map_err(|error| format!("connection: {error}"))?;
        let response = open(&mut client, target)?;
        calls.push(async move {
            let outcome = read(response, 0).await;
            done.set(done.get() + 1);
            if times.counts(due) {
                match outcome {
                    Ok(_) => record.borrow_mut().answer(due, Instant::now()),
                    Err(reason) => record.borrow_mut().fail(&reason),
                }
            }
        });
        while due_times.is_closed() && !calls.is_empty() || calls.len() >= target.calls_max.max(1) {
            calls.next().await;
        }
    }
    while calls.next().await.is_some() {}
    drop(client);
    drop(driver);
    Ok(())
}

/// One call on a connection of its own: the message of its answer, of `bytes_max` bytes at most.
///
/// # Errors
/// Why there is none.
pub(crate) async fn call(
    target: &LoadTarget,
    timeout: Duration,
    bytes_max: usize,
) -> Result<Bytes, String> {
    let asked = pin!(async {
        let (mut client, driver) = connect(target).await?;
        client = client.ready().await.map_err(|error| error.to_string())?;
        let answer = read(open(&mut client, target)?, bytes_max).await;
        drop(driver);
        answer
    });
    match select(asked, pin!(Timer::after(timeout))).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(format!("no answer within {} s", timeout.as_secs_f64())),
    }
}

async fn connect(target: &LoadTarget) -> Result<(SendRequest<Bytes>, Task), String> {
    let connected = target.address.connect();
    let socket = connected.map_err(|error| format!("connect: {error}"))?;
    let (client, connection) = h2::client::Builder::new()
        .initial_window_size(4 << 20)
        .initial_connection_window_size(64 << 20)
        .max_frame_size(1 << 20)
        .handshake::<_, Bytes>(SocketStream::new(socket))
        .await
        .map_err(|error| format!("handshake: {error}"))?;
    let driver = spawn(async move {
        // Calls say what became of them.
        let _ = connection.await;
    });
    Ok((client, driver))
}

/// Waits for `awaited` and lets open calls finish meanwhile.
async fn beside<Output, Call: Future<Output = ()>>(
    awaited: impl Future<Output = Output>,
    calls: &mut FuturesUnordered<Call>,
) -> Output {
    let mut awaited = pin!(awaited);
    poll_fn(|context| {
        while let std::task::Poll::Ready(Some(())) = calls.poll_next_unpin(context) {}
        awaited.as_mut().poll(context)
    })
    .await
}

fn open(client: &mut SendRequest<Bytes>, target: &LoadTarget) -> Result<ResponseFuture, String> {
    let mut request = http::Request::post(format!("http://{}{}", target.host, target.path))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in &target.headers {
        request = request.header(name, value);
    }
    let request = request.body(()).map_err(|error| error.to_string())?;
    let (response, mut stream) = client
        .send_request(request, false)
        .map_err(|error| format!("send: {error}"))?;
    stream
        .send_data(target.body.clone(), true)
        .map_err(|error| format!("send: {error}"))?;
    Ok(response)
}

/// Reads an answer, and keeps its message if it may have any bytes.
async fn read(response: ResponseFuture, bytes_max: usize) -> Result<Bytes, String> {
    let (head, mut body) = response
        .await
        .map_err(|error| error.to_string())?
        .into_parts();
    let mut message = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(|error| error.to_string())?;
        body.flow_control()
            .release_capacity(piece.len())
            .map_err(|error| error.to_string())?;
        if bytes_max > 0 {
            message.extend_from_slice(&piece);
            if message.len() > bytes_max {
                return Err(String::from("the answer is too long"));
            }
        }
    }
    let trailers = body.trailers().await.map_err(|error| error.to_string())?;
    let field = |name: &str| {
        let fields = trailers.as_ref();
        let value = fields.and_then(|fields| fields.get(name));
        let value = value.or_else(|| head.headers.get(name));
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    match field("grpc-status").as_deref() {
        // Behind the prefix of the one message there is.
        Some("0") if message.len() >= PREFIX_BYTES => Ok(message.freeze().slice(PREFIX_BYTES..)),
        Some("0") => Ok(Bytes::new()),
        Some(status) => {
            let said = field("grpc-message").unwrap_or_default();
            let said = percent_decode_str(&said).decode_utf8_lossy();
            Err(format!("grpc-status {status}: {said}"))
        }
        None => Err(String::from("no grpc-status")),
    }
}

/// A message with the prefix that it has in a call.
///
/// # Errors
/// It is longer than gRPC allows.
pub(crate) fn framed(message: &[u8]) -> Result<Bytes, String> {
    let length = u32::try_from(message.len())
        .map_err(|_| String::from("a message of gRPC has less than 4 GiB"))?;
    Ok(Bytes::from(
        [&[0], &length.to_be_bytes()[..], message].concat(),
    ))
}

const PREFIX_BYTES: usize = 5;
