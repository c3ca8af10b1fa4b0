//! The floor under HTTP: the barest glommio server that reads the bytes of an identity inference
//! and writes the bytes of its reply, on one executor. What a real server costs above it is that
//! server's own work.
//!
//! It parses the head, receives the body in place, puts the reply's head right in front of the
//! tensor bytes and sends both with one write. Written once; do not improve it together with the
//! server.
#![forbid(unsafe_code)]

use conch_bench::arguments::Arguments;
use conch_bench::{executor, wire};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use std::io;

/// Room in front of the request for the reply's head, which is shorter than 400 bytes.
const HEADROOM_BYTES: usize = 1024;

fn main() {
    let mut arguments = Arguments::from_process("floor-http [--port=0]");
    let port: u16 = arguments.take("port", 0);
    arguments.finish();
    executor::run(async move {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        println!("floor-http listens at {address}");
        loop {
            let Ok(stream) = listener.accept().await else {
                continue;
            };
            glommio::spawn_local(async move {
                // A connection that breaks ends alone; the client counts what it did not get.
                let _ = serve(stream).await;
            })
            .detach();
        }
    });
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; HEADROOM_BYTES + (8 << 10)];
    let mut end = HEADROOM_BYTES;
    let mut reply = Vec::with_capacity(HEADROOM_BYTES);
    loop {
        let head = loop {
            let parsed = wire::request_head(&buffer[HEADROOM_BYTES..end]);
            if let Some(head) = parsed.map_err(io::Error::other)? {
                break head;
            }
            end += receive(&mut stream, &mut buffer, end).await?;
        };
        let body = HEADROOM_BYTES + head.head_bytes;
        let body_end = body + head.body_bytes;
        if buffer.len() < body_end {
            buffer.resize(body_end, 0);
        }
        while end < body_end {
            end += receive(&mut stream, &mut buffer, end).await?;
        }
        let kept = match head.json_bytes {
            Some(json_bytes) => {
                let tensor = (body + json_bytes).min(body_end);
                wire::binary_reply_head(&mut reply, body_end - tensor);
                tensor
            }
            None => {
                let data = wire::find(&buffer[body..body_end], b"\"data\"")
                    .ok_or_else(|| io::Error::other("no data"))?;
                wire::json_reply_head(&mut reply, "1,1000", head.body_bytes - data);
                body + data
            }
        };
        let start = kept - reply.len();
        buffer[start..kept].copy_from_slice(&reply);
        stream.write_all(&buffer[start..body_end]).await?;
        buffer.copy_within(body_end..end, HEADROOM_BYTES);
        end = HEADROOM_BYTES + (end - body_end);
    }
}

async fn receive(stream: &mut TcpStream, buffer: &mut Vec<u8>, end: usize) -> io::Result<usize> {
    if buffer.len() == end {
        buffer.resize(end * 2, 0);
    }
    match stream.read(&mut buffer[end..]).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}
