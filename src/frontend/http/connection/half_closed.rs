//! A client that has ended its side while its request is being served.
//!
//! It may have gone, or only sent all that it has to send (`nc -N` does, and some proxies): the end
//! of the input is the same in both cases, and the second kind waits for its answer. The two are
//! told apart by what the client's kernel makes of a byte that we send: it takes it, or it answers
//! with a reset. So as soon as the input ends, the first bytes of the answer are sent ahead, which
//! are the same whatever the answer will be: its version, or a leading zero of the next chunk's
//! size. After that the socket is looked at now and then.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use super::state::{ConnectionClosed, HttpConnection, SendAhead};
use crate::http::answer::version_text;
use crate::shard::{Timer, WaitReason};

/// The first look for a reset: on one machine it comes at once.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// Looks are farther and farther apart, up to this.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// A leading zero of a size in hexadecimal, which changes nothing of it.
const LEADING_ZERO: &[u8] = b"0";

impl HttpConnection {
    /// Waits for `reply` as long as the client can be written to.
    pub(super) async fn await_half_closed<F: Future>(
        &mut self,
        mut reply: Pin<&mut F>,
    ) -> Result<F::Output, ConnectionClosed> {
        // What is there already is about to be written, and need not be announced.
        let first = poll_fn(|context| Poll::Ready(reply.as_mut().poll(context))).await;
        if let Poll::Ready(outcome) = first {
            return Ok(outcome);
        }
        self.send_ahead().await?;
        let mut pause = FIRST_LOOK;
        loop {
            let mut timer = Timer::after(pause);
            let outcome = poll_fn(|context| match reply.as_mut().poll(context) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending => Pin::new(&mut timer).poll(context).map(|()| None),
            })
            .await;
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
            if conch_net::is_reset(self.stream.socket()) {
                return Err(ConnectionClosed);
            }
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    async fn send_ahead(&mut self) -> Result<(), ConnectionClosed> {
        let ahead = match self.ahead {
            SendAhead::Nothing => return Ok(()),
            SendAhead::Version { is_version_1_0 } => {
                // Once for the answer, however often it is waited for.
                self.version_is_sent = true;
                self.ahead = SendAhead::Nothing;
                version_text(is_version_1_0)
            }
            SendAhead::ChunkSize => LEADING_ZERO,
        };
        let outcome = self.send_bytes(ahead).await;
        self.guard.wait(WaitReason::Busy, 0);
        outcome
    }
}
