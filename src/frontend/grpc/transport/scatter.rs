//! One receive into many places: payloads where they belong, frame heads aside.
//!
//! A peer that sends a large message sends frame after frame of the same length. So behind the rest
//! of the current frame the next heads and payloads are given places as if they were such frames:
//! payloads in the block of the tensor, one after the other. A head that is another ends the
//! speculation: what came behind it is copied, and goes the ordinary way. The next receives then
//! expect no frames, one, two, and so on.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::incoming::{EXPECTED_FRAMES_MAX, Incoming, Route, STACK_BYTES, Source};
use super::limits::FrameLimits;
use super::sinks::{Sink, SinkFault};
use crate::grpc::frames::FRAME_HEAD_BYTES;

/// Payload that one receive takes.
const RECEIVED_BYTES_MAX: usize = 256 << 10;
/// A receive of fewer bytes of payload takes what comes behind them as well.
const RECEIVED_BYTES_MIN: usize = 64 << 10;

/// What one receive is prepared for.
struct Expected {
    /// Of the current frame's payload.
    first: usize,
    /// Payloads of the next frames.
    frames: SmallVec<[usize; EXPECTED_FRAMES_MAX + 1]>,
    /// Whether anything may follow.
    has_overflow: bool,
}

impl Expected {
    /// `left` bytes of the current frame are to come, then up to `count` frames of `length`.
    fn new(sink: &Sink, left: usize, length: usize, count: usize) -> Expected {
        let mut room = sink.reader.tensor_left().min(RECEIVED_BYTES_MAX);
        let first = left.min(room);
        room -= first;
        let mut message = sink.reader.left() - first;
        let mut frames = SmallVec::new();
        while first == left && frames.len() < count {
            let payload = length.min(message);
            if payload == 0 || payload > room {
                break;
            }
            frames.push(payload);
            room -= payload;
            message -= payload;
        }
        let mut expected = Expected {
            first,
            frames,
            has_overflow: message == 0,
        };
        expected.has_overflow |= expected.payload_bytes() < RECEIVED_BYTES_MIN;
        expected
    }

    fn payload_bytes(&self) -> usize {
        self.first + self.frames.iter().sum::<usize>()
    }

    /// Expects no more payload than there is room for.
    fn limit(&mut self, room: usize) {
        while self.payload_bytes() > room {
            if self.frames.pop().is_none() {
                self.first = room;
            }
        }
        self.has_overflow |= self.payload_bytes() == 0;
    }
}

/// Where the heads of expected frames are received, and what follows them.
struct Aside {
    heads: [[u8; FRAME_HEAD_BYTES]; EXPECTED_FRAMES_MAX],
    overflow: [u8; STACK_BYTES],
}

impl Incoming {
    /// The stream whose frames the next receive is prepared for.
    pub(super) fn scatters_for(&mut self) -> Option<u32> {
        let stream = match self.frames.payload_left() {
            0 => self.last_routed.0,
            _ if self.route == Route::Sink => self.current.stream,
            _ => return None,
        };
        let sink = self.sinks.get(stream)?;
        (sink.is_routing() && sink.reader.tensor_left() > 0).then_some(stream)
    }

    /// Receives frames of `stream` into its sink, and what comes between and behind them aside.
    pub(super) fn poll_scatter(
        &mut self,
        stream: u32,
        source: &mut impl Source,
        limits: &mut FrameLimits,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let left = self.frames.payload_left();
        let head_missing = FRAME_HEAD_BYTES - self.frames.partial_head().len();
        let (length, count) = (self.last_routed.1, self.expected_frames);
        let Some(sink) = self.sinks.get(stream) else {
            return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
        };
        let mut expected = Expected::new(sink, left, length, count);
        let mut aside = Aside {
            heads: [[0; FRAME_HEAD_BYTES]; EXPECTED_FRAMES_MAX],
            overflow: [0; STACK_BYTES],
        };
        let outcome = match sink.reader.room(expected.payload_bytes()) {
            Ok(room) => {
                expected.limit(room.len());
                let mut pieces = places(&expected, room, &mut aside, head_missing);
                source.poll_receive(context, &mut pieces)
            }
            Err(fault) => {
                // The call ends; what comes for it goes nowhere.
                sink.fail(SinkFault::Read(fault));
                expected.limit(0);
                expected.has_overflow = true;
                source.poll_receive(context, &mut [IoSliceMut::new(&mut aside.overflow)])
            }
        };
        let outcome = match outcome {
            Poll::Ready(Ok(received)) => {
                limits.begin_bytes();
                let taken = self.take_received(stream, received, &expected, &aside, limits);
                Poll::Ready(taken.map(|()| received))
            }
            outcome => outcome,
        };
        if let Some(sink) = self.sinks.get(stream) {
            sink.reader.trim_charge();
        }
        outcome
    }

