//! Bodies that are received into the memory of their readers.
//!
//! A client that sends a large body sends frame after frame of the same length, and takes turns if
//! it sends several. So behind the rest of the current frame the next heads and payloads are given
//! places as if they were such frames, each of the stream that came behind its last one the last
//! time: payloads in the room of the readers, one after the other. A head that is another ends the
//! speculation: what came behind it is copied, and goes the ordinary way. The next receives then
//! expect half as many frames.

use std::io::{self, IoSliceMut};
use std::task::{Poll, Waker};

use smallvec::SmallVec;

use super::limits::EXPECTED_FRAMES_MAX;
use super::position::{DataRoute, FramePosition};
use super::state::Connection;
use crate::error::ConnectionError;
use crate::frame::{DATA, FRAME_HEAD_BYTES};
use crate::readers::{AttachedReader, AttachedReaders, BodyReader};

/// Payload that one receive takes.
const RECEIVED_BYTES_MAX: usize = 256 << 10;
/// A receive of fewer bytes of payload takes what comes behind them as well.
const RECEIVED_BYTES_MIN: usize = 64 << 10;
/// And so much of that.
const OVERFLOW_BYTES: usize = 8 << 10;

/// Why nothing more can be received.
#[derive(Debug)]
pub enum ReceiveError {
    Io(io::Error),
    Connection(ConnectionError),
}

impl From<io::Error> for ReceiveError {
    fn from(error: io::Error) -> ReceiveError {
        ReceiveError::Io(error)
    }
}

impl From<ConnectionError> for ReceiveError {
    fn from(error: ConnectionError) -> ReceiveError {
        ReceiveError::Connection(error)
    }
}

/// How a reader stands that the connection has.
#[derive(Debug, PartialEq, Eq)]
pub enum ReaderProgress {
    Open {
        /// Since the last look.
        has_progressed: bool,
    },
    /// The body is whole, or something else came: the reader is to be taken back.
    Closed,
}

/// Payload of a stream that one receive has a place for.
#[derive(Clone, Copy)]
struct ExpectedPayload {
    stream: u32,
    length: usize,
}

/// What one receive is prepared for.
struct ExpectedFrames {
    /// Of the current frame's payload.
    first: ExpectedPayload,
    /// The next frames.
    frames: SmallVec<[ExpectedPayload; EXPECTED_FRAMES_MAX]>,
    /// Whether anything may follow.
    has_overflow: bool,
}

impl ExpectedFrames {
    /// `left` bytes of a frame of `stream` are to come, then up to `count` frames. None without a
    /// stream that is expected.
    fn new<R: BodyReader>(
        readers: &mut AttachedReaders<R>,
        stream: u32,
        left: usize,
        count: usize,
    ) -> Option<ExpectedFrames> {
        let attached = readers.get(stream)?;
        if !attached.is_open() || attached.reader.direct_left() == 0 {
            return None;
        }
        let mut room = RECEIVED_BYTES_MAX;
        let first = ExpectedPayload {
            stream,
            length: left.min(attached.reader.direct_left()).min(room),
        };
        attached.expected_bytes = first.length;
        room -= first.length;
        let mut frames = SmallVec::new();
        let mut next = match left {
            0 => Some(stream),
            _ => readers.follower_of(stream),
        };
        let mut has_overflow = first.length < left;
        while first.length == left && frames.len() < count {
            let expected = next.and_then(|stream| Some((stream, readers.get(stream)?)));
            let Some((stream, attached)) = expected else {
                has_overflow = true;
                break;
            };
            if attached.frame_length > room {
                break;
            }
            let Some(length) = attached.expect_frame() else {
                has_overflow = true;
                break;
            };
            frames.push(ExpectedPayload { stream, length });
            room -= length;
            next = readers.follower_of(stream);
        }
        let mut expected = ExpectedFrames {
            first,
            frames,
            has_overflow,
        };
        expected.has_overflow |= expected.payload_bytes() < RECEIVED_BYTES_MIN;
        Some(expected)
    }

    fn payload_bytes(&self) -> usize {
        let frames = self.frames.iter().map(|frame| frame.length);
        self.first.length + frames.sum::<usize>()
    }

    /// Expects no more payload of `stream` than there is room for, and nothing behind it.
    fn limit(&mut self, stream: u32, mut room: usize) {
        if self.first.stream == stream {
            if self.first.length > room {
                self.first.length = room;
                self.frames.clear();
            }
            room -= self.first.length;
        }
        let is_missing = |frame: &ExpectedPayload| {
            let has_room = frame.stream != stream || frame.length <= room;
            if has_room && frame.stream == stream {
                room -= frame.length;
            }
            !has_room
        };
        if let Some(index) = self.frames.iter().position(is_missing) {
            self.frames.truncate(index);
        }
        self.has_overflow |= self.payload_bytes() == 0;
    }
}

/// Where the heads of expected frames are received, and what follows them.
struct DirectBuffers {
    heads: [[u8; FRAME_HEAD_BYTES]; EXPECTED_FRAMES_MAX],
    overflow: [u8; OVERFLOW_BYTES],
}

