//! What comes from the peer, and who gets it.
//!
//! h2 gets everything but the payloads of DATA frames for which a call has offered its reader: such
//! a frame goes to the sink of its stream and h2 never sees it. If it ends the stream, h2 is shown
//! an empty frame that does. A DATA frame that is not plain part of the message, and every other
//! frame of the stream, is shown as it came, after the sink was closed; the call then goes on with
//! what h2 gives it. What h2 is shown it judges as ever.
//!
//! No byte overtakes another of its stream. A sink takes frames only once h2 has handed over all it
//! was shown of the stream ([`Incoming::offer`]). A frame that h2 has been shown in part is shown
//! in full, and nothing behind it is received before its call has taken it. And since h2 would
//! receive whole messages before their calls run for the first time, receiving pauses once behind
//! the first large DATA frame of each stream.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll, Waker, ready};

use bytes::BufMut;
use conch_memory::try_extend;
use smallvec::SmallVec;
use tokio::io::ReadBuf;

use super::limits::FrameLimits;
use super::sinks::{Sink, SinkFault, SinkState, Sinks};
use crate::grpc::frames::{
    DATA, FrameHead, FrameObserver, HEADERS, PREFACE_BYTES, RST_STREAM, end_of_stream,
};
use crate::grpc::infer::MessageReader;
use crate::grpc::settings::FRAME_BYTES_MAX;

/// Some thirty small requests.
pub(super) const STACK_BYTES: usize = 8 << 10;
/// Frames whose heads are expected by one receive; see `scatter.rs`.
pub(super) const EXPECTED_FRAMES_MAX: usize = 15;
/// Routed in one turn of the connection, before other tasks of the shard get theirs.
const TURN_BYTES_MAX: usize = 1 << 20;

/// Where bytes come from.
pub(super) trait ByteSource {
    /// Receives into `pieces`, one after the other; 0 is the end.
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        pieces: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Receives into `target`, which need not be initialised, what is there; `WouldBlock` if
    /// nothing is.
    fn receive_now(&mut self, target: &mut impl BufMut) -> io::Result<usize>;
}

/// Why the connection ends.
#[derive(Debug)]
pub(super) enum ReadFailure {
    Io(io::Error),
    /// The peer sends too many of some frames.
    Excess(&'static str),
    /// The peer has sent more than the connection's window allows.
    WindowExceeded,
}

impl From<io::Error> for ReadFailure {
    fn from(error: io::Error) -> ReadFailure {
        ReadFailure::Io(error)
    }
}

impl From<&'static str> for ReadFailure {
    fn from(words: &'static str) -> ReadFailure {
        ReadFailure::Excess(words)
    }
}

/// Who gets the payload of the current frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    H2,
    /// The sink of the frame's stream; nobody if that is gone.
    Sink,
}

/// How a sink stands.
pub(super) enum SinkProgress {
    Open {
        /// Since the last look.
        has_progressed: bool,
    },
    Closed,
}

/// Whether receiving stops until calls have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    None,
    /// At the end of this stream's current frame.
    Behind(u32),
    Now,
}

pub(in crate::grpc) struct Incoming {
    pub(super) frames: FrameObserver,
    /// The last frame whose head has come in full.
    pub(super) current: FrameHead,
    pub(super) route: Route,
    /// Bytes of a partial head that h2 has been shown. While there are sinks heads are shown whole,
    /// so that it can be decided for whom a frame is.
    head_shown: usize,
    /// For h2, before anything else.
    owed: SmallVec<[u8; 24]>,
    /// Received and not looked at: h2 had no room, or a frame was not the expected one.
    backlog: Vec<u8>,
    pub(super) sinks: Sinks,
    /// Of the last routed frame that was not the last of its message.
    frame_length: usize,
    /// Frames for which a receive has places, at most; see `scatter.rs`.
    pub(super) expected_frames: usize,
    /// The last receive filled all its room, so more is probably there.
    expects_more: bool,
    /// h2 has handed over all that it was shown, but for a frame that it was shown in part.
    is_drained: bool,
    /// The peer has acknowledged our settings: its streams have the windows that they name.
    has_settings: bool,
    pause: Pause,
    /// The highest stream behind whose first large frame it has paused.
    paused_stream: u32,
    /// The connection's, while it waits for a call to take a frame.
    held: Option<Waker>,
    is_window_exceeded: bool,
}

