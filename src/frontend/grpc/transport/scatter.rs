//! One receive into many places: payloads where they belong, frame heads aside.
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

use super::incoming::{EXPECTED_FRAMES_MAX, Incoming, Route, STACK_BYTES, Source};
use super::limits::FrameLimits;
use super::sinks::{SinkFault, Sinks};
use crate::grpc::frames::FRAME_HEAD_BYTES;

/// Payload that one receive takes.
const RECEIVED_BYTES_MAX: usize = 256 << 10;
/// A receive of fewer bytes of payload takes what comes behind them as well.
const RECEIVED_BYTES_MIN: usize = 64 << 10;

/// Payload of a stream.
#[derive(Clone, Copy)]
struct Part {
    stream: u32,
    payload: usize,
}

/// What one receive is prepared for.
pub(super) struct Expected {
    /// Of the current frame's payload.
    first: Part,
    /// The next frames.
    frames: SmallVec<[Part; EXPECTED_FRAMES_MAX]>,
    /// Whether anything may follow.
    has_overflow: bool,
}

impl Expected {
    /// `left` bytes of a frame of `stream` are to come, then up to `count` frames. None without a
    /// stream that is expected.
    fn new(sinks: &mut Sinks, stream: u32, left: usize, count: usize) -> Option<Expected> {
        let sink = sinks.get(stream)?;
        if !sink.is_routing() || sink.reader.tensor_left() == 0 {
            return None;
        }
        let mut room = RECEIVED_BYTES_MAX;
        let first = Part {
            stream,
            payload: left.min(sink.reader.tensor_left()).min(room),
        };
        sink.expected_bytes = first.payload;
        room -= first.payload;
        let mut frames = SmallVec::new();
        let mut next = match left {
            0 => Some(stream),
            _ => sinks.follower_of(stream),
        };
        let mut has_overflow = first.payload < left;
        while first.payload == left && frames.len() < count {
            let expected = next.and_then(|stream| Some((stream, sinks.get(stream)?)));
            let Some((stream, sink)) = expected else {
                has_overflow = true;
                break;
            };
            if sink.frame_length > room {
                break;
            }
            let Some(payload) = sink.expect_frame() else {
                has_overflow = true;
                break;
            };
            frames.push(Part { stream, payload });
            room -= payload;
            next = sinks.follower_of(stream);
        }
        let mut expected = Expected {
            first,
            frames,
            has_overflow,
        };
        expected.has_overflow |= expected.payload_bytes() < RECEIVED_BYTES_MIN;
        Some(expected)
    }

    fn payload_bytes(&self) -> usize {
        let frames = self.frames.iter().map(|frame| frame.payload);
        self.first.payload + frames.sum::<usize>()
    }