    /// Tells what `received` bytes are that came into the places for `expected`.
    ///
    /// # Errors
    /// There is no memory for what must be copied.
    fn take_received(
        &mut self,
        stream: u32,
        received: usize,
        expected: &Expected,
        aside: &Aside,
        limits: &mut FrameLimits,
    ) -> io::Result<()> {
        let mut rest = received;
        let first = rest.min(expected.first);
        if first > 0 {
            self.take_payload(first, |sink| sink.advance(first));
            rest -= first;
        }
        let mut frames = expected.frames.iter().copied().zip(&aside.heads);
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
            let is_expected =
                self.route == Route::Sink && frame.stream == stream && frame.length == payload;
            if is_expected && self.is_routing(stream) {
                let came = rest.min(payload);
                rest -= came;
                if came > 0 {
                    self.take_payload(came, |sink| sink.advance(came));
                }
                if self.is_routing(stream) {
                    continue;
                }
            } else {
                self.expected_frames = 0;
                // Where the payload was expected there is something else.
                rest = self.keep_spare(stream, 0, payload, rest)?;
            }
            return self.keep_rest(stream, payload, frames, aside, rest, is_expected);
        }
        self.expected_frames = (self.expected_frames * 2).clamp(1, EXPECTED_FRAMES_MAX);
        self.keep(aside.overflow.get(..rest).unwrap_or(&[]))
    }

    fn is_routing(&mut self, stream: u32) -> bool {
        self.sinks.get(stream).is_some_and(|sink| sink.is_routing())
    }

    /// Keeps what came into the places of frames that are none: heads, payloads and what follows.
    fn keep_rest<'a>(
        &mut self,
        stream: u32,
        payload: usize,
        frames: impl Iterator<Item = (usize, &'a [u8; FRAME_HEAD_BYTES])>,
        aside: &Aside,
        mut rest: usize,
        is_taken: bool,
    ) -> io::Result<()> {
        // What has been taken as payload is no longer spare.
        let mut offset = if is_taken { 0 } else { payload };
        for (payload, head) in frames {
            let came = rest.min(FRAME_HEAD_BYTES);
            self.keep(head.get(..came).unwrap_or(&[]))?;
            rest = self.keep_spare(stream, offset, payload, rest - came)?;
            offset += payload;
        }
        self.keep(aside.overflow.get(..rest).unwrap_or(&[]))
    }

    /// Keeps what came of `payload` bytes that lie so far behind the bytes of the tensor; returns
    /// what is left of `rest`.
    fn keep_spare(
        &mut self,
        stream: u32,
        offset: usize,
        payload: usize,
        rest: usize,
    ) -> io::Result<usize> {
        let came = rest.min(payload);
        if came == 0 {
            return Ok(rest);
        }
        let sink = self.sinks.get(stream);
        let spare = sink.and_then(|sink| {
            let mut copy = Vec::new();
            let spare = sink.reader.spare().get(offset..offset + came)?;
            conch_memory::try_extend(&mut copy, spare).ok()?;
            Some(copy)
        });
        let spare = spare.ok_or(io::ErrorKind::OutOfMemory)?;
        self.keep(&spare)?;
        Ok(rest - came)
    }
}

/// The places for one receive, in the order of the wire.
fn places<'a>(
    expected: &Expected,
    room: &'a mut [u8],
    aside: &'a mut Aside,
    head_missing: usize,
) -> SmallVec<[IoSliceMut<'a>; 2 * EXPECTED_FRAMES_MAX + 2]> {
    let mut pieces = SmallVec::new();
    let (first, mut room) = room.split_at_mut(expected.first);
    if !first.is_empty() {
        pieces.push(IoSliceMut::new(first));
    }
    // Of the first head part may have come.
    let mut missing = match expected.first {
        0 => head_missing,
        _ => FRAME_HEAD_BYTES,
    };
    for (payload, head) in expected.frames.iter().zip(&mut aside.heads) {
        let (place, _) = head.split_at_mut(missing);
        missing = FRAME_HEAD_BYTES;
        let (own, rest) = room.split_at_mut(*payload);
        room = rest;
        pieces.push(IoSliceMut::new(place));
        pieces.push(IoSliceMut::new(own));
    }
    if expected.has_overflow {
        pieces.push(IoSliceMut::new(&mut aside.overflow));
    }
    pieces
}
