//! What h2 has written and the socket has not been given yet.
//!
//! h2 writes and flushes a large message frame by frame. The queue keeps the frames until the turn
//! of the connection ends or there are enough of them, so that one system call sends many. Large
//! payloads stay where they are; frame heads and whatever else is small is copied. As long as
//! nothing large comes, nothing is kept.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Poll, ready};

use bytes::{Buf, Bytes};
use conch_memory::try_extend;
use smallvec::SmallVec;

use super::payload::{is_part, share};

/// What waits at most, and a frame more: then it is sent before h2 may write again.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// Bytes that one write of h2 may have copied; the rest is for its next.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Slices for one system call: heads and payloads of [`QUEUE_BYTES_MAX`] in frames of 16 KiB.
const PIECES_MAX: usize = 64;
/// Room for copied bytes that an idle connection keeps.
const IDLE_BYTES: usize = 1 << 10;

/// Bytes that wait, in their order.
enum Piece {
    /// So many of the copied ones.
    Copied(usize),
    Shared(Bytes),
}

#[derive(Default)]
pub(super) struct OutgoingQueue {
    pieces: VecDeque<Piece>,
    /// All copied bytes, of which the first `copied_sent` are gone.
    copied: Vec<u8>,
    copied_sent: usize,
    byte_count: usize,
}

impl OutgoingQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.byte_count == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.byte_count >= QUEUE_BYTES_MAX
    }

    /// Whether `pieces` are to be kept instead of sent at once: something waits, or one of them is
    /// part of the large payload `noted`.
    pub(super) fn wants(&self, pieces: &[IoSlice<'_>], noted: Option<&Bytes>) -> bool {
        !self.is_empty()
            || noted.is_some_and(|noted| pieces.iter().any(|piece| is_part(noted, piece)))
    }

    /// Keeps the first bytes of `pieces` and returns how many; 0 only if there is no memory.
    pub(super) fn keep(&mut self, pieces: &[IoSlice<'_>], noted: Option<&Bytes>) -> usize {
        let (mut kept, mut copied) = (0, 0);
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            if self.pieces.try_reserve(1).is_err() {
                break;
            }
            if let Some(shared) = share(noted, piece) {
                kept += shared.len();
                self.pieces.push_back(Piece::Shared(shared));
                continue;
            }
            let part = piece.get(..piece.len().min(COPIED_BYTES_MAX - copied));
            let part = part.unwrap_or(&[]);
            if part.is_empty() || !self.copy(part) {
                break;
            }
            copied += part.len();
            kept += part.len();
            if part.len() < piece.len() {
                break;
            }
        }
        self.byte_count += kept;
        kept
    }

    /// Keeps a copy of a small frame. Whether there was memory for it.
    pub(super) fn push(&mut self, frame: &[u8]) -> bool {
        let is_kept = self.pieces.try_reserve(1).is_ok() && self.copy(frame);
        if is_kept {
            self.byte_count += frame.len();
        }
        is_kept
    }

    /// Whether there was memory for a copy of `part`.
    fn copy(&mut self, part: &[u8]) -> bool {
        // What is gone makes room, at the cost of moving less than is gone.
        if self.copied_sent > self.copied.len() / 2 {
            self.copied.drain(..self.copied_sent);
            self.copied_sent = 0;
        }
        if try_extend(&mut self.copied, part).is_err() {
            return false;
        }
        match self.pieces.back_mut() {
            Some(Piece::Copied(count)) => *count += part.len(),
            _ => self.pieces.push_back(Piece::Copied(part.len())),
        }
        true
    }

    /// Has `send` send all that waits; it gets the next pieces, and returns how many bytes it has
    /// sent.
    pub(super) fn poll_send(
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

    fn next_pieces(&self) -> SmallVec<[IoSlice<'_>; PIECES_MAX]> {
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

    /// Frames of a message as h2 writes them: a head, then a part of the payload.
    fn write(queue: &mut OutgoingQueue, payload: &Bytes, frame_bytes: usize) -> Vec<u8> {
        let mut wire = Vec::new();
        for (index, part) in payload.chunks(frame_bytes).enumerate() {
            let head = [index as u8; 9];
            let pieces = [IoSlice::new(&head), IoSlice::new(part)];
            assert!(queue.wants(&pieces, Some(payload)));
            assert_eq!(queue.keep(&pieces, Some(payload)), 9 + part.len());
            wire.extend_from_slice(&head);
            wire.extend_from_slice(part);
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
        let small = [IoSlice::new(&[2; 30])];
        assert!(!OutgoingQueue::default().wants(&small, Some(&payload)));
        assert!(queue.wants(&small, None), "it is not to overtake");
    }

    #[test]
    fn it_is_full_at_its_bound_and_copies_in_parts() {
        let mut queue = OutgoingQueue::default();
        let payload = Bytes::from(vec![1; QUEUE_BYTES_MAX]);
        write(&mut queue, &payload, 16_384);
        assert!(queue.is_full());
        let large = vec![2; COPIED_BYTES_MAX + 1];
        let pieces = [IoSlice::new(&[3; 9]), IoSlice::new(&large)];
        assert_eq!(queue.keep(&pieces, None), COPIED_BYTES_MAX);
        let (wire, calls) = sent(&mut queue, usize::MAX);
        assert_eq!(
            &wire[wire.len() - COPIED_BYTES_MAX..][..10],
            [3, 3, 3, 3, 3, 3, 3, 3, 3, 2]
        );
        assert_eq!(calls, 1);
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
}
