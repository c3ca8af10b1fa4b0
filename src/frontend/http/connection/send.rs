//! Answers on their way to the client.

use std::io::IoSlice;
use std::time::Duration;

use conch_memory::ByteView;
use smallvec::SmallVec;

use super::state::{ConnectionClosed, HttpConnection, RequestMeta, SendAhead, deadline_after};
use crate::http::answer::{BodyDelimiter, ContentType, HttpResponse, ResponseHeadOptions};
use crate::http::head::HeadRefusal;
use crate::shard::WaitReason;

/// Answers up to this size are copied together and sent by one plain call, which is cheaper then;
/// above, the parts are sent by reference.
pub(super) const COPIED_BYTES_MAX: usize = 16 << 10;
/// Collected answers to pipelined requests before they are sent.
pub(super) const COLLECTED_BYTES_MAX: usize = 64 << 10;
/// After a refusal the client may still be sending; if we closed at once, the reset could overtake
/// the answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 4 << 20;

impl HttpConnection {
    /// The answer's first bytes are written next.
    pub(super) fn note_sending(&self) {
        if let Some(traced) = &self.traced {
            traced.reach("HTTP_SEND_START");
        }
    }

    fn note_sent(&mut self) {
        if let Some(traced) = self.traced.take() {
            traced.reach("HTTP_SEND_END");
        }
    }

    /// Collects an answer's head.
    pub(super) fn write_head(
        &mut self,
        answer: &HttpResponse,
        meta: &RequestMeta,
        closes: bool,
        delimiting: BodyDelimiter,
    ) {
        if self.out.capacity() == 0 {
            self.out = self.shard.spares.take_output();
        }
        let options = ResponseHeadOptions {
            is_version_1_0: meta.is_version_1_0,
            version_is_sent: std::mem::take(&mut self.version_is_sent),
            connection: match (closes, meta.is_version_1_0) {
                (true, _) => Some("close"),
                (false, true) => Some("keep-alive"),
                (false, false) => None,
            },
            delimiting,
            allowed_origin: meta.allowed_origin.as_deref(),
        };
        answer.write_head(&mut self.out, options);
        self.ahead = SendAhead::Nothing;
    }

    /// Sends an answer, or collects it if more requests are waiting.
    pub(super) async fn send(
        &mut self,
        answer: &HttpResponse,
        meta: &RequestMeta,
        closes: bool,
    ) -> Result<(), ConnectionClosed> {
        self.note_sending();
        self.write_head(answer, meta, closes, BodyDelimiter::Length);
        if meta.is_head {
            return Ok(());
        }
        if answer.length() <= COPIED_BYTES_MAX {
            self.out.extend_from_slice(&answer.body);
            for part in &answer.parts {
                self.out.extend_from_slice(part.as_ref());
            }
            if self.out.len() > COLLECTED_BYTES_MAX {
                self.flush().await?;
            }
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        let mut pieces: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        pieces.push(IoSlice::new(&out));
        pieces.push(IoSlice::new(&answer.body));
        pieces.extend(answer.parts.iter().map(ByteView::to_send));
        let outcome = self.send_pieces(&mut pieces).await;
        drop(pieces);
        self.guard.wait(WaitReason::Busy, 0);
        self.out = out;
        self.out.clear();
        self.note_sent();
        outcome
    }

    pub(super) async fn send_pieces(
        &mut self,
        mut pieces: &mut [IoSlice<'_>],
    ) -> Result<(), ConnectionClosed> {
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            self.guard.wait(
                WaitReason::Sending,
                deadline_after(self.shard.options.http_stall_timeout),
            );
            let sent =
                std::future::poll_fn(|context| self.stream.poll_send_vectored(context, pieces))
                    .await
                    .map_err(|_| ConnectionClosed)?;
            if sent == 0 {
                return Err(ConnectionClosed);
            }
            self.budget.note_moved(sent);
            if !self.stream.is_plain() {
                // The socket takes it from a client that is always faster than the cipher.
                self.turn.spend(self.stream.work_bytes(sent)).await;
            }
            IoSlice::advance_slices(&mut pieces, sent);
        }
        Ok(())
    }

    pub(super) async fn flush(&mut self) -> Result<(), ConnectionClosed> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        let outcome = self.send_bytes(&out).await;
        self.note_sent();
        self.out = out;
        self.out.clear();
        if self.out.capacity() > COLLECTED_BYTES_MAX {
            self.out = Vec::new();
        }
        outcome
    }

    pub(super) async fn send_bytes(&mut self, mut bytes: &[u8]) -> Result<(), ConnectionClosed> {
        // The deadline costs a look at the clock: set it only when the socket does not take
        // everything at once.
        let mut is_first = true;
        while !bytes.is_empty() {
            if !is_first {
                self.guard.wait(
                    WaitReason::Sending,
                    deadline_after(self.shard.options.http_stall_timeout),
                );
            }
            let sent = std::future::poll_fn(|context| {
                let outcome = self.stream.poll_send(context, bytes);
                if outcome.is_pending() && is_first {
                    let timeout = self.shard.options.http_stall_timeout;
                    self.guard
                        .wait(WaitReason::Sending, deadline_after(timeout));
                }
                outcome
            })
            .await
            .map_err(|_| ConnectionClosed)?;
            is_first = false;
            bytes = bytes.get(sent..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Answers what cannot be served and ends the connection.
    pub(super) async fn refuse(&mut self, refusal: &HeadRefusal) -> Result<(), ConnectionClosed> {
        self.state.refused();
        let answer = HttpResponse::failure(refusal.status, ContentType::Plain, &refusal.message);
        let options = ResponseHeadOptions {
            connection: Some("close"),
            ..ResponseHeadOptions::default()
        };
        answer.write_head(&mut self.out, options);
        self.out.extend_from_slice(&answer.body);
        self.linger().await
    }

    /// Sends what is collected, says that nothing more comes, and reads on for a while: closing on
    /// unread bytes would reset the connection and could take the answer away from the client.
    pub(super) async fn linger(&mut self) -> Result<(), ConnectionClosed> {
        self.flush().await?;
        let deadline_ns = deadline_after(LINGER);
        self.guard.wait(WaitReason::Sending, deadline_ns);
        std::future::poll_fn(|context| self.stream.poll_finish(context))
            .await
            .map_err(|_| ConnectionClosed)?;
        let mut received_bytes = 0;
        while received_bytes < LINGER_BYTES_MAX {
            let unused_count = self.input.unused().len();
            self.input.consume(unused_count);
            self.guard.wait(WaitReason::Receiving, deadline_ns);
            // Not what room is there: a large body has had it given back, and no room would look
            // like the client's end.
            let bytes_max = self.shard.options.http_head_bytes_max;
            let room = self.input.room_mut(bytes_max, &self.shard.spares);
            let count = self
                .turn
                .receive(&mut self.stream, room)
                .await
                .map_err(|_| ConnectionClosed)?;
            if count == 0 {
                break;
            }
            received_bytes += count;
        }
        Err(ConnectionClosed)
    }
}
