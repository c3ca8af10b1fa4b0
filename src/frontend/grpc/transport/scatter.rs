//! One receive into many places: payloads where they belong, frame heads in a buffer.
//!
//! A peer that sends a large message sends frame after frame of the same length, and takes turns if
//! it sends several. So behind the rest of the current frame the next heads and payloads are given
//! places as if they were such frames, each of the stream that came behind its last one the last
//! time: payloads in the blocks of the tensors, one after the other. A head that is another ends
//! the speculation: what came behind it is copied, and goes the ordinary way. The next receives
//! then expect half as many frames.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::incoming::{ByteSource, EXPECTED_FRAMES_MAX, Incoming, Route, STACK_BYTES};
use super::limits::FrameLimits;
use super::sinks::{SinkFault, Sinks};
use crate::grpc::frames::FRAME_HEAD_BYTES;

/// Payload that one receive takes.
const RECEIVED_BYTES_MAX: usize = 256 << 10;
/// A receive of fewer bytes of payload takes what comes behind them as well.
const RECEIVED_BYTES_MIN: usize = 64 << 10;

/// Payload of a stream that one receive has a place for.
#[derive(Clone, Copy)]
struct ExpectedPayload {
    stream: u32,
    length: usize,
}

/// What one receive is prepared for.
pub(super) struct ExpectedFrames {
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
    fn new(sinks: &mut Sinks, stream: u32, left: usize, count: usize) -> Option<ExpectedFrames> {
        let sink = sinks.get(stream)?;
        if !sink.is_routing() || sink.reader.tensor_left() == 0 {
            return None;
        }
        let mut room = RECEIVED_BYTES_MAX;
        let first = ExpectedPayload {
            stream,
            length: left.min(sink.reader.tensor_left()).min(room),
        };
        sink.expected_bytes = first.length;
        room -= first.length;
        let mut frames = SmallVec::new();
        let mut next = match left {
            0 => Some(stream),
            _ => sinks.follower_of(stream),
        };
        let mut has_overflow = first.length < left;
        while first.length == left && frames.len() < count {
            let expected = next.and_then(|stream| Some((stream, sinks.get(stream)?)));
            let Some((stream, sink)) = expected else {
                has_overflow = true;
                break;
            };
            if sink.frame_length > room {
                break;
            }
            let Some(length) = sink.expect_frame() else {
                has_overflow = true;
                break;
            };
            frames.push(ExpectedPayload { stream, length });
            room -= length;
            next = sinks.follower_of(stream);
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
struct ScatterBuffers {
    heads: [[u8; FRAME_HEAD_BYTES]; EXPECTED_FRAMES_MAX],
    overflow: [u8; STACK_BYTES],
}

/// Room in the tensors under way, by their streams.
type TensorRooms<'a> = SmallVec<[(u32, &'a mut [u8]); 4]>;

impl Incoming {
    /// What the next receive is prepared for; none if nothing of a large tensor is expected.
    pub(super) fn expect(&mut self) -> Option<ExpectedFrames> {
        for sink in self.sinks.iter_mut() {
            sink.expected_bytes = 0;
        }
        let left = self.frames.payload_left();
        let stream = match left {
            0 => self.sinks.first_follower()?,
            _ if self.route == Route::Sink => self.current.stream,
            _ => return None,
        };
        ExpectedFrames::new(&mut self.sinks, stream, left, self.expected_frames)
    }

