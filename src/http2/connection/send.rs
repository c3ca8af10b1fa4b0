//! Answers: their heads, their bodies as the client's windows let them go, their trailers.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::state::Connection;
use crate::error::{Reason, StreamClosed};
use crate::frame::{DATA, END_HEADERS, END_STREAM, FRAME_HEAD_BYTES, FrameHead, HEADERS};
use crate::hpack::HeaderField;
use crate::readers::BodyReader;
use crate::stream::SendState;

/// What a field takes beside its name and value, at most.
const FIELD_OVERHEAD_BYTES: usize = 16;
const TOO_LARGE: u16 = 431;

impl<R: BodyReader> Connection<R> {
    /// Queues the head of an answer, the first of its frames.
    ///
    /// # Errors
    /// The stream is gone, or has sent one before.
    pub fn send_head(
        &mut self,
        id: u32,
        status: u16,
        fields: &[HeaderField<'_>],
        ends_stream: bool,
    ) -> Result<(), StreamClosed> {
        self.check_sent(id, SendState::Nothing)?;
        self.push_block(id, Some(status), fields, ends_stream);
        self.set_sent(id, ends_stream);
        Ok(())
    }

    /// Queues the trailers of an answer, its last frame.
    ///
    /// # Errors
    /// The stream is gone, or has not sent its head.
    pub fn send_trailers(
        &mut self,
        id: u32,
        fields: &[HeaderField<'_>],
    ) -> Result<(), StreamClosed> {
        self.check_sent(id, SendState::Head)?;
        self.push_block(id, None, fields, true);
        self.set_sent(id, true);
        Ok(())
    }

    /// Queues as much of `payload` as the windows and the queue have room for, and takes it from
    /// `payload`; returns how much. Pending if there is no room.
    ///
    /// # Errors
    /// The stream is gone, or has not sent its head.
    pub fn poll_send_body(
        &mut self,
        id: u32,
        payload: &mut Bytes,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, StreamClosed>> {
        self.check_sent(id, SendState::Head)?;
        if payload.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let (queue_room, connection_window) = (self.queue.room(), self.send_window);
        let Some(stream) = self.streams.get(id) else {
            return Poll::Ready(Err(StreamClosed));
        };
        if stream.send_window <= 0 {
            // Its own window update wakes it.
            stream.set_waker(context.waker());
            return Poll::Pending;
        }
        let window = stream.send_window.min(connection_window).max(0) as usize;
        let count = payload.len().min(window).min(queue_room);
        if count == 0 {
            stream.set_waker(context.waker());
            if !std::mem::replace(&mut stream.is_waiting, true) {
                self.waiting.push_back(id);
            }
            return Poll::Pending;
        }
        stream.send_window -= count as i64;
        self.send_window -= count as i64;
        let mut part = payload.split_to(count);
        while !part.is_empty() {
            let frame = part.split_to(part.len().min(self.send_frame_bytes));
            self.push_data(id, frame);
        }
        Poll::Ready(Ok(count))
    }

    /// Resets a stream, if it is not over.
    pub fn reset(&mut self, id: u32, reason: Reason) {
        let is_open = self.streams.get(id).is_some_and(|stream| !stream.is_over());
        if is_open {
            self.push_reset(id, reason);
            self.stop(id, reason);
        }
    }

    /// Answers a request whose list of fields is too long.
    pub(super) fn refuse_list(&mut self, id: u32) {
        self.push_block(id, Some(TOO_LARGE), &[], true);
        if !self.block_ends_stream() {
            self.push_reset(id, Reason::NO_ERROR);
        }
    }

    fn check_sent(&mut self, id: u32, expected: SendState) -> Result<(), StreamClosed> {
        match self.streams.get(id) {
            Some(stream) if stream.reset.is_none() && stream.sent == expected => Ok(()),
            _ => Err(StreamClosed),
        }
    }

    fn set_sent(&mut self, id: u32, ends_stream: bool) {
        if let Some(stream) = self.streams.get(id) {
            stream.sent = match ends_stream {
                true => SendState::End,
                false => SendState::Head,
            };
        }
    }

    /// Queues a HEADERS frame. What we send fits into one.
    fn push_block(
        &mut self,
        stream: u32,
        status: Option<u16>,
        fields: &[HeaderField<'_>],
        ends_stream: bool,
    ) {
        let field_bytes = fields.iter().map(HeaderField::byte_count).sum::<usize>();
        let room = FRAME_HEAD_BYTES + field_bytes + (fields.len() + 1) * FIELD_OVERHEAD_BYTES;
        let encoder = &mut self.encoder;
        let mut head = FrameHead {
            kind: HEADERS,
            flags: END_HEADERS | if ends_stream { END_STREAM } else { 0 },
            stream,
            length: 0,
        };
        let is_queued = self.queue.write(room, |out| {
            let start = out.len();
            out.extend_from_slice(&head.bytes());
            match status {
                Some(status) => encoder.encode_status(out, status),
                None => encoder.begin(out),
            }
            for field in fields {
                encoder.encode(out, field);
            }
            head.length = out.len() - start - FRAME_HEAD_BYTES;
            if let Some(place) = out.get_mut(start..start + FRAME_HEAD_BYTES) {
                place.copy_from_slice(&head.bytes());
            }
            true
        });
        match is_queued {
            true => self.note_sent(head),
            false => self.fail(),
        }
    }

    fn push_data(&mut self, stream: u32, payload: Bytes) {
        let head = FrameHead {
            kind: DATA,
            flags: 0,
            stream,
            length: payload.len(),
        };
        match self.queue.push(&head.bytes()) && self.queue.push_payload(payload) {
            true => self.note_sent(head),
            false => self.fail(),
        }
    }
}
