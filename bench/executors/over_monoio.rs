//! Over monoio. Its reads own their buffers.

use std::io;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};

use crate::request::{REPLY, whole_request};
use crate::worker::Worker;
use crate::{ADDRESS, BUFFER_BYTES, print_port};

pub(crate) fn serve(worker: Worker) -> io::Result<()> {
    let builder = RuntimeBuilder::<IoUringDriver>::new();
    let mut runtime = builder.with_entries(1024).build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind(ADDRESS)?;
        print_port(listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            monoio::spawn(answer(stream, worker.clone()));
        }
    })
}

async fn answer(mut stream: TcpStream, worker: Worker) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut held = Vec::with_capacity(BUFFER_BYTES);
    let mut buffer = vec![0u8; BUFFER_BYTES];
    loop {
        if let Some(length) = whole_request(&held) {
            worker.look().await;
            if stream.write_all(REPLY).await.0.is_err() {
                return;
            }
            held.drain(..length);
            continue;
        }
        let received;
        (received, buffer) = stream.read(buffer).await;
        match received {
            Ok(0) | Err(_) => return,
            Ok(count) => held.extend_from_slice(&buffer[..count]),
        }
    }
}
