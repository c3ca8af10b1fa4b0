//! What is known of a connection, and what calls ask of it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::header_block::HeaderBlock;
use super::limits::{
    CONNECTION_WINDOW_BYTES, EXPECTED_FRAMES_MAX, FIRST_FRAME_BYTES, FIRST_WINDOW_BYTES,
    STREAM_WINDOW_BYTES,
};
use super::position::FrameReader;
use super::settings::our_settings;
use crate::error::{BodyError, ConnectionError, Reason};
use crate::floods::FloodLimits;
use crate::frame::{self, DATA, FrameHead, HEADERS, STREAM_MASK, WINDOW_UPDATE};
use crate::head::RequestHeaders;
use crate::hpack::{Decoder, Encoder};
use crate::outgoing::OutgoingQueue;
use crate::pings::{PingPolicy, PingStrikes};
use crate::readers::{AttachedReaders, BodyReader};
use crate::stream::{SendState, StreamTable};

/// A request whose head has come.
#[derive(Debug)]
pub struct AcceptedRequest {
    pub stream: u32,
    pub head: RequestHeaders,
}

/// The server's side of one connection. `R` reads bodies.
pub struct Connection<R: BodyReader> {
    pub(crate) frames: FrameReader,
    pub(crate) block: HeaderBlock,
    pub(crate) decoder: Decoder,
    pub(crate) accepted: VecDeque<AcceptedRequest>,
    /// Of those, how many were reset.
    pub(crate) accepted_resets: u32,
    pub(crate) streams: StreamTable,
    pub(crate) readers: AttachedReaders<R>,
    /// The highest that the client has opened, or tried to.
    pub(crate) last_stream: u32,
    /// StreamTable beyond this are not served.
    pub(crate) named_last: Option<u32>,
    /// The client has said that it opens no more streams.
    pub(crate) is_client_leaving: bool,
    /// What the client may still send.
    pub(crate) receive_window: i64,
    /// Received and taken; the connection's window has not been opened for it.
    pub(crate) taken_bytes: usize,
    /// See [`Connection::has_large_bodies`].
    pub(crate) has_large_bodies: bool,
    pub(crate) queue: OutgoingQueue,
    pub(crate) encoder: Encoder,
    /// What the client lets us send on all streams, and on a new one.
    pub(crate) send_window: i64,
    pub(crate) stream_send_window: i64,
    pub(crate) send_frame_bytes: usize,
    /// StreamTable that have something to send and no room, the longest waiting first.
    pub(crate) waiting: VecDeque<u32>,
    /// Who sends what is queued, unless it knows already.
    pub(crate) task: Option<Waker>,
    /// There was no memory for a frame: the connection cannot go on.
    pub(crate) failure: Option<ConnectionError>,
    pub(crate) floods: FloodLimits,
    pub(crate) strikes: PingStrikes,
    pub(crate) error_resets: u32,
    pub(crate) has_pong: bool,
    /// Monotonic, of the last bytes.
    pub(crate) received_ns: u64,
    /// Since when the preface has been coming, or a header block; 0 for neither.
    pub(crate) block_since_ns: u64,
    /// Frames for which a receive has places, at most; see `direct.rs`.
    pub(crate) expected_frames: u32,
    /// Of the last frame for a reader that was not the last of its body.
    pub(crate) frame_length: u32,
}

impl<R: BodyReader> Connection<R> {
    /// A connection from which nothing has come. Its settings are queued. `now_ns` is monotonic.
    pub fn new(pings: PingPolicy, now_ns: u64) -> Connection<R> {
        let mut connection = Connection {
            frames: FrameReader::new(),
            block: HeaderBlock::default(),
            decoder: Decoder::new(),
            accepted: VecDeque::new(),
            accepted_resets: 0,
            streams: StreamTable::default(),
            readers: AttachedReaders::new(),
            last_stream: 0,
            named_last: None,
            is_client_leaving: false,
            receive_window: CONNECTION_WINDOW_BYTES,
            taken_bytes: 0,
            has_large_bodies: false,
            queue: OutgoingQueue::default(),
            encoder: Encoder::new(),
            send_window: FIRST_WINDOW_BYTES,
            stream_send_window: FIRST_WINDOW_BYTES,
            send_frame_bytes: FIRST_FRAME_BYTES,
            waiting: VecDeque::new(),
            task: None,
            failure: None,
            floods: FloodLimits::new(now_ns),
            strikes: PingStrikes::new(pings),
            error_resets: 0,
            has_pong: false,
            received_ns: now_ns,
            block_since_ns: now_ns.max(1),
            expected_frames: EXPECTED_FRAMES_MAX as u32,
            frame_length: 0,
        };
        connection.push(&our_settings());
        let increment = CONNECTION_WINDOW_BYTES - FIRST_WINDOW_BYTES;
        connection.push(&frame::short(WINDOW_UPDATE, 0, increment as u32));
        connection
    }