    /// Receives frames into their sinks, and what comes between and behind them into buffers.
    pub(super) fn poll_scatter(
        &mut self,
        mut expected: ExpectedFrames,
        source: &mut impl ByteSource,
        limits: &mut FrameLimits,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let head_missing = FRAME_HEAD_BYTES - self.frames.partial_head().len();
        let mut buffers = ScatterBuffers {
            heads: [[0; FRAME_HEAD_BYTES]; EXPECTED_FRAMES_MAX],
            overflow: [0; STACK_BYTES],
        };
        let mut faults: SmallVec<[(u32, SinkFault); 1]> = SmallVec::new();
        let mut rooms = TensorRooms::new();
        for sink in self.sinks.iter_mut() {
            let (stream, bytes) = (sink.stream, sink.expected_bytes);
            if bytes == 0 {
                continue;
            }
            match sink.reader.room(bytes) {
                Ok(room) => rooms.push((stream, room)),
                Err(fault) => faults.push((stream, SinkFault::Read(fault))),
            }
        }
        for (stream, room) in &rooms {
            expected.limit(*stream, room.len());
        }
        for (stream, _) in &faults {
            expected.limit(*stream, 0);
        }
        let outcome = source.poll_receive(
            context,
            &mut places(&expected, rooms, &mut buffers, head_missing),
        );
        for (stream, fault) in faults {
            // The call ends; what comes for it goes nowhere.
            if let Some(sink) = self.sinks.get(stream) {
                sink.fail(fault);
            }
        }
        let outcome = match outcome {
            Poll::Ready(Ok(received)) => {
                limits.begin_bytes();
                let taken = self.take_received(received, &expected, &buffers, limits);
                Poll::Ready(taken.map(|()| received))
            }
            outcome => outcome,
        };
        for sink in self.sinks.iter_mut() {
            if sink.expected_bytes > 0 {
                sink.reader.trim_charge();
            }
        }
        outcome
    }

    /// Tells what `received` bytes are that came into the places for `expected`.
    ///
    /// # Errors
    /// There is no memory for what must be copied.
    fn take_received(
        &mut self,
        received: usize,
        expected: &ExpectedFrames,
        buffers: &ScatterBuffers,
        limits: &mut FrameLimits,
    ) -> io::Result<()> {
        let mut rest = received;
        let first = rest.min(expected.first.length);
        if first > 0 {
            self.take_payload(first, |sink| sink.advance(first));
            rest -= first;
        }
        let mut frames = expected.frames.iter().copied().zip(&buffers.heads);
        for (payload, head) in frames.by_ref() {
            if rest == 0 {
                return Ok(());
            }
            let missing = FRAME_HEAD_BYTES - self.frames.partial_head().len();
            let came = head.get(..rest.min(missing)).unwrap_or(&[]);
            rest -= came.len();
            let Some(frame) = self.frames.step(came).1 else {
                return Ok(());
            };
            self.begin_frame(frame, limits);
            let is_expected = self.route == Route::Sink
                && (frame.stream, frame.length) == (payload.stream, payload.length);
            if is_expected && self.is_routing(payload.stream) {
                let came = rest.min(payload.length);
                rest -= came;
                if came > 0 {
                    self.take_payload(came, |sink| sink.advance(came));
                }
                continue;
            }
            self.expected_frames /= 2;
            // Where the payload was expected there is something else.
            let mut spare = SpareOffsets::default();
            rest = self.keep_spare(&mut spare, payload, rest)?;
            for (payload, head) in frames {
                let came = rest.min(FRAME_HEAD_BYTES);
                self.keep(head.get(..came).unwrap_or(&[]))?;
                rest = self.keep_spare(&mut spare, payload, rest - came)?;
            }
            return self.keep(buffers.overflow.get(..rest).unwrap_or(&[]));
        }
        self.expected_frames = (self.expected_frames * 2).clamp(1, EXPECTED_FRAMES_MAX);
        self.keep(buffers.overflow.get(..rest).unwrap_or(&[]))
    }

    fn is_routing(&mut self, stream: u32) -> bool {
        self.sinks.get(stream).is_some_and(|sink| sink.is_routing())
    }

    /// Keeps what came into the place of a payload that is none; returns what is left of `rest`.
    fn keep_spare(
        &mut self,
        spare: &mut SpareOffsets,
        payload: ExpectedPayload,
        rest: usize,
    ) -> io::Result<usize> {
        let came = rest.min(payload.length);
        if came == 0 {
            return Ok(rest);
        }
        let offset = spare.take(payload);
        let sink = self.sinks.get(payload.stream);
        let bytes = sink.and_then(|sink| {
            let mut copy = Vec::new();
            let bytes = sink.reader.spare().get(offset..offset + came)?;
            conch_memory::try_extend(&mut copy, bytes).ok()?;
            Some(copy)
        });
        self.keep(&bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
        Ok(rest - came)
    }
}

/// How far places of payloads lie behind the bytes of their tensors.
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
    mut rooms: TensorRooms<'a>,
    buffers: &'a mut ScatterBuffers,
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
