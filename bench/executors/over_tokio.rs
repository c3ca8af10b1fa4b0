//! Over tokio, with one thread.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

use crate::request::{REPLY, whole_request};
use crate::worker::Worker;
use crate::{ADDRESS, BUFFER_BYTES, print_port};

pub(crate) fn serve(worker: Worker) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    LocalSet::new().block_on(&runtime, async move {
        let listener = TcpListener::bind(ADDRESS).await?;
        print_port(listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            spawn_local(answer(stream, worker.clone()));
        }
    })
}

async fn answer(mut stream: TcpStream, worker: Worker) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let mut end = 0;
    loop {
        if let Some(length) = whole_request(&buffer[..end]) {
            worker.look().await;
            if stream.write_all(REPLY).await.is_err() {
                return;
            }
            buffer.copy_within(length..end, 0);
            end -= length;
            continue;
        }
        match stream.read(&mut buffer[end..]).await {
            Ok(0) | Err(_) => return,
            Ok(count) => end += count,
        }
    }
}
