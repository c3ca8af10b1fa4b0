//! Over glommio.

use std::io;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement};

use crate::request::{REPLY, whole_request};
use crate::worker::Worker;
use crate::{ADDRESS, BUFFER_BYTES, print_port};

pub(crate) fn serve(worker: Worker) -> io::Result<()> {
    let builder = LocalExecutorBuilder::new(Placement::Unbound);
    let executor = builder.io_memory(64 << 10).ring_depth(1024).make();
    executor.map_err(io::Error::from)?.run(async move {
        let listener = TcpListener::bind(ADDRESS).map_err(io::Error::from)?;
        print_port(listener.local_addr().map_err(io::Error::from)?);
        loop {
            let stream = listener.accept().await.map_err(io::Error::from)?;
            glommio::spawn_local(answer(stream, worker.clone())).detach();
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
