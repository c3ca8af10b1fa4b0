//! One HTTP/1.1 connection: one request at a time, kept alive.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{IoSlice, Write as _};
use std::time::Instant;

use conch_executor::{Socket, Timer};

use super::due_times::DueTimes;
use super::head::HttpResponseHead;
use super::record::LatencyRecord;
use super::target::LoadTarget;

/// Sends the requests that are due and records their answers. `done` counts those, of all that were
/// due, that need no answer any more.
///
/// # Errors
/// The reason why the connection could not be used to the end.
pub(super) async fn run(
    target: &LoadTarget,
    mut due_times: DueTimes,
    record: &RefCell<LatencyRecord>,
    done: &Cell<u64>,
) -> Result<(), String> {
    let connected = target.address.connect();
    let mut socket = connected.map_err(|error| format!("connect: {error}"))?;
    let head = head(target);
    let mut reply = vec![0; REPLY_BYTES];
    while let Some(turn) = due_times.next(Instant::now()) {
        let wait = turn.due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            Timer::after(wait).await;
        }
        let sent = send(&mut socket, &head, &target.body).await;
        sent.map_err(|error| format!("send: {error}"))?;
        let outcome = receive(&mut socket, &mut reply).await?;
        done.set(done.get() + 1);
        if due_times.times().counts(turn.due) {
            let mut record = record.borrow_mut();
            record.skip(turn.skipped_count);
            match outcome {
                Ok(()) => record.answer(turn.due, Instant::now()),
                Err(reason) => record.fail(&reason),
            }
        }
    }
    Ok(())
}

async fn send(socket: &mut Socket, head: &[u8], body: &[u8]) -> std::io::Result<()> {
    let mut sent_bytes = 0;
    loop {
        let (head_left, body_left) = match head.get(sent_bytes..) {
            Some(left) => (left, body),
            None => (
                &[][..],
                body.get(sent_bytes - head.len()..).unwrap_or_default(),
            ),
        };
        if head_left.is_empty() && body_left.is_empty() {
            return Ok(());
        }
        let pieces = [IoSlice::new(head_left), IoSlice::new(body_left)];
        let send = |socket| conch_net::send_vectored(socket, &pieces);
        sent_bytes += poll_fn(|context| socket.poll_send(context, send)).await?;
    }
}

fn head(target: &LoadTarget) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    let mut push = |line: std::fmt::Arguments<'_>| {
        bytes.write_fmt(line).expect("a vector takes any write");
    };
    push(format_args!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n",
        target.path,
        target.host,
        target.body.len()
    ));
    if let Some(json_bytes) = target.json_bytes {
        push(format_args!(
            "Inference-Header-Content-Length: {json_bytes}\r\n"
        ));
    }
    for (name, value) in &target.headers {
        push(format_args!("{name}: {value}\r\n"));
    }
    push(format_args!("\r\n"));
    bytes
}

/// Reads one whole response, of which a good one's body is passed over.
async fn receive(socket: &mut Socket, reply: &mut [u8]) -> Result<Result<(), String>, String> {
    let mut end = 0;
    let head = loop {
        if let Some(head) = HttpResponseHead::parse(reply.get(..end).unwrap_or_default())? {
            break head;
        }
        let room = reply.get_mut(end..).unwrap_or_default();
        if room.is_empty() {
            return Err(String::from("the response's head is too long"));
        }
        end += receive_some(socket, room).await?;
    };
    let body = reply.get(head.head_bytes..end).unwrap_or_default();
    let outcome = match head.status {
        200 => Ok(()),
        status => Err(format!("status {status}: {}", shown(body))),
    };
    let received = body.len() as u64;
    let mut left = head.body_bytes.checked_sub(received);
    while let Some(bytes @ 1..) = left {
        let room_bytes = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .min(reply.len());
        let room = reply.get_mut(..room_bytes).unwrap_or_default();
        left = bytes.checked_sub(receive_some(socket, room).await? as u64);
    }
    match left {
        Some(_) => Ok(outcome),
        None => Err(String::from("the server sent more than it said")),
    }
}

async fn receive_some(socket: &mut Socket, room: &mut [u8]) -> Result<usize, String> {
    let received = poll_fn(|context| {
        let target = &mut *room;
        let room_bytes = target.len();
        socket.poll_receive(context, room_bytes, |socket| {
            let mut target = target;
            conch_net::receive(socket, &mut target)
        })
    })
    .await;
    match received.map_err(|error| format!("receive: {error}"))? {
        0 => Err(String::from("closed by the server")),
        count => Ok(count),
    }
}

/// The beginning of what a server says to a request that it does not like.
fn shown(body: &[u8]) -> String {
    let start = body.get(..REASON_BYTES_MAX).unwrap_or(body);
    String::from_utf8_lossy(start).trim().to_owned()
}

/// A head, and pieces of the body.
const REPLY_BYTES: usize = 64 << 10;
const REASON_BYTES_MAX: usize = 200;
