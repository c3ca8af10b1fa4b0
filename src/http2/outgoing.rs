//! Frames that the socket has not been given yet.
//!
//! They wait for the end of the connection's turn, so that one system call sends many. Large
//! payloads stay where they are; frame heads and whatever else is small is copied.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Poll, ready};

use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use crate::memory;

/// What waits at most, and a frame more: calls send nothing then, and nothing more is received.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// Smaller payloads are copied.
const SHARED_BYTES_MIN: usize = 4 << 10;
/// Slices for one system call: heads and payloads of [`QUEUE_BYTES_MAX`] in frames of 16 KiB.
const PIECES_MAX: usize = 64;
/// Room for copied bytes that a connection keeps between its turns.
const IDLE_BYTES: usize = 512;

/// Bytes that wait, in their order.
enum Piece {
    /// So many of the copied ones.
    Copied(usize),
    Shared(Bytes),
}

#[derive(Default)]
pub(crate) struct OutgoingQueue {
    pieces: VecDeque<Piece>,
    /// All copied bytes, of which the first `copied_sent` are gone.
    copied: Vec<u8>,
    copied_sent: usize,
    byte_count: usize,
}

impl OutgoingQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.byte_count == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.byte_count >= QUEUE_BYTES_MAX
    }

    /// Bytes that there is room for.
    pub(crate) fn room(&self) -> usize {
        QUEUE_BYTES_MAX.saturating_sub(self.byte_count)
    }

    /// Keeps a copy of `bytes`. Whether there was memory for it.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        self.write(bytes.len(), |out| {
            out.extend_from_slice(bytes);
            true
        })
    }

    /// Has `write` append bytes to those that are copied; at least `byte_count` fit. Whether there
    /// was memory, and `write` says so.
    pub(crate) fn write(
        &mut self,
        byte_count: usize,
        write: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        // What is gone makes room, at the cost of moving less than is gone.
        if self.copied_sent > self.copied.len() / 2 {
            self.copied.drain(..self.copied_sent);
            self.copied_sent = 0;
        }
        let before = self.copied.len();
        let has_room = memory::reserve(&mut self.copied, byte_count).is_ok();
        if !has_room || !write(&mut self.copied) {
            self.copied.truncate(before);
            return false;
        }
        let count = self.copied.len() - before;
        match self.pieces.back_mut() {
            Some(Piece::Copied(own)) => *own += count,
            _ => self.pieces.push_back(Piece::Copied(count)),
        }
        self.byte_count += count;
        true
    }

    /// Keeps a payload, without a copy unless it is small. Whether there was memory for it.
    pub(crate) fn push_payload(&mut self, payload: Bytes) -> bool {
        if payload.len() < SHARED_BYTES_MIN {
            return self.push(&payload);
        }
        self.byte_count += payload.len();
        self.pieces.push_back(Piece::Shared(payload));
        true
    }

    /// Has `send` send all that waits; it gets the next pieces, and returns how many bytes it has
    /// sent.
    pub(crate) fn poll_send(
        &mut self,
        mut send: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let pieces = self.next_pieces();
            let sent = ready!(send(&pieces))?;
            drop(pieces);
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(sent);
        }
        Poll::Ready(Ok(()))
    }

    fn next_pieces(&self) -> SmallVec<[IoSlice<'_>; 8]> {
        let mut copied = self.copied.get(self.copied_sent..).unwrap_or(&[]);
        let pieces = self.pieces.iter().take(PIECES_MAX).map(|piece| {
            IoSlice::new(match piece {
                Piece::Shared(bytes) => bytes,
                Piece::Copied(count) => {
                    let (own, rest) = copied.split_at(*count);
                    copied = rest;
                    own
                }
            })
        });
        pieces.collect()
    }

    /// Forgets the first `count` bytes, which have been sent.
    fn advance(&mut self, count: usize) {
        self.byte_count -= count;
        let mut left = count;
        while left > 0
            && let Some(piece) = self.pieces.front_mut()
        {
            let (used, is_over) = match piece {
                Piece::Shared(bytes) => {
                    let used = left.min(bytes.len());
                    bytes.advance(used);
                    (used, bytes.is_empty())
                }
                Piece::Copied(count) => {
                    let used = left.min(*count);
                    *count -= used;
                    self.copied_sent += used;
                    (used, *count == 0)
                }
            };
            left -= used;
            if is_over {
                self.pieces.pop_front();
            }
        }
        if self.is_empty() {
            self.copied.clear();
            self.copied.shrink_to(IDLE_BYTES);
            self.copied_sent = 0;
        }
    }

    /// Gives back what an idle connection does not need.
    pub(crate) fn release_memory(&mut self) {
        if self.is_empty() {
            *self = OutgoingQueue::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the queue sends if the socket takes `taken` bytes at a time, and in how many calls.
    fn sent(queue: &mut OutgoingQueue, taken: usize) -> (Vec<u8>, usize) {
        let (mut wire, mut calls) = (Vec::new(), 0);
        let outcome = queue.poll_send(|pieces| {
            calls += 1;
            let before = wire.len();
            for piece in pieces {
                let room = taken - (wire.len() - before);
                wire.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            Poll::Ready(Ok(wire.len() - before))
        });
        assert!(matches!(outcome, Poll::Ready(Ok(()))));
        (wire, calls)
    }

    /// Frames of a message: a head, then a part of the payload.
    fn write(queue: &mut OutgoingQueue, payload: &Bytes, frame_bytes: usize) -> Vec<u8> {
        let (mut wire, mut rest) = (Vec::new(), payload.clone());
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(frame_bytes));
            let head = [part.len() as u8; 9];
            wire.extend_from_slice(&head);
            wire.extend_from_slice(&part);
            assert!(queue.push(&head) && queue.push_payload(part));
        }
        wire
    }

    #[test]
    fn frames_leave_together_in_order_whatever_the_socket_takes() {
        let payload: Bytes = (0..200_000_u32).map(|index| (index % 251) as u8).collect();
        for taken in [1000, 16_393, 65_536, usize::MAX] {
            let mut queue = OutgoingQueue::default();
            for _ in 0..2 {
                let wire = write(&mut queue, &payload, 16_384);
                let (seen, calls) = sent(&mut queue, taken);
                assert!(seen == wire, "{taken}");
                assert_eq!(calls, wire.len().div_ceil(taken), "{taken}");
                assert!(queue.is_empty() && queue.pieces.is_empty());
                assert!(queue.copied.is_empty() && queue.copied_sent == 0);
            }
        }
    }

    #[test]
    fn large_payloads_are_not_copied() {
        let mut queue = OutgoingQueue::default();
        let payload = Bytes::from(vec![1; 100_000]);
        write(&mut queue, &payload, 16_384);
        assert_eq!(queue.copied.len(), 7 * 9 + 100_000 % 16_384);
        assert_eq!(queue.room(), QUEUE_BYTES_MAX - 100_000 - 7 * 9);
        write(&mut queue, &Bytes::from(vec![1; QUEUE_BYTES_MAX]), 16_384);
        assert!(queue.is_full() && queue.room() == 0);
    }

    #[test]
    fn a_blocked_socket_loses_nothing_and_copies_stay_bounded() {
        let mut queue = OutgoingQueue::default();
        let payload = Bytes::from(vec![1; 8 << 10]);
        let (mut written, mut seen) = (0, 0);
        for _ in 0..1000 {
            written += write(&mut queue, &payload, 5000).len();
            let mut budget = 8 << 10;
            let outcome = queue.poll_send(|pieces| {
                let count = pieces[0].len().min(budget);
                budget -= count;
                seen += count;
                if count == 0 {
                    Poll::Pending
                } else {
                    Poll::Ready(Ok(count))
                }
            });
            assert!(outcome.is_pending() || queue.is_empty());
            assert!(queue.copied.len() <= 2 * (written - seen) + (16 << 10));
        }
        seen += sent(&mut queue, usize::MAX).0.len();
        assert_eq!(seen, written);
        let outcome = queue.poll_send(|_| unreachable!("nothing waits"));
        assert!(matches!(outcome, Poll::Ready(Ok(()))));
    }

    #[test]
    fn what_is_not_written_leaves_nothing() {
        let mut queue = OutgoingQueue::default();
        assert!(queue.push(&[1, 2]));
        assert!(!queue.write(0, |out| {
            out.push(3);
            false
        }));
        assert_eq!(sent(&mut queue, usize::MAX).0, [1, 2]);
        queue.release_memory();
        assert_eq!(queue.copied.capacity(), 0);
    }
}