/// Room in the bodies under way, by their streams.
type BodyRooms<'a> = SmallVec<[(u32, &'a mut [u8]); 4]>;

impl<R: BodyReader> Connection<R> {
    /// Gives the connection a reader for the rest of a body, if the call has taken all that is
    /// queued of it and more is to come. Whether it has taken it.
    pub fn attach_reader(&mut self, id: u32, reader: &mut Option<R>, waker: &Waker) -> bool {
        let can_take = self.readers.has_room()
            && self.streams.get(id).is_some_and(|stream| {
                stream.is_receiving() && stream.queued_bytes == 0 && stream.refused.is_none()
            });
        let is_current = self.frames.is_in_data_of(id);
        let is_last = self.frames.frame.kind == DATA && self.frames.frame.stream == id;
        let fits = |reader: &R| {
            !is_current || !self.frames.frame.is_padded() && self.frames.left <= reader.left()
        };
        let Some(reader) = reader.take_if(|reader| can_take && fits(reader)) else {
            return false;
        };
        let frame_length = match is_last {
            true => self.frames.frame.length,
            false => self.frame_length as usize,
        };
        self.readers
            .add(AttachedReader::new(id, reader, frame_length, waker));
        if is_last {
            self.readers.note_frame(id);
        }
        if is_current {
            self.frames.route = DataRoute::Reader;
        }
        true
    }

    /// How the reader of a stream stands; `waker` is woken when it is closed.
    pub fn poll_reader(&mut self, id: u32, waker: &Waker) -> ReaderProgress {
        match self.readers.get(id) {
            Some(attached) if attached.is_open() => {
                attached.waker.clone_from(waker);
                ReaderProgress::Open {
                    has_progressed: attached.take_progress(),
                }
            }
            _ => ReaderProgress::Closed,
        }
    }

    /// Gives a call its reader back, and why it takes no more, if so; none if the connection has
    /// none.
    pub fn detach_reader(&mut self, id: u32) -> Option<(R, Option<R::Error>)> {
        let attached = self.readers.remove(id)?;
        if self.frames.is_in_data_of(id) && self.frames.route == DataRoute::Reader {
            self.frames.route = DataRoute::Queue;
        }
        Some((attached.reader, attached.fault))
    }

