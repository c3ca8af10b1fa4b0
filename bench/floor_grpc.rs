//! The floor under gRPC: the barest h2 server on glommio that reads the bytes of an identity
//! ModelInfer call and writes the bytes of its reply, on one executor. What a real server costs
//! above it is that server's own work.
//!
//! One task per connection: it accepts every call that has arrived, then lets the calls answer,
//! then lets the connection send all answers at once. Written once; do not improve it together with
//! the server.
#![forbid(unsafe_code)]

use bytes::Bytes;
use conch_bench::adapter::Adapter;
use conch_bench::arguments::Arguments;
use conch_bench::{executor, wire};
use futures_util::stream::{FuturesUnordered, StreamExt};
use glommio::net::{TcpListener, TcpStream};
use h2::RecvStream;
use h2::server::SendResponse;
use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

/// Tensors up to this size are copied behind the reply's head, so that one DATA frame carries both.
const JOIN_BYTES_MAX: usize = 16 << 10;

fn main() {
    let mut arguments = Arguments::from_process("floor-grpc [--port=0]");
    let port: u16 = arguments.take("port", 0);
    arguments.finish();
    executor::run(async move {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        println!("floor-grpc listens at {address}");
        loop {
            let Ok(stream) = listener.accept().await else {
                continue;
            };
            // Without it every answer waits for the client's delayed acknowledgement.
            if stream.set_nodelay(true).is_err() {
                continue;
            }
            glommio::spawn_local(async move {
                // A connection that breaks ends alone; the client counts what it did not get.
                let _ = serve(stream).await;
            })
            .detach();
        }
    });
}

async fn serve(stream: TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(1 << 20)
        .initial_connection_window_size(16 << 20)
        .max_frame_size(1 << 20)
        .max_concurrent_streams(1024)
        .max_send_buffer_size(4 << 20)
        .handshake::<_, Bytes>(Adapter::new(stream))
        .await?;
    let last_head = RefCell::new((0, Vec::new()));
    let mut calls = FuturesUnordered::new();
    poll_fn(|context| {
        loop {
            loop {
                match connection.poll_accept(context) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        calls.push(answer(request.into_body(), respond, &last_head));
                    }
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break,
                }
            }
            let mut is_answered = false;
            while let Poll::Ready(Some(_)) = calls.poll_next_unpin(context) {
                is_answered = true;
            }
            if !is_answered {
                return Poll::Pending;
            }
        }
    })
    .await
}

async fn answer(
    mut body: RecvStream,
    mut respond: SendResponse<Bytes>,
    last_head: &RefCell<(usize, Vec<u8>)>,
) -> Result<(), h2::Error> {
    let mut first = Bytes::new();
    let mut message = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        if first.is_empty() && message.is_empty() {
            first = piece;
            continue;
        }
        if message.is_empty() {
            message.reserve_exact(framed_bytes(&first));
            message.extend_from_slice(&first);
        }
        message.extend_from_slice(&piece);
    }
    let message = if message.is_empty() {
        first
    } else {
        Bytes::from(message)
    };
    let tensor = message
        .get(5..)
        .and_then(wire::raw_input)
        .map(|range| message.slice(range.start + 5..range.end + 5))
        .unwrap_or_default();
    let head = http::Response::builder()
        .header("content-type", "application/grpc")
        .body(())
        .expect("the head is valid");
    let mut stream = respond.send_response(head, false)?;
    let mut reply = Vec::with_capacity(64 + tensor.len().min(JOIN_BYTES_MAX));
    reply_head(&mut reply, tensor.len(), last_head);
    if tensor.len() <= JOIN_BYTES_MAX {
        reply.extend_from_slice(&tensor);
        stream.send_data(Bytes::from(reply), false)?;
    } else {
        stream.send_data(Bytes::from(reply), false)?;
        stream.send_data(tensor, false)?;
    }
    let mut trailers = http::HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}

/// Appends the head of a reply, which is built anew only when the size of the tensor changes.
fn reply_head(reply: &mut Vec<u8>, tensor_bytes: usize, last: &RefCell<(usize, Vec<u8>)>) {
    let mut last = last.borrow_mut();
    if last.0 != tensor_bytes || last.1.is_empty() {
        *last = (tensor_bytes, wire::grpc_reply_head(tensor_bytes));
    }
    reply.extend_from_slice(&last.1);
}

/// The length that a gRPC frame's prefix announces, prefix included.
fn framed_bytes(start: &[u8]) -> usize {
    match start
        .get(1..5)
        .and_then(|length| <[u8; 4]>::try_from(length).ok())
    {
        Some(length) => u32::from_be_bytes(length) as usize + 5,
        None => start.len(),
    }
}
