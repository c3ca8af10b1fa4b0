//! Over compio. Its reads own their buffers.

use std::io;

use compio::BufResult;
use compio::driver::ProactorBuilder;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::RuntimeBuilder;

use crate::request::{REPLY, whole_request};
use crate::worker::Worker;
use crate::{ADDRESS, BUFFER_BYTES, print_port};

pub(crate) fn serve(worker: Worker) -> io::Result<()> {
    let mut proactor = ProactorBuilder::new();
    // Without these two each completion interrupts the thread.
    proactor
        .capacity(1024)
        .coop_taskrun(true)
        .taskrun_flag(true);
    let runtime = RuntimeBuilder::new().with_proactor(proactor).build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind(ADDRESS).await?;
        print_port(listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            compio::runtime::spawn(answer(stream, worker.clone())).detach();
        }
    })
}

async fn answer(mut stream: TcpStream, worker: Worker) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut held = Vec::with_capacity(BUFFER_BYTES);
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    loop {
        if let Some(length) = whole_request(&held) {
            worker.look().await;
            if stream.write_all(REPLY).await.0.is_err() {
                return;
            }
            held.drain(..length);
            continue;
        }
        buffer.clear();
        let received;
        BufResult(received, buffer) = stream.read(buffer).await;
        match received {
            Ok(0) | Err(_) => return,
            Ok(count) => held.extend_from_slice(&buffer[..count]),
        }
    }
}