    /// The next request whose head has come. Its stream is to be released.
    pub fn next_accepted(&mut self) -> Option<AcceptedRequest> {
        loop {
            let accepted = self.accepted.pop_front()?;
            let stream = self.streams.get(accepted.stream)?;
            if stream.reset.is_none() {
                stream.is_accepted = true;
                return Some(accepted);
            }
            self.accepted_resets -= 1;
            self.streams.remove(accepted.stream);
        }
    }

    /// Nobody needs a stream any more. If it has not ended it is reset: with NO_ERROR if the answer
    /// is complete, else with CANCEL.
    pub fn release(&mut self, id: u32) {
        let is_answered = self
            .streams
            .get(id)
            .is_some_and(|stream| stream.sent == SendState::End);
        self.reset(
            id,
            match is_answered {
                true => Reason::NO_ERROR,
                false => Reason::CANCEL,
            },
        );
        self.readers.remove(id);
        if let Some(mut stream) = self.streams.remove(id) {
            let queued = stream.clear_queue();
            self.credit_connection(queued);
        }
    }

    /// Whether the client's preface has come.
    pub fn has_begun(&self) -> bool {
        self.frames.has_begun()
    }

    /// Whether there is a stream that has not been released.
    pub fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Whether the client has said that it opens no more streams.
    pub fn is_client_leaving(&self) -> bool {
        self.is_client_leaving
    }

    /// When the client's last bytes came; monotonic.
    pub fn received_ns(&self) -> u64 {
        self.received_ns
    }

    /// Since when the preface or the headers of a call have been coming; 0 if there are none.
    pub fn block_since_ns(&self) -> u64 {
        self.block_since_ns
    }

    /// Why the connection cannot go on, if so.
    pub fn failure(&self) -> Option<ConnectionError> {
        self.failure
    }

    /// Whether calls should run before more is received: a large part of a body waits for one,
    /// which may have a reader for the rest. Not before [`Connection::begin_turn`] is it over.
    pub fn has_large_bodies(&self) -> bool {
        self.has_large_bodies
    }

    /// Whether nothing more should be received before what is queued is sent.
    pub fn is_queue_full(&self) -> bool {
        self.queue.is_full()
    }

    /// The calls that were due have run. `task` is woken when something is queued.
    pub fn begin_turn(&mut self, task: &Waker) {
        self.has_large_bodies = false;
        match &mut self.task {
            Some(own) => own.clone_from(task),
            none => *none = Some(task.clone()),
        }
    }

