//! One HTTP/1.1 connection: one request at a time, kept alive.

use crate::Target;
use crate::record::Record;
use crate::schedule::Schedule;
use conch_bench::wire::response_head;
use conch_executor::{Socket, Timer};
use futures_util::future::{Either, select};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{IoSlice, Write as _};
use std::net::TcpStream;
use std::pin::pin;
use std::time::Instant;

/// Sends the schedule's requests and records their answers.
///
/// # Errors
/// The reason why the connection could not be used to the end.
pub async fn run(
    target: &Target,
    schedule: Schedule,
    record: &RefCell<Record>,
) -> Result<(), String> {
    let limit = schedule.give_up().saturating_duration_since(Instant::now());
    let exchange = pin!(exchange(target, schedule, record));
    match select(exchange, pin!(Timer::after(limit))).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err("no answer in time".to_owned()),
    }
}

async fn exchange(
    target: &Target,
    mut schedule: Schedule,
    record: &RefCell<Record>,
) -> Result<(), String> {
    let mut socket = connect(target).map_err(|error| format!("connect: {error}"))?;
    let request = request(target);
    let mut reply = vec![0; 4 << 10];
    while let Some(turn) = schedule.next(Instant::now()) {
        let wait = turn.due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            Timer::after(wait).await;
        }
        let sent = send(&mut socket, &request).await;
        sent.map_err(|error| format!("send: {error}"))?;
        let status = receive(&mut socket, &mut reply).await?;
        if schedule.counts(turn.due) {
            let mut record = record.borrow_mut();
            record.skip(turn.skipped_count);
            match status {
                200 => record.answer(turn.due),
                _ => record.fail(&format!("status {status}")),
            }
        }
    }
    Ok(())
}

fn connect(target: &Target) -> std::io::Result<Socket> {
    let stream = TcpStream::connect(target.address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Socket::new(stream.into()))
}

async fn send(socket: &mut Socket, request: &[u8]) -> std::io::Result<()> {
    let mut rest = request;
    while !rest.is_empty() {
        let send = |socket| conch_net::send_vectored(socket, &[IoSlice::new(rest)]);
        let sent = poll_fn(|context| socket.poll_send(context, send)).await?;
        rest = &rest[sent..];
    }
    Ok(())
}

fn request(target: &Target) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(target.body.len() + 512);
    write!(
        bytes,
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n",
        target.path,
        target.address,
        target.body.len()
    )
    .expect("a vector takes any write");
    if let Some(json_bytes) = target.json_bytes {
        write!(bytes, "Inference-Header-Content-Length: {json_bytes}\r\n")
            .expect("a vector takes any write");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&target.body);
    bytes
}

/// Reads one whole response and returns its status.
async fn receive(socket: &mut Socket, reply: &mut Vec<u8>) -> Result<u16, String> {
    let mut end = 0;
    let mut expected = None;
    loop {
        if expected.is_none()
            && let Some(head) = response_head(&reply[..end])?
        {
            let total = head.head_bytes + head.body_bytes;
            if reply.len() < total {
                reply.resize(total, 0);
            }
            expected = Some((total, head.status));
        }
        if let Some((total, status)) = expected
            && end >= total
        {
            return Ok(status);
        }
        if end == reply.len() {
            return Err("the response's head is too long".to_owned());
        }
        let room = &mut reply[end..];
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
            0 => return Err("closed by the server".to_owned()),
            count => end += count,
        }
    }
}
