//! Over conch's executor.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use conch_executor::{LocalExecutor, Options, Socket, spawn};

use crate::request::{REPLY, whole_request};
use crate::worker::Worker;
use crate::{ADDRESS, BUFFER_BYTES, print_port};

pub(crate) fn serve(worker: Worker) -> io::Result<()> {
    let listener = TcpListener::bind(ADDRESS)?;
    listener.set_nonblocking(true)?;
    print_port(listener.local_addr()?);
    let mut arrivals = Socket::new(OwnedFd::from(listener.try_clone()?));
    let executor = LocalExecutor::new(&Options::default())?;
    executor.run(async move {
        loop {
            let mut accepted = None;
            poll_fn(|context| {
                arrivals.poll_receive(context, 0, |_| {
                    accepted = Some(listener.accept()?.0);
                    Ok(1)
                })
            })
            .await?;
            if let Some(stream) = accepted {
                spawn(answer(stream, worker.clone())).detach();
            }
        }
    })?
}

async fn answer(stream: TcpStream, worker: Worker) {
    if stream.set_nodelay(true).is_err() || stream.set_nonblocking(true).is_err() {
        return;
    }
    let mut socket = Socket::new(OwnedFd::from(stream));
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let mut end = 0;
    loop {
        if let Some(length) = whole_request(&buffer[..end]) {
            worker.look().await;
            let send = |descriptor| conch_net::send_vectored(descriptor, &[IoSlice::new(REPLY)]);
            if poll_fn(|context| socket.poll_send(context, send))
                .await
                .is_err()
            {
                return;
            }
            buffer.copy_within(length..end, 0);
            end -= length;
            continue;
        }
        let mut place = &mut buffer[end..];
        let room = place.len();
        let received = poll_fn(|context| {
            socket.poll_receive(context, room, |descriptor| {
                conch_net::receive(descriptor, &mut place)
            })
        });
        match received.await {
            Ok(0) | Err(_) => return,
            Ok(count) => end += count,
        }
    }
}