    /// Has `send` send what is queued; it gets the next pieces, and returns how many bytes of them
    /// it has sent. Those who wait for room are woken.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn poll_send(
        &mut self,
        send: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        let outcome = self.queue.poll_send(send);
        self.wake_waiting();
        outcome
    }

    /// The next part of a body; none at its end.
    ///
    /// # Errors
    /// As [`BodyError`] says.
    pub fn poll_body(
        &mut self,
        id: u32,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let Some(stream) = self.streams.get(id) else {
            return Poll::Ready(Some(Err(BodyError::Gone)));
        };
        if stream.reset.is_some() {
            return Poll::Ready(Some(Err(BodyError::Gone)));
        }
        if let Some(part) = stream.take() {
            self.credit(id, part.len());
            return Poll::Ready(Some(Ok(Bytes::from(part))));
        }
        if let Some(refused) = stream.refused {
            return Poll::Ready(Some(Err(BodyError::OutOfMemory(refused))));
        }
        if stream.has_ended {
            return Poll::Ready(None);
        }
        stream.set_waker(context.waker());
        Poll::Pending
    }

    /// Ready when the stream has been reset.
    pub fn poll_reset(&mut self, id: u32, context: &mut Context<'_>) -> Poll<()> {
        match self.streams.get(id) {
            Some(stream) if stream.reset.is_none() => {
                stream.set_waker(context.waker());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Tells the client that the connection is about to end, so that it opens no more streams;
    /// those that it has begun are served.
    pub fn announce_end(&mut self) {
        self.push(&frame::goaway(STREAM_MASK, Reason::NO_ERROR.0, ""));
    }

    /// Tells the client which stream is the last that is served.
    pub fn name_last(&mut self) {
        self.named_last = Some(self.last_stream);
        self.push(&frame::goaway(self.last_stream, Reason::NO_ERROR.0, ""));
    }

    /// Tells the client why the connection ends; but not that there is no memory, as it would take
    /// streams that have not been seen for those that it may try again at once.
    pub fn end(&mut self, error: ConnectionError) {
        if error == ConnectionError::OUT_OF_MEMORY {
            return;
        }
        let ConnectionError { reason, words } = error;
        self.push(&frame::goaway(self.last_stream, reason.0, words));
    }

    /// Asks whether the client is there; see [`Connection::take_pong`].
    pub fn send_ping(&mut self) {
        self.has_pong = false;
        self.push(&frame::ping(*b"are you?", 0));
    }

    /// Whether the client has answered the last ping; once.
    pub fn take_pong(&mut self) -> bool {
        std::mem::take(&mut self.has_pong)
    }

    /// Gives back memory that a connection does not need while nothing happens on it.
    pub fn rest(&mut self) {
        self.queue.release_memory();
        if self.accepted.is_empty() {
            self.accepted = VecDeque::new();
        }
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
    }

    /// Bytes of a stream's body have been taken: its window, and the connection's, are opened for
    /// them when there are enough.
    pub(super) fn credit(&mut self, id: u32, count: usize) {
        let body_left = self.readers.get(id).map(|attached| attached.reader.left());
        if let Some(stream) = self.streams.get(id) {
            stream.taken_bytes += count;
            let body_left = body_left
                .map(|left| left as u64)
                .or(stream.content_left)
                .unwrap_or(u64::MAX);
            let is_due = stream.taken_bytes as i64 >= STREAM_WINDOW_BYTES / 2
                && stream.is_receiving()
                && body_left > stream.receive_window.max(0) as u64;
            if is_due {
                let increment = std::mem::take(&mut stream.taken_bytes);
                stream.receive_window += increment as i64;
                self.push(&frame::short(WINDOW_UPDATE, id, increment as u32));
            }
        }
        self.credit_connection(count);
    }

    pub(super) fn credit_connection(&mut self, count: usize) {
        self.taken_bytes += count;
        if self.taken_bytes as i64 >= CONNECTION_WINDOW_BYTES / 2 {
            let increment = std::mem::take(&mut self.taken_bytes);
            self.receive_window += increment as i64;
            self.push(&frame::short(WINDOW_UPDATE, 0, increment as u32));
        }
    }

    /// Queues a whole frame.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.queue.push(bytes) {
            if let Some(head) = bytes.first_chunk() {
                self.note_sent(FrameHead::parse(head));
            }
        } else {
            self.fail();
        }
    }

    pub(super) fn fail(&mut self) {
        self.failure = Some(ConnectionError::OUT_OF_MEMORY);
        self.wake_task();
    }

    /// A frame has been queued.
    pub(super) fn note_sent(&mut self, head: FrameHead) {
        if matches!(head.kind, DATA | HEADERS | WINDOW_UPDATE) {
            self.strikes.excuse();
        }
        self.floods.note_sent(head);
        self.wake_task();
    }

    fn wake_task(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Wakes the streams that wait for room, if there is some.
    pub(super) fn wake_waiting(&mut self) {
        if self.send_window <= 0 || self.queue.is_full() {
            return;
        }
        while let Some(id) = self.waiting.pop_front() {
            if let Some(stream) = self.streams.get(id) {
                stream.is_waiting = false;
                stream.wake();
            }
        }
    }
}
