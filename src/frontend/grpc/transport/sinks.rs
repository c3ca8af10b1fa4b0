//! Calls whose messages take DATA frames past h2, and what their peers' windows are owed.
//!
//! h2 knows nothing of a routed frame: it neither takes it off the windows that it has given nor
//! gives them back. Its own account stays right, and so does the peer's, as long as the window
//! updates for routed bytes are sent here. A frame counts here until then. No peer may have more
//! than a whole window of a stream, or of the connection, on account: h2 bounds what it sees by the
//! same window, so a peer that ignores its windows is found out by one of the two at the latest
//! when it has sent twice of what it may. Routed bytes wait nowhere, so that costs no memory.

use std::task::Waker;

use smallvec::SmallVec;

use crate::grpc::frames::FrameHead;
use crate::grpc::infer::{MessageReader, ReadFault};
use crate::grpc::settings::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};

/// Calls of a connection that receive past h2 at a time; others receive through h2.
const SINKS_MAX: usize = 16;
/// Routed bytes for which a stream's window is opened again. h2 waits with its own updates until a
/// third of the window is used up, so a sixth is always left to the peer.
const STREAM_CREDIT_BYTES: usize = STREAM_WINDOW_BYTES as usize / 2;
const CONNECTION_CREDIT_BYTES: usize = CONNECTION_WINDOW_BYTES as usize / 2;
/// What the peer has of a stream's window beside routed bytes, whatever h2 has not given back yet.
const STREAM_OWN_BYTES: usize = STREAM_WINDOW_BYTES as usize / 3 * 2;

/// Why a sink takes nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grpc) enum SinkFault {
    Read(ReadFault),
    /// The peer has sent more than the window of the stream allows.
    WindowExceeded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SinkState {
    /// h2 has been shown part of a frame that may be of this stream. Nothing behind the frame is
    /// received before the call has taken it.
    Waiting,
    /// Frames of the stream are for the reader.
    Routing,
    /// Frames of the stream are for h2: the message is whole, or something else came.
    Closed,
}

/// The message of one call.
pub(super) struct Sink {
    pub(super) stream: u32,
    pub(super) state: SinkState,
    pub(super) reader: MessageReader,
    pub(super) fault: Option<SinkFault>,
    waker: Waker,
    /// Routed bytes that the stream's window has not been opened for.
    uncredited: usize,
    has_progressed: bool,
    /// Of its frames, but for the last of the message.
    pub(super) frame_length: usize,
    /// The stream whose frame came behind its last one.
    follower: u32,
    /// What the next receive has places for.
    pub(super) expected_bytes: usize,
}

impl Sink {
    pub(super) fn new(
        stream: u32,
        state: SinkState,
        reader: MessageReader,
        frame_length: usize,
        waker: &Waker,
    ) -> Box<Sink> {
        Box::new(Sink {
            stream,
            state,
            reader,
            fault: None,
            waker: waker.clone(),
            uncredited: 0,
            has_progressed: false,
            frame_length,
            follower: stream,
            expected_bytes: 0,
        })
    }

    pub(super) fn is_routing(&self) -> bool {
        self.state == SinkState::Routing
    }

    pub(super) fn set_waker(&mut self, waker: &Waker) {
        self.waker.clone_from(waker);
    }

    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    pub(super) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progressed)
    }

    /// Whether the payload of a DATA frame may become part of the message as it is.
    pub(super) fn fits(&self, frame: FrameHead) -> bool {
        !frame.is_padded() && frame.length > 0 && frame.length <= self.reader.left()
    }

    /// Whether the peer may send a frame of so many bytes; if not, the call is to end.
    pub(super) fn check_window(&mut self, bytes: usize) -> bool {
        let is_allowed = self.uncredited + bytes <= STREAM_WINDOW_BYTES as usize;
        if !is_allowed {
            self.fail(SinkFault::WindowExceeded);
        }
        is_allowed
    }

    /// Expects one more frame behind what is expected already, of the usual length or the last of
    /// the message. None if that does not fit into the tensor under way.
    pub(super) fn expect_frame(&mut self) -> Option<usize> {
        let left = self.reader.left().checked_sub(self.expected_bytes)?;
        let payload = self.frame_length.min(left);
        let room = self.reader.tensor_left().checked_sub(self.expected_bytes)?;
        let fits = self.is_routing() && payload > 0 && payload <= room;
        if fits {
            self.expected_bytes += payload;
        }
        fits.then_some(payload)
    }

    /// Takes bytes that have been received elsewhere.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.note_bytes(bytes.len());
        if self.is_routing() {
            let outcome = self.reader.feed(bytes);
            self.note_outcome(outcome);
        }
    }

    /// Takes bytes that have been received into the room of its reader.
    pub(super) fn advance(&mut self, count: usize) {
        self.note_bytes(count);
        if self.is_routing() {
            let outcome = self.reader.advance(count);
            self.note_outcome(outcome);
        }
    }

    fn note_bytes(&mut self, count: usize) {
        self.uncredited += count;
        self.has_progressed = true;
    }

    fn note_outcome(&mut self, outcome: Result<(), ReadFault>) {
        if let Err(fault) = outcome {
            self.fail(SinkFault::Read(fault));
        }
    }

    pub(super) fn fail(&mut self, fault: SinkFault) {
        self.fault = Some(fault);
        self.state = SinkState::Closed;
        self.wake();
    }

    /// A routed frame has come in full.
    pub(super) fn end_frame(&mut self, ends_stream: bool) {
        if self.is_routing() && (ends_stream || self.reader.left() == 0) {
            self.state = SinkState::Closed;
            self.wake();
        }
    }

    /// Bytes to open the stream's window by now. None are needed for what fits into it anyway.
    fn take_credit(&mut self) -> usize {
        let is_due = self.uncredited >= STREAM_CREDIT_BYTES
            && self.is_routing()
            && self.uncredited + self.reader.left() > STREAM_OWN_BYTES;
        if is_due {
            std::mem::take(&mut self.uncredited)
        } else {
            0
        }
    }
}

