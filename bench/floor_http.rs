//! The floor under HTTP: the barest server with epoll that reads the bytes of an identity inference
//! and writes the bytes of its reply, on one thread. What a real server costs above it is that
//! server's own work, and its executor's.
//!
//! It parses the head, receives the body in place, puts the reply's head right in front of the
//! tensor bytes and sends both with one write. Written once; do not improve it together with the
//! server.
#![forbid(unsafe_code)]

use conch_bench::arguments::Arguments;
use conch_bench::wire;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Room in front of the request for the reply's head, which is shorter than 400 bytes.
const HEADROOM_BYTES: usize = 1024;
/// What the kernel says of the listener; connections have their number.
const LISTENER: u64 = u64::MAX;
const EVENTS_MAX: usize = 64;

fn main() -> io::Result<()> {
    let mut arguments = Arguments::from_process("floor-http [--port=0]");
    let port: u16 = arguments.take("port", 0);
    arguments.finish();
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    println!("floor-http listens at {}", listener.local_addr()?);
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let readable = epoll::EventFlags::IN;
    epoll::add(
        &watch,
        &listener,
        epoll::EventData::new_u64(LISTENER),
        readable,
    )?;
    let mut connections: Vec<Option<FloorConnection>> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        events.clear();
        epoll::wait(&watch, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let number = event.data.u64();
            if number == LISTENER {
                let Ok((stream, _)) = listener.accept() else {
                    continue;
                };
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let data = epoll::EventData::new_u64(connections.len() as u64);
                epoll::add(&watch, &stream, data, readable)?;
                connections.push(Some(FloorConnection::new(stream)));
            } else if let Some(place) = connections.get_mut(number as usize)
                && let Some(connection) = place
                && connection.serve().is_err()
            {
                // A connection that breaks ends alone; the client counts what it did not get.
                *place = None;
            }
        }
    }
}

struct FloorConnection {
    stream: TcpStream,
    /// A reply's head ends where a request begins.
    buffer: Vec<u8>,
    end: usize,
    reply: Vec<u8>,
}

impl FloorConnection {
    fn new(stream: TcpStream) -> FloorConnection {
        FloorConnection {
            stream,
            buffer: vec![0; HEADROOM_BYTES + (8 << 10)],
            end: HEADROOM_BYTES,
            reply: Vec::with_capacity(HEADROOM_BYTES),
        }
    }

    /// Receives once, and answers what is there in full.
    fn serve(&mut self) -> io::Result<()> {
        if self.buffer.len() == self.end {
            self.buffer.resize(self.end * 2, 0);
        }
        match self.stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.end += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        while self.answer()? {}
        Ok(())
    }

    /// Answers the next request, if all of it is there.
    fn answer(&mut self) -> io::Result<bool> {
        let parsed = wire::request_head(&self.buffer[HEADROOM_BYTES..self.end]);
        let Some(head) = parsed.map_err(io::Error::other)? else {
            return Ok(false);
        };
        let body = HEADROOM_BYTES + head.head_bytes;
        let body_end = body + head.body_bytes;
        if self.end < body_end {
            if self.buffer.len() < body_end {
                self.buffer.resize(body_end, 0);
            }
            return Ok(false);
        }
        let kept = match head.json_bytes {
            Some(json_bytes) => {
                let tensor = (body + json_bytes).min(body_end);
                wire::binary_reply_head(&mut self.reply, body_end - tensor);
                tensor
            }
            None => {
                let data = wire::find(&self.buffer[body..body_end], b"\"data\"")
                    .ok_or_else(|| io::Error::other("no data"))?;
                wire::json_reply_head(&mut self.reply, "1,1000", head.body_bytes - data);
                body + data
            }
        };
        let start = kept - self.reply.len();
        self.buffer[start..kept].copy_from_slice(&self.reply);
        send(&self.stream, &self.buffer[start..body_end])?;
        self.buffer.copy_within(body_end..self.end, HEADROOM_BYTES);
        self.end = HEADROOM_BYTES + (self.end - body_end);
        Ok(true)
    }
}

/// Sends all of it. The clients read, so the wait for room is short.
fn send(mut stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut room = [PollFd::new(&stream, PollFlags::OUT)];
                poll(&mut room, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
