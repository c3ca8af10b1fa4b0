//! Waiting for the engine while the client may go away.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::state::{ConnectionClosed, HttpConnection};

impl HttpConnection {
    /// Waits for the engine, and for the client to go away: then the request is cancelled, as
    /// `reply` is dropped.
    pub(crate) async fn await_reply<F: Future>(
        &mut self,
        reply: F,
    ) -> Result<F::Output, ConnectionClosed> {
        let mut reply = pin!(reply);
        if !self.is_input_over {
            let shard = &*self.shard;
            let (stream, input) = (&mut self.stream, &mut self.input);
            let outcome = std::future::poll_fn(|context| {
                if let Poll::Ready(outcome) = reply.as_mut().poll(context) {
                    return Poll::Ready(Ok(Some(outcome)));
                }
                loop {
                    // As much as a head may have, and anew after a large body. A client that goes
                    // away behind more is noticed when it is written to.
                    let room = input.room_mut(shard.options.http_head_bytes_max, &shard.spares);
                    if room.is_empty() {
                        return Poll::Pending;
                    }
                    match stream.poll_receive(context, room) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Ok(0)) => return Poll::Ready(Ok(None)),
                        Poll::Ready(Ok(count)) => input.received(count),
                        Poll::Ready(Err(_)) => return Poll::Ready(Err(ConnectionClosed)),
                    }
                }
            })
            .await?;
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
            self.is_input_over = true;
        }
        // Boxed: rare, and what it keeps would make every connection larger.
        Box::pin(self.await_half_closed(reply)).await
    }
}