/// Of one connection.
#[derive(Default)]
pub(super) struct Sinks {
    // Boxed: readers are large, and most connections have none.
    open: SmallVec<[Box<Sink>; 1]>,
    /// The stream of the last routed frame, or what came before it if that is gone.
    last_stream: u32,
    /// Routed bytes that the connection's window has not been opened for.
    uncredited: usize,
    /// Owed to streams that go on through h2.
    owed: SmallVec<[(u32, usize); 1]>,
    /// All that were ever routed.
    #[cfg(test)]
    routed_bytes: usize,
}

impl Sinks {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.open.len() < SINKS_MAX
    }

    pub(super) fn add(&mut self, sink: Box<Sink>) {
        self.open.push(sink);
    }

    /// A frame of `stream` comes, which is routed.
    pub(super) fn note_frame(&mut self, stream: u32) {
        let before = std::mem::replace(&mut self.last_stream, stream);
        if let Some(sink) = self.get(before) {
            sink.follower = stream;
        }
    }

    /// The stream whose frame probably comes behind the last routed one.
    pub(super) fn first_follower(&mut self) -> Option<u32> {
        let last = self.last_stream;
        let any = || self.open.iter().find(|sink| sink.is_routing());
        any()
            .map(|sink| sink.stream)
            .map(|any| self.follower_of(last).unwrap_or(any))
    }

    /// The stream whose frame probably comes behind one of `stream`: the one of the last time,
    /// without those whose messages are whole.
    pub(super) fn follower_of(&mut self, stream: u32) -> Option<u32> {
        let mut follower = stream;
        for _ in 0..SINKS_MAX {
            follower = self.get(follower)?.follower;
            if self.get(follower)?.is_routing() {
                return Some(follower);
            }
        }
        None
    }

    pub(super) fn get(&mut self, stream: u32) -> Option<&mut Sink> {
        self.iter_mut().find(|sink| sink.stream == stream)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sink> {
        self.open.iter_mut().map(|sink| &mut **sink)
    }

    /// Takes a sink out of service. If its call `goes_on` and its message does so through h2, the
    /// stream gets its window back. A call that fails resets its stream: that gets nothing.
    pub(super) fn remove(&mut self, stream: u32, goes_on: bool) -> Option<Box<Sink>> {
        let index = self.open.iter().position(|sink| sink.stream == stream)?;
        let sink = self.open.swap_remove(index);
        for before in &mut self.open {
            if before.follower == stream {
                before.follower = match sink.follower {
                    follower if follower == stream => before.stream,
                    follower => follower,
                };
                if self.last_stream == stream {
                    self.last_stream = before.stream;
                }
            }
        }
        let goes_on = goes_on && sink.fault.is_none() && sink.reader.left() > 0;
        if goes_on && sink.uncredited > 0 {
            match self.owed.iter_mut().find(|(owed, _)| *owed == stream) {
                Some((_, bytes)) => *bytes += sink.uncredited,
                None => self.owed.push((stream, sink.uncredited)),
            }
        }
        Some(sink)
    }

    /// Counts bytes of a routed frame, be it for a sink or for one that is gone.
    pub(super) fn note_routed(&mut self, count: usize) {
        self.uncredited += count;
        #[cfg(test)]
        {
            self.routed_bytes += count;
        }
    }

    /// Whether the connection's window allows a routed frame of so many bytes.
    pub(super) fn allows(&self, bytes: usize) -> bool {
        self.uncredited + bytes <= CONNECTION_WINDOW_BYTES as usize
    }

    /// The windows that are to be opened now, and by how much; stream 0 is the connection.
    pub(super) fn take_credits(&mut self, mut open: impl FnMut(u32, u32) -> bool) {
        let mut give = |stream, bytes: &mut usize| {
            let increment = u32::try_from(*bytes).unwrap_or(u32::MAX >> 1);
            if *bytes > 0 && open(stream, increment) {
                *bytes = 0;
            }
        };
        if self.uncredited >= CONNECTION_CREDIT_BYTES {
            give(0, &mut self.uncredited);
        }
        for sink in &mut self.open {
            let mut bytes = sink.take_credit();
            give(sink.stream, &mut bytes);
            sink.uncredited += bytes;
        }
        self.owed.retain(|(stream, bytes)| {
            give(*stream, bytes);
            *bytes > 0
        });
    }

    #[cfg(test)]
    pub(super) fn uncredited(&self) -> usize {
        self.uncredited
    }

    #[cfg(test)]
    pub(super) fn routed_bytes(&self) -> usize {
        self.routed_bytes
    }
}
