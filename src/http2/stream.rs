//! StreamTable of a connection: one request each, and its answer.

use std::collections::VecDeque;
use std::task::Waker;

use conch_memory::OutOfMemory;

use crate::error::Reason;
use crate::memory;

/// Small parts of a body are joined up to this size, so that their number costs nothing.
const JOINED_BYTES_MAX: usize = 16 << 10;

/// How far the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    Nothing,
    Head,
    End,
}

pub(crate) struct Http2Stream {
    /// The request has ended.
    pub(crate) has_ended: bool,
    pub(crate) sent: SendState,
    /// It was reset, by the peer or by us: nothing more is received or sent.
    pub(crate) reset: Option<Reason>,
    /// Parts of the body that nobody has taken.
    queue: VecDeque<Vec<u8>>,
    pub(crate) queued_bytes: usize,
    /// There was no memory for the part behind them.
    pub(crate) refused: Option<OutOfMemory>,
    /// What the peer may still send.
    pub(crate) receive_window: i64,
    /// Received and taken; the window has not been opened for it.
    pub(crate) taken_bytes: usize,
    /// What the peer lets us send.
    pub(crate) send_window: i64,
    /// Of a body whose length its head says.
    pub(crate) content_left: Option<u64>,
    /// Somebody has it, who is to release it.
    pub(crate) is_accepted: bool,
    /// In the list of those that wait for room.
    pub(crate) is_waiting: bool,
    waker: Option<Waker>,
}

impl Http2Stream {
    pub(crate) fn new(receive_window: i64, send_window: i64) -> Box<Http2Stream> {
        Box::new(Http2Stream {
            has_ended: false,
            sent: SendState::Nothing,
            reset: None,
            queue: VecDeque::new(),
            queued_bytes: 0,
            refused: None,
            receive_window,
            taken_bytes: 0,
            send_window,
            content_left: None,
            is_accepted: false,
            is_waiting: false,
            waker: None,
        })
    }

    /// Neither side sends anything more.
    pub(crate) fn is_over(&self) -> bool {
        self.reset.is_some() || self.has_ended && self.sent == SendState::End
    }

    /// Its body is being received.
    pub(crate) fn is_receiving(&self) -> bool {
        self.reset.is_none() && !self.has_ended
    }

    pub(crate) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(own) => own.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Keeps the next part of the body until it is taken; nothing more is kept once there was no
    /// memory for one. Whether it is kept.
    pub(crate) fn queue(&mut self, bytes: &[u8]) -> bool {
        if self.refused.is_some() {
            return false;
        }
        let last = self.queue.back_mut();
        let kept = match last.filter(|last| last.len() + bytes.len() <= JOINED_BYTES_MAX) {
            Some(last) => memory::extend(last, bytes),
            None => {
                let mut part = Vec::new();
                let kept = memory::extend(&mut part, bytes);
                if kept.is_ok() {
                    self.queue.push_back(part);
                }
                kept
            }
        };
        self.refused = kept.err();
        if self.refused.is_none() {
            self.queued_bytes += bytes.len();
        }
        self.refused.is_none()
    }

    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        let part = self.queue.pop_front()?;
        self.queued_bytes -= part.len();
        Some(part)
    }

    /// Drops what nobody will take; returns how much it was.
    pub(crate) fn clear_queue(&mut self) -> usize {
        self.queue = VecDeque::new();
        std::mem::take(&mut self.queued_bytes)
    }
}

/// The streams that somebody has a part in, by their numbers, which only grow.
#[derive(Default)]
pub(crate) struct StreamTable {
    // Boxed, so that few bytes move when one leaves.
    open: Vec<(u32, Box<Http2Stream>)>,
}

impl StreamTable {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn place(&self, id: u32) -> Result<usize, usize> {
        match self.open.last() {
            Some((last, _)) if *last == id => Ok(self.open.len() - 1),
            _ => self.open.binary_search_by_key(&id, |(own, _)| *own),
        }
    }

    pub(crate) fn get(&mut self, id: u32) -> Option<&mut Http2Stream> {
        let place = self.place(id).ok()?;
        self.open.get_mut(place).map(|(_, stream)| &mut **stream)
    }

    pub(crate) fn push(&mut self, id: u32, stream: Box<Http2Stream>) {
        self.open.push((id, stream));
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Box<Http2Stream>> {
        let place = self.place(id).ok()?;
        let (_, stream) = self.open.remove(place);
        if self.open.is_empty() && self.open.capacity() > 64 {
            self.open = Vec::new();
        }
        Some(stream)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Http2Stream)> {
        self.open
            .iter_mut()
            .map(|(id, stream)| (*id, &mut **stream))
    }
}
