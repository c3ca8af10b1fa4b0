//! One gRPC connection: calls are opened when they are due, however many are still unanswered.

use crate::Target;
use crate::record::Record;
use crate::schedule::Schedule;
use bytes::Bytes;
use conch_bench::adapter::Adapter;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use glommio::net::TcpStream;
use glommio::timer::sleep;
use h2::client::{ResponseFuture, SendRequest};
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::time::Instant;

/// Sends the schedule's calls and records their answers.
///
/// # Errors
/// The reason why the connection could not be used to the end.
pub async fn run(
    target: &Target,
    mut schedule: Schedule,
    record: &RefCell<Record>,
) -> Result<(), String> {
    let stream = TcpStream::connect(target.address)
        .await
        .map_err(|error| format!("connect: {error}"))?;
    stream
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(4 << 20)
        .initial_connection_window_size(64 << 20)
        .max_frame_size(1 << 20)
        .handshake::<_, Bytes>(Adapter::new(stream))
        .await
        .map_err(|error| format!("handshake: {error}"))?;
    let driver = glommio::spawn_local(connection);
    let body = Bytes::from(target.body.clone());
    let mut calls = FuturesUnordered::new();
    while let Some(turn) = schedule.next(Instant::now()) {
        let due = turn.due;
        if schedule.counts(due) {
            record.borrow_mut().skip(turn.skipped_count);
        }
        wait_until(due, &mut calls).await;
        client = client
            .ready()
            .await
            .map_err(|error| format!("connection: {error}"))?;
        let response = open(&mut client, target, &body)?;
        calls.push(finish(response, due, schedule.counts(due), record));
        if schedule.is_closed() {
            calls.next().await;
        }
    }
    let rest = pin!(async { while calls.next().await.is_some() {} });
    let limit = pin!(sleep(
        schedule.give_up().saturating_duration_since(Instant::now())
    ));
    if let Either::Right(_) = select(rest, limit).await {
        return Err("some calls were never answered".to_owned());
    }
    drop(client);
    driver.cancel().await;
    Ok(())
}

/// Waits until `due` and lets open calls finish meanwhile.
async fn wait_until<Call: Future<Output = ()>>(due: Instant, calls: &mut FuturesUnordered<Call>) {
    let mut timer = pin!(sleep(due.saturating_duration_since(Instant::now())));
    if due <= Instant::now() {
        return;
    }
    while !calls.is_empty() {
        if let Either::Right(_) = select(calls.next(), timer.as_mut()).await {
            return;
        }
    }
    timer.await;
}

fn open(
    client: &mut SendRequest<Bytes>,
    target: &Target,
    body: &Bytes,
) -> Result<ResponseFuture, String> {
    let request = http::Request::post(format!("http://{}{}", target.address, target.path))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(|error| error.to_string())?;
    let (response, mut stream) = client
        .send_request(request, false)
        .map_err(|error| format!("send: {error}"))?;
    stream
        .send_data(body.clone(), true)
        .map_err(|error| format!("send: {error}"))?;
    Ok(response)
}

async fn finish(response: ResponseFuture, due: Instant, counts: bool, record: &RefCell<Record>) {
    let outcome = read(response).await;
    if counts {
        match outcome {
            Ok(()) => record.borrow_mut().answer(due),
            Err(reason) => record.borrow_mut().fail(&reason),
        }
    }
}

async fn read(response: ResponseFuture) -> Result<(), String> {
    let (head, mut body) = response
        .await
        .map_err(|error| error.to_string())?
        .into_parts();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(|error| error.to_string())?;
        body.flow_control()
            .release_capacity(piece.len())
            .map_err(|error| error.to_string())?;
    }
    let trailers = body.trailers().await.map_err(|error| error.to_string())?;
    let status = trailers
        .as_ref()
        .and_then(|fields| fields.get("grpc-status"))
        .or_else(|| head.headers.get("grpc-status"));
    match status.map(http::HeaderValue::as_bytes) {
        Some(b"0") => Ok(()),
        Some(other) => Err(format!("grpc-status {}", String::from_utf8_lossy(other))),
        None => Err("no grpc-status".to_owned()),
    }
}
