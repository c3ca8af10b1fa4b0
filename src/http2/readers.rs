//! Readers that take the payload of DATA frames as it is received, and the order in which frames of
//! their streams come.

use std::fmt::Debug;
use std::task::Waker;

use smallvec::SmallVec;

use crate::frame::FrameHead;

/// StreamTable of a connection whose readers it has at a time; the payload of others is queued.
const READERS_MAX: usize = 16;

/// What reads the body of a request, part by part.
pub trait BodyReader {
    type Error: Copy + Debug;

    /// Bytes of the body that are still to come.
    fn left(&self) -> usize;

    /// How many of those that come next lie in one piece of memory, into which they can be
    /// received.
    fn direct_left(&self) -> usize;

    /// Room for so many of them, or fewer; empty if there is none. What is there has no meaning
    /// until [`BodyReader::advance`] counts it as received.
    ///
    /// # Errors
    /// The body is not to be read on.
    fn room(&mut self, bytes: usize) -> Result<&mut [u8], Self::Error>;

    /// What the last [`BodyReader::room`] holds behind what has been counted since.
    fn spare(&mut self) -> &[u8];

    /// Counts `count` bytes of the room as the next of the body.
    ///
    /// # Errors
    /// As of [`BodyReader::feed`].
    fn advance(&mut self, count: usize) -> Result<(), Self::Error>;

    /// Takes the next bytes of the body, at most as many as are left.
    ///
    /// # Errors
    /// The body is not to be read on.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// The room that has not been used is not needed.
    fn trim(&mut self);
}

/// The reader of one stream.
pub(crate) struct AttachedReader<R: BodyReader> {
    pub(crate) stream: u32,
    pub(crate) reader: R,
    pub(crate) fault: Option<R::Error>,
    /// Frames of the stream are queued: the body is whole, or something else came.
    is_closed: bool,
    pub(crate) waker: Waker,
    has_progressed: bool,
    /// Of its frames, but for the last of the body.
    pub(crate) frame_length: usize,
    /// The stream whose frame came behind its last one.
    follower: u32,
    /// What the next receive has places for.
    pub(crate) expected_bytes: usize,
}

impl<R: BodyReader> AttachedReader<R> {
    pub(crate) fn new(
        stream: u32,
        reader: R,
        frame_length: usize,
        waker: &Waker,
    ) -> Box<AttachedReader<R>> {
        Box::new(AttachedReader {
            stream,
            reader,
            fault: None,
            is_closed: false,
            waker: waker.clone(),
            has_progressed: false,
            frame_length,
            follower: stream,
            expected_bytes: 0,
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.is_closed
    }

    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progressed)
    }

    /// Whether the payload of a DATA frame may become part of the body as it is.
    pub(crate) fn fits(&self, frame: FrameHead) -> bool {
        self.is_open()
            && !frame.is_padded()
            && frame.length > 0
            && frame.length <= self.reader.left()
    }

    /// Expects one more frame behind what is expected already, of the usual length or the last of
    /// the body. None if that does not fit into the room.
    pub(crate) fn expect_frame(&mut self) -> Option<usize> {
        let left = self.reader.left().checked_sub(self.expected_bytes)?;
        let payload = self.frame_length.min(left);
        let room = self.reader.direct_left().checked_sub(self.expected_bytes)?;
        let fits = self.is_open() && payload > 0 && payload <= room;
        if fits {
            self.expected_bytes += payload;
        }
        fits.then_some(payload)
    }

    /// Takes bytes that have been received elsewhere.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.has_progressed = true;
        if self.is_open() {
            let outcome = self.reader.feed(bytes);
            self.note_outcome(outcome);
        }
    }

    /// Takes bytes that have been received into the room of its reader. That goes on behind them
    /// even if the reader is not to have them, as something else may have come there.
    pub(crate) fn advance(&mut self, count: usize) {
        self.has_progressed = true;
        let outcome = self.reader.advance(count);
        if self.is_open() {
            self.note_outcome(outcome);
        }
    }

    fn note_outcome(&mut self, outcome: Result<(), R::Error>) {
        if let Err(fault) = outcome {
            self.fail(fault);
        }
    }

    pub(crate) fn fail(&mut self, fault: R::Error) {
        self.fault = Some(fault);
        self.close();
    }

    /// What comes from now on is queued.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.waker.wake_by_ref();
    }

    /// A frame has come in full.
    pub(crate) fn end_frame(&mut self, ends_stream: bool) {
        if self.is_open() && (ends_stream || self.reader.left() == 0) {
            self.close();
        }
    }
}

/// Of one connection.
pub(crate) struct AttachedReaders<R: BodyReader> {
    // Boxed: readers are large, and most connections have none.
    open: SmallVec<[Box<AttachedReader<R>>; 1]>,
    /// The stream of the last frame for a reader, or what came before it if that is gone.
    last_stream: u32,
}

impl<R: BodyReader> AttachedReaders<R> {
    pub(crate) fn new() -> AttachedReaders<R> {
        AttachedReaders {
            open: SmallVec::new(),
            last_stream: 0,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.open.len() < READERS_MAX
    }

    pub(crate) fn add(&mut self, attached: Box<AttachedReader<R>>) {
        self.open.push(attached);
    }

    /// A frame of `stream` comes, which is for its reader.
    pub(crate) fn note_frame(&mut self, stream: u32) {
        let before = std::mem::replace(&mut self.last_stream, stream);
        if let Some(attached) = self.get(before) {
            attached.follower = stream;
        }
    }

    /// The stream whose frame probably comes behind the last one.
    pub(crate) fn first_follower(&mut self) -> Option<u32> {
        let any = self.open.iter().find(|attached| attached.is_open())?.stream;
        let last = self.last_stream;
        Some(self.follower_of(last).unwrap_or(any))
    }

    /// The stream whose frame probably comes behind one of `stream`: the one of the last time,
    /// without those whose bodies are whole.
    pub(crate) fn follower_of(&mut self, stream: u32) -> Option<u32> {
        let mut follower = stream;
        for _ in 0..READERS_MAX {
            follower = self.get(follower)?.follower;
            if self.get(follower)?.is_open() {
                return Some(follower);
            }
        }
        None
    }

    pub(crate) fn get(&mut self, stream: u32) -> Option<&mut AttachedReader<R>> {
        self.iter_mut().find(|attached| attached.stream == stream)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut AttachedReader<R>> {
        self.open.iter_mut().map(|attached| &mut **attached)
    }

    /// Takes a attached out of service.
    pub(crate) fn remove(&mut self, stream: u32) -> Option<Box<AttachedReader<R>>> {
        let index = self
            .open
            .iter()
            .position(|attached| attached.stream == stream)?;
        let attached = self.open.swap_remove(index);
        for before in &mut self.open {
            if before.follower == stream {
                before.follower = match attached.follower {
                    follower if follower == stream => before.stream,
                    follower => follower,
                };
                if self.last_stream == stream {
                    self.last_stream = before.stream;
                }
            }
        }
        Some(attached)
    }
}
