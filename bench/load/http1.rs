//! One HTTP/1.1 connection: one request at a time, kept alive.

use crate::Target;
use crate::record::Record;
use crate::schedule::Schedule;
use conch_bench::wire::response_head;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use glommio::net::TcpStream;
use glommio::timer::sleep;
use std::cell::RefCell;
use std::io::Write as _;
use std::time::Instant;

/// Sends the schedule's requests and records their answers.
///
/// # Errors
/// The reason why the connection could not be used to the end.
pub async fn run(
    target: &Target,
    mut schedule: Schedule,
    record: &RefCell<Record>,
) -> Result<(), String> {
    let mut stream = TcpStream::connect(target.address)
        .await
        .map_err(|error| format!("connect: {error}"))?;
    stream
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    let request = request(target);
    let mut reply = vec![0; 64 << 10];
    while let Some(due) = schedule.next(Instant::now()) {
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let sent = stream.write_all(&request).await;
        sent.map_err(|error| format!("send: {error}"))?;
        let status = receive(&mut stream, &mut reply).await?;
        if schedule.counts(due) {
            match status {
                200 => record.borrow_mut().answer(due),
                _ => record.borrow_mut().fail(&format!("status {status}")),
            }
        }
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
async fn receive(stream: &mut TcpStream, reply: &mut Vec<u8>) -> Result<u16, String> {
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
        let received = stream.read(&mut reply[end..]).await;
        match received.map_err(|error| format!("receive: {error}"))? {
            0 => return Err("closed by the server".to_owned()),
            count => end += count,
        }
    }
}