    /// Has `receive` receive into places for what is expected next, if that is part of bodies that
    /// have readers: none if it is not. `now` is the time, monotonic, once bytes have come. Ready
    /// with how many bytes came; 0 is the end.
    ///
    /// # Errors
    /// Those of `receive`, and of the connection, which is to end.
    pub fn poll_receive_direct(
        &mut self,
        now: impl FnOnce() -> u64,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>>,
    ) -> Option<Poll<Result<usize, ReceiveError>>> {
        let mut expected = self.expect()?;
        let head_missing = FRAME_HEAD_BYTES - self.frames.head_len;
        let mut buffers = DirectBuffers {
            heads: [[0; FRAME_HEAD_BYTES]; EXPECTED_FRAMES_MAX],
            overflow: [0; OVERFLOW_BYTES],
        };
        let mut faults: SmallVec<[(u32, R::Error); 1]> = SmallVec::new();
        let mut rooms = BodyRooms::new();
        for attached in self.readers.iter_mut() {
            let (stream, bytes) = (attached.stream, attached.expected_bytes);
            if bytes == 0 {
                continue;
            }
            match attached.reader.room(bytes) {
                Ok(room) => rooms.push((stream, room)),
                Err(fault) => faults.push((stream, fault)),
            }
        }
        for (stream, room) in &rooms {
            expected.limit(*stream, room.len());
        }
        for (stream, _) in &faults {
            expected.limit(*stream, 0);
        }
        let outcome = receive(&mut places(&expected, rooms, &mut buffers, head_missing));
        for (stream, fault) in faults {
            // The call ends; what comes for it goes nowhere.
            if let Some(attached) = self.readers.get(stream) {
                attached.fail(fault);
            }
        }
        let outcome = match outcome {
            Poll::Ready(Ok(received)) => {
                self.received_ns = now();
                let taken = self.take_received(received, &expected, &buffers);
                Poll::Ready(taken.map(|()| received).map_err(ReceiveError::from))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => Poll::Pending,
        };
        for attached in self.readers.iter_mut() {
            if attached.expected_bytes > 0 {
                attached.reader.trim();
            }
        }
        Some(outcome)
    }

    /// What the next receive is prepared for; none if no part of a body with a reader is expected.
    fn expect(&mut self) -> Option<ExpectedFrames> {
        for attached in self.readers.iter_mut() {
            attached.expected_bytes = 0;
        }
        let (stream, left) = match self.frames.position {
            FramePosition::Head if !self.block.is_open() => (self.readers.first_follower()?, 0),
            FramePosition::Payload
                if self.frames.frame.kind == DATA && self.frames.route == DataRoute::Reader =>
            {
                (self.frames.frame.stream, self.frames.left)
            }
            _ => return None,
        };
        let count = self.expected_frames as usize;
        ExpectedFrames::new(&mut self.readers, stream, left, count)
    }

    /// Tells what `received` bytes are that came into the places for `expected`.
    fn take_received(
        &mut self,
        received: usize,
        expected: &ExpectedFrames,
        buffers: &DirectBuffers,
    ) -> Result<(), ConnectionError> {
        let mut rest = received;
        let first = rest.min(expected.first.length);
        if first > 0 {
            self.take_direct(first)?;
            rest -= first;
        }
        let mut frames = expected.frames.iter().copied().zip(&buffers.heads);
        for (payload, head) in frames.by_ref() {
            if rest == 0 {
                return Ok(());
            }
            let missing = FRAME_HEAD_BYTES - self.frames.head_len;
            let came = head.get(..rest.min(missing)).unwrap_or(&[]);
            rest -= came.len();
            self.head(came)?;
            if came.len() < missing {
                return Ok(());
            }
            let is_expected = self.frames.position == FramePosition::Payload
                && self.frames.frame.kind == DATA
                && self.frames.route == DataRoute::Reader
                && (self.frames.frame.stream, self.frames.left) == (payload.stream, payload.length);
            if is_expected {
                let came = rest.min(payload.length);
                rest -= came;
                if came > 0 {
                    self.take_direct(came)?;
                }
                continue;
            }
            self.expected_frames = (self.expected_frames / 2).max(1);
            // Where the payload was expected there is something else.
            let mut copy = Vec::new();
            let mut spare = SpareOffsets::default();
            rest = self.copy_spare(&mut copy, &mut spare, payload, rest)?;
            for (payload, head) in frames {
                let came = rest.min(FRAME_HEAD_BYTES);
                conch_memory::try_extend(&mut copy, head.get(..came).unwrap_or(&[]))?;
                rest = self.copy_spare(&mut copy, &mut spare, payload, rest - came)?;
            }
            conch_memory::try_extend(&mut copy, buffers.overflow.get(..rest).unwrap_or(&[]))?;
            return self.feed(&copy);
        }
        self.expected_frames = (self.expected_frames * 2).clamp(1, EXPECTED_FRAMES_MAX as u32);
        self.feed(buffers.overflow.get(..rest).unwrap_or(&[]))
    }

    /// The next `count` bytes of the current frame lie in the room of its reader.
    fn take_direct(&mut self, count: usize) -> Result<(), ConnectionError> {
        self.take_body(count, None)?;
        match self.frames.left {
            0 => self.end_data(),
            _ => Ok(()),
        }
    }

    /// Copies what came into the place of a payload that is none; returns what is left of `rest`.
    fn copy_spare(
        &mut self,
        copy: &mut Vec<u8>,
        spare: &mut SpareOffsets,
        payload: ExpectedPayload,
        rest: usize,
    ) -> Result<usize, ConnectionError> {
        let came = rest.min(payload.length);
        if came > 0
            && let Some(attached) = self.readers.get(payload.stream)
        {
            let offset = spare.take(payload);
            let bytes = attached.reader.spare().get(offset..offset + came);
            conch_memory::try_extend(copy, bytes.unwrap_or(&[]))?;
        }
        Ok(rest - came)
    }
}

/// How far places of payloads lie behind the bytes of their bodies.
#[derive(Default)]
struct SpareOffsets(SmallVec<[ExpectedPayload; 4]>);

impl SpareOffsets {
    /// The place for `payload` is the next of its stream.
    fn take(&mut self, payload: ExpectedPayload) -> usize {
        match self.0.iter_mut().find(|own| own.stream == payload.stream) {
            Some(own) => {
                own.length += payload.length;
                own.length - payload.length
            }
            None => {
                self.0.push(payload);
                0
            }
        }
    }
}

/// The places for one receive, in the order of the wire.
fn places<'a>(
    expected: &ExpectedFrames,
    mut rooms: BodyRooms<'a>,
    buffers: &'a mut DirectBuffers,
    head_missing: usize,
) -> SmallVec<[IoSliceMut<'a>; 2 * EXPECTED_FRAMES_MAX + 2]> {
    let mut room = |payload: ExpectedPayload| -> &'a mut [u8] {
        let Some((_, room)) = rooms
            .iter_mut()
            .find(|(stream, _)| *stream == payload.stream)
        else {
            return &mut [];
        };
        let (own, rest) = std::mem::take(room).split_at_mut(payload.length);
        *room = rest;
        own
    };
    let mut pieces = SmallVec::new();
    if expected.first.length > 0 {
        pieces.push(IoSliceMut::new(room(expected.first)));
    }
    // Of the first head part may have come.
    let mut missing = match expected.first.length {
        0 => head_missing,
        _ => FRAME_HEAD_BYTES,
    };
    for (payload, head) in expected.frames.iter().zip(&mut buffers.heads) {
        let (place, _) = head.split_at_mut(missing);
        missing = FRAME_HEAD_BYTES;
        pieces.push(IoSliceMut::new(place));
        pieces.push(IoSliceMut::new(room(*payload)));
    }
    if expected.has_overflow {
        pieces.push(IoSliceMut::new(&mut buffers.overflow));
    }
    pieces
}