    /// Expects no more payload of `stream` than there is room for, and nothing behind it.
    fn limit(&mut self, stream: u32, mut room: usize) {
        if self.first.stream == stream {
            if self.first.payload > room {
                self.first.payload = room;
                self.frames.clear();
            }
            room -= self.first.payload;
        }
        let is_missing = |frame: &Part| {
            let has_room = frame.stream != stream || frame.payload <= room;
            if has_room && frame.stream == stream {
                room -= frame.payload;
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
struct Aside {
    heads: [[u8; FRAME_HEAD_BYTES]; EXPECTED_FRAMES_MAX],
    overflow: [u8; STACK_BYTES],
}

/// Room in the tensors under way, by their streams.
type Rooms<'a> = SmallVec<[(u32, &'a mut [u8]); 4]>;

impl Incoming {
    /// What the next receive is prepared for; none if nothing of a large tensor is expected.
    pub(super) fn expect(&mut self) -> Option<Expected> {
        for sink in self.sinks.iter_mut() {
            sink.expected_bytes = 0;
        }
        let left = self.frames.payload_left();
        let stream = match left {
            0 => self.sinks.first_follower()?,
            _ if self.route == Route::Sink => self.current.stream,
            _ => return None,
        };
        Expected::new(&mut self.sinks, stream, left, self.expected_frames)
    }

    /// Receives frames into their sinks, and what comes between and behind them aside.
    pub(super) fn poll_scatter(
        &mut self,
        mut expected: Expected,
        source: &mut impl Source,
        limits: &mut FrameLimits,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let head_missing = FRAME_HEAD_BYTES - self.frames.partial_head().len();
        let mut aside = Aside {
            heads: [[0; FRAME_HEAD_BYTES]; EXPECTED_FRAMES_MAX],
            overflow: [0; STACK_BYTES],
        };
        let mut faults: SmallVec<[(u32, SinkFault); 1]> = SmallVec::new();
        let mut rooms = Rooms::new();
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
            &mut places(&expected, rooms, &mut aside, head_missing),
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
                let taken = self.take_received(received, &expected, &aside, limits);
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
        expected: &Expected,
        aside: &Aside,
        limits: &mut FrameLimits,
    ) -> io::Result<()> {
        let mut rest = received;
        let first = rest.min(expected.first.payload);
        if first > 0 {
            self.take_payload(first, |sink| sink.advance(first));
            rest -= first;
        }
        let mut frames = expected.frames.iter().copied().zip(&aside.heads);
        for (part, head) in frames.by_ref() {
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
                && (frame.stream, frame.length) == (part.stream, part.payload);
            if is_expected && self.is_routing(part.stream) {
                let came = rest.min(part.payload);
                rest -= came;
                if came > 0 {
                    self.take_payload(came, |sink| sink.advance(came));
                }
                continue;
            }
            self.expected_frames /= 2;
            // Where the payload was expected there is something else.
            let mut spare = Spare::default();
            rest = self.keep_spare(&mut spare, part, rest)?;
            for (part, head) in frames {
                let came = rest.min(FRAME_HEAD_BYTES);
                self.keep(head.get(..came).unwrap_or(&[]))?;
                rest = self.keep_spare(&mut spare, part, rest - came)?;
            }
            return self.keep(aside.overflow.get(..rest).unwrap_or(&[]));
        }
        self.expected_frames = (self.expected_frames * 2).clamp(1, EXPECTED_FRAMES_MAX);
        self.keep(aside.overflow.get(..rest).unwrap_or(&[]))
    }

    fn is_routing(&mut self, stream: u32) -> bool {
        self.sinks.get(stream).is_some_and(|sink| sink.is_routing())
    }

    /// Keeps what came into the place of a payload that is none; returns what is left of `rest`.
    fn keep_spare(&mut self, spare: &mut Spare, part: Part, rest: usize) -> io::Result<usize> {
        let came = rest.min(part.payload);
        if came == 0 {
            return Ok(rest);
        }
        let offset = spare.take(part);
        let sink = self.sinks.get(part.stream);
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
struct Spare(SmallVec<[Part; 4]>);

impl Spare {
    /// The place for `part` is the next of its stream.
    fn take(&mut self, part: Part) -> usize {
        match self.0.iter_mut().find(|own| own.stream == part.stream) {
            Some(own) => {
                own.payload += part.payload;
                own.payload - part.payload
            }
            None => {
                self.0.push(part);
                0
            }
        }
    }
}

/// The places for one receive, in the order of the wire.
fn places<'a>(
    expected: &Expected,
    mut rooms: Rooms<'a>,
    aside: &'a mut Aside,
    head_missing: usize,
) -> SmallVec<[IoSliceMut<'a>; 2 * EXPECTED_FRAMES_MAX + 2]> {
    let mut room = |part: Part| -> &'a mut [u8] {
        let Some((_, room)) = rooms.iter_mut().find(|(stream, _)| *stream == part.stream) else {
            return &mut [];
        };
        let (own, rest) = std::mem::take(room).split_at_mut(part.payload);
        *room = rest;
        own
    };
    let mut pieces = SmallVec::new();
    if expected.first.payload > 0 {
        pieces.push(IoSliceMut::new(room(expected.first)));
    }
    // Of the first head part may have come.
    let mut missing = match expected.first.payload {
        0 => head_missing,
        _ => FRAME_HEAD_BYTES,
    };
    for (part, head) in expected.frames.iter().zip(&mut aside.heads) {
        let (place, _) = head.split_at_mut(missing);
        missing = FRAME_HEAD_BYTES;
        pieces.push(IoSliceMut::new(place));
        pieces.push(IoSliceMut::new(room(*part)));
    }
    if expected.has_overflow {
        pieces.push(IoSliceMut::new(&mut aside.overflow));
    }
    pieces
}