impl Incoming {
    pub(super) fn new() -> Incoming {
        Incoming {
            frames: FrameObserver::new(PREFACE_BYTES),
            current: FrameHead::default(),
            route: Route::H2,
            head_shown: 0,
            owed: SmallVec::new(),
            backlog: Vec::new(),
            sinks: Sinks::default(),
            frame_length: 0,
            expected_frames: EXPECTED_FRAMES_MAX,
            expects_more: false,
            is_drained: false,
            has_settings: false,
            pause: Pause::None,
            paused_stream: 0,
            held: None,
            is_window_exceeded: false,
        }
    }

    /// Shows h2 what is for it: as [`tokio::io::AsyncRead::poll_read`].
    ///
    /// h2 calls it only after it has handed over all complete frames that it was shown.
    ///
    /// # Errors
    /// The connection is to end.
    pub(super) fn poll_read(
        &mut self,
        source: &mut impl ByteSource,
        limits: &mut FrameLimits,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), ReadFailure>> {
        let before = target.filled().len();
        let mut turn_bytes = 0;
        loop {
            self.show(target, limits);
            if self.is_window_exceeded {
                return Poll::Ready(Err(ReadFailure::WindowExceeded));
            }
            limits.end_bytes(&self.frames)?;
            if target.filled().len() > before {
                self.is_drained = false;
                return Poll::Ready(Ok(()));
            }
            self.is_drained = true;
            if self.is_paused(context) {
                return Poll::Pending;
            }
            if turn_bytes >= TURN_BYTES_MAX {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let received = ready!(self.poll_receive(source, limits, context, target))?;
            if received == 0 {
                // h2 judges what is cut off.
                self.owe_partial_head();
                self.show(target, limits);
                return Poll::Ready(Ok(()));
            }
            turn_bytes += received;
        }
    }

    /// Looks at bytes that h2 is shown, all of them.
    pub(super) fn follow(&mut self, bytes: &[u8], limits: &mut FrameLimits) {
        limits.begin_bytes();
        let (current, has_settings) = (&mut self.current, &mut self.has_settings);
        let (pause, paused_stream) = (&mut self.pause, &mut self.paused_stream);
        self.frames.follow(bytes, |frame| {
            limits.note_received(frame);
            *has_settings |= frame.acknowledges_settings();
            *current = frame;
            note_pause(frame, *has_settings, pause, paused_stream);
        });
        self.head_shown = self.frames.partial_head().len();
    }

    /// The calls that were due have run: a pause is over.
    pub(super) fn begin_turn(&mut self) {
        if self.pause == Pause::Now {
            self.pause = Pause::None;
        }
    }

    /// Whether h2 is to be shown nothing before calls have run. The connection is polled again.
    fn is_paused(&mut self, context: &mut Context<'_>) -> bool {
        if let Pause::Behind(stream) = self.pause {
            let is_under_way = self.frames.payload_left() > 0
                && self.current.kind == DATA
                && self.current.stream == stream;
            if !is_under_way {
                self.pause = Pause::Now;
                context.waker().wake_by_ref();
            }
        }
        if self.pause == Pause::Now {
            return true;
        }
        if self.is_held() {
            self.held = Some(context.waker().clone());
            for sink in self.sinks.iter_mut() {
                if sink.state == SinkState::Waiting {
                    sink.wake();
                }
            }
            return true;
        }
        false
    }

    /// Whether the frame has ended that a call must take before more is received.
    fn is_held(&mut self) -> bool {
        self.frames.is_between()
            && self
                .sinks
                .iter_mut()
                .any(|sink| sink.state == SinkState::Waiting)
    }

    fn poll_receive(
        &mut self,
        source: &mut impl ByteSource,
        limits: &mut FrameLimits,
        context: &mut Context<'_>,
        target: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        if let Some(expected) = self.expect() {
            return self.poll_scatter(expected, source, limits, context);
        }
        let left = self.frames.payload_left();
        // All of it is for h2, up to this many bytes.
        let shown_bytes = match self.route {
            Route::H2 if self.sinks.is_empty() && self.pause == Pause::None => usize::MAX,
            Route::H2 => left,
            Route::Sink => 0,
        };
        if std::mem::take(&mut self.expects_more) && shown_bytes > 0 {
            let room = target.remaining().min(shown_bytes);
            match source.receive_now(&mut (&mut *target).limit(room)) {
                Ok(received) => {
                    self.expects_more = received == room;
                    let filled = target.filled();
                    let fresh = filled.get(filled.len() - received..).unwrap_or(&[]);
                    self.follow(fresh, limits);
                    return Poll::Ready(Ok(received));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let mut stack = [0; STACK_BYTES];
        let room = match shown_bytes {
            0 => STACK_BYTES,
            _ => target.remaining().min(shown_bytes).min(STACK_BYTES),
        };
        let place = stack.get_mut(..room).unwrap_or_default();
        let received = ready!(source.poll_receive(context, &mut [IoSliceMut::new(place)]))?;
        self.expects_more = received == room;
        let fresh = place.get(..received).unwrap_or_default();
        if shown_bytes > 0 {
            target.put_slice(fresh);
            self.follow(fresh, limits);
        } else {
            limits.begin_bytes();
            let used = self.split(fresh, target, limits);
            self.keep(fresh.get(used..).unwrap_or(&[]))?;
        }
        Poll::Ready(Ok(received))
    }

    /// Keeps bytes until there is room for them.
    ///
    /// # Errors
    /// There is no memory: the connection cannot go on without them.
    pub(super) fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        try_extend(&mut self.backlog, bytes).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// Shows h2 what was received before.
    fn show(&mut self, target: &mut ReadBuf<'_>, limits: &mut FrameLimits) {
        let mut backlog = std::mem::take(&mut self.backlog);
        let used = self.split(&backlog, target, limits);
        if used < backlog.len() {
            backlog.drain(..used);
            self.backlog = backlog;
        } else if self.sinks.is_empty() {
            // Nothing is to be decided any more.
            self.owe_partial_head();
            self.split(&[], target, limits);
        }
    }

    /// Has h2 see a head as far as it has come.
    fn owe_partial_head(&mut self) {
        let partial = self.frames.partial_head();
        self.owed
            .extend_from_slice(partial.get(self.head_shown..).unwrap_or(&[]));
        self.head_shown = partial.len();
    }

    /// Hands the next bytes to those that they are for, and returns how many. Stops where h2 has no
    /// room, or receiving pauses.
    fn split(&mut self, bytes: &[u8], target: &mut ReadBuf<'_>, limits: &mut FrameLimits) -> usize {
        let mut rest = bytes;
        loop {
            let shown = self.owed.len().min(target.remaining());
            target.put_slice(self.owed.get(..shown).unwrap_or(&[]));
            self.owed.drain(..shown);
            let is_between = self.frames.is_between();
            if !self.owed.is_empty()
                || rest.is_empty()
                || is_between && (self.pause != Pause::None || self.is_held())
            {
                return bytes.len() - rest.len();
            }
            let left = self.frames.payload_left().min(rest.len());
            let used = match self.route {
                _ if left == 0 => {
                    let (used, frame) = self.frames.step(rest);
                    if let Some(frame) = frame {
                        self.begin_frame(frame, limits);
                    }
                    used
                }
                Route::H2 => {
                    let (own, _) = rest.split_at(left.min(target.remaining()));
                    if own.is_empty() {
                        return bytes.len() - rest.len();
                    }
                    target.put_slice(own);
                    self.frames.step(own).0
                }
                Route::Sink => {
                    let (own, _) = rest.split_at(left);
                    self.take_payload(left, |sink| sink.feed(own));
                    left
                }
            };
            rest = rest.split_at(used).1;
        }
    }

    /// Decides for whom a frame is whose head has come in full.
    pub(super) fn begin_frame(&mut self, frame: FrameHead, limits: &mut FrameLimits) {
        limits.note_received(frame);
        self.has_settings |= frame.acknowledges_settings();
        self.current = frame;
        let shown = std::mem::take(&mut self.head_shown);
        self.route = self.route_of(frame, shown > 0);
        if self.route == Route::H2 {
            let hidden = self.frames.last_head().get(shown..).unwrap_or(&[]);
            self.owed.extend_from_slice(hidden);
            if self.sinks.get(frame.stream).is_none() {
                let (pause, paused) = (&mut self.pause, &mut self.paused_stream);
                note_pause(frame, self.has_settings, pause, paused);
            }
        }
    }

    fn route_of(&mut self, frame: FrameHead, is_shown_in_part: bool) -> Route {
        if is_shown_in_part {
            // Now it is known whom they wait for.
            for sink in self.sinks.iter_mut() {
                let is_own = frame.kind == DATA && frame.stream == sink.stream;
                if sink.state == SinkState::Waiting && !is_own {
                    sink.state = SinkState::Routing;
                }
            }
        }
        // A header block without its end is for h2 to complain about.
        let is_ordered = !self.frames.is_in_block();
        let has_window = self.sinks.allows(frame.length);
        let Some(sink) = self
            .sinks
            .get(frame.stream)
            .filter(|sink| sink.is_routing())
        else {
            return Route::H2;
        };
        match frame.kind {
            DATA if is_ordered && sink.fits(frame) && frame.length <= FRAME_BYTES_MAX as usize => {
                self.is_window_exceeded |= !has_window;
                sink.check_window(frame.length);
                if frame.length < sink.reader.left() {
                    sink.frame_length = frame.length;
                    self.frame_length = frame.length;
                }
                self.sinks.note_frame(frame.stream);
                Route::Sink
            }
            // Nothing to take, and no reason to stop.
            DATA if frame.length == 0 && !frame.ends_stream() => Route::H2,
            DATA | HEADERS | RST_STREAM => {
                sink.state = SinkState::Closed;
                Route::H2
            }
            _ => Route::H2,
        }
    }

    /// The next `count` bytes of the current frame's payload have come, and `take` gives them to
    /// its sink.
    pub(super) fn take_payload(&mut self, count: usize, take: impl FnOnce(&mut Sink)) {
        let FrameHead { stream, .. } = self.current;
        self.frames.skip_payload(count);
        self.sinks.note_routed(count);
        let is_over = self.frames.payload_left() == 0;
        let ends_stream = self.current.ends_stream();
        if let Some(sink) = self.sinks.get(stream) {
            take(sink);
            if is_over {
                sink.end_frame(ends_stream);
            }
        }
        if is_over && ends_stream {
            self.owed.extend_from_slice(&end_of_stream(stream));
        }
    }

    /// Takes a call's reader into service, if DATA frames of its stream can be routed: all that h2
    /// was shown has been handed over, and the call, which has just found nothing more, has taken
    /// it.
    pub(super) fn offer(
        &mut self,
        stream: u32,
        reader: &mut Option<MessageReader>,
        waker: &Waker,
    ) -> bool {
        let is_in_frame = self.frames.payload_left() > 0
            && self.current.kind == DATA
            && self.current.stream == stream;
        if !self.is_drained
            || !self.has_settings
            || !self.sinks.has_room()
            || is_in_frame && self.route == Route::Sink
        {
            return false;
        }
        let Some(reader) = reader.take() else {
            return false;
        };
        let is_in_hands = is_in_frame || self.head_shown > 0;
        let state = match is_in_hands {
            true => SinkState::Waiting,
            false => SinkState::Routing,
        };
        let is_last = self.current.kind == DATA && self.current.stream == stream;
        let frame_length = match is_last {
            true => self.current.length,
            false => self.frame_length,
        };
        let sink = Sink::new(stream, state, reader, frame_length, waker);
        self.sinks.add(sink);
        if is_last {
            self.sinks.note_frame(stream);
        }
        true
    }

    /// Whether the message of a sink has come in full.
    pub(super) fn is_whole(&mut self, stream: u32) -> bool {
        let sink = self.sinks.get(stream);
        sink.is_some_and(|sink| sink.fault.is_none() && sink.reader.left() == 0)
    }

    /// Looks after a sink; its call has just found that h2 has nothing for it.
    pub(super) fn poll_sink(&mut self, stream: u32, waker: &Waker) -> SinkProgress {
        let is_drained = self.is_drained && self.frames.is_between();
        let Some(sink) = self.sinks.get(stream) else {
            return SinkProgress::Closed;
        };
        sink.set_waker(waker);
        if sink.state == SinkState::Closed {
            return SinkProgress::Closed;
        }
        let has_progressed = sink.take_progress();
        if sink.state == SinkState::Waiting && is_drained {
            // The frame had nothing for the call.
            sink.state = SinkState::Routing;
            self.release();
        }
        SinkProgress::Open { has_progressed }
    }

    /// Gives a call its reader back. `goes_on` says whether the call receives what follows from h2.
    pub(super) fn withdraw(
        &mut self,
        stream: u32,
        goes_on: bool,
    ) -> Option<(MessageReader, Option<SinkFault>)> {
        let sink = self.sinks.remove(stream, goes_on)?;
        self.release();
        Some((sink.reader, sink.fault))
    }

    /// Lets the connection receive if it waits for a call.
    fn release(&mut self) {
        if let Some(held) = self.held.take() {
            held.wake();
        }
    }

    /// The windows that are to be opened for routed bytes, stream by stream; stream 0 is the
    /// connection. `open` says whether it will be.
    pub(super) fn take_credits(&mut self, open: impl FnMut(u32, u32) -> bool) {
        self.sinks.take_credits(open);
    }
}

/// Notes that receiving is to pause behind `frame`, if it is the first large one of its stream.
fn note_pause(frame: FrameHead, has_settings: bool, pause: &mut Pause, paused_stream: &mut u32) {
    let is_large = frame.kind == DATA && frame.flags == 0 && frame.length >= STACK_BYTES;
    if is_large && has_settings && frame.stream > *paused_stream {
        *paused_stream = frame.stream;
        *pause = Pause::Behind(frame.stream);
    }
}
