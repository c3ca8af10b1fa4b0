//! One message at a time, from one side of a pair to the other: commands, and their replies.

use std::time::Duration;

use crate::bell::{AtomicU32, AtomicU64, Bell, Ordering, fence};
#[cfg(not(loom))]
use crate::{SLOT_AT, SharedSegment};

/// Where a message lies in its sender's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Of its block.
    pub offset: u64,
    /// Counts the messages of this slot.
    pub sequence: u32,
}

/// The control words of one direction. The sender sends the next message only when the receiver has
/// answered the last.
#[derive(Clone, Copy, Debug)]
pub struct MessageSlot<'s> {
    bell: &'s AtomicU32,
    sequence: &'s AtomicU32,
    offset: &'s AtomicU64,
    /// The sequence of the last message that the receiver took.
    taken: &'s AtomicU32,
    /// The receiver sleeps, or is about to; the sender need not ring otherwise.
    is_awaited: &'s AtomicU32,
}

impl<'s> MessageSlot<'s> {
    /// The slot of a segment's owner.
    ///
    /// # Panics
    /// Not with a segment of at least the control area.
    #[cfg(not(loom))]
    pub fn of(segment: &'s SharedSegment) -> MessageSlot<'s> {
        let inside = "in the control area";
        MessageSlot {
            bell: segment.word(SLOT_AT).expect(inside),
            sequence: segment.word(SLOT_AT + 4).expect(inside),
            offset: segment.long_word(SLOT_AT + 8).expect(inside),
            taken: segment.word(SLOT_AT + 16).expect(inside),
            is_awaited: segment.word(SLOT_AT + 20).expect(inside),
        }
    }

    /// Sends the message in the block at `offset`; its sequence.
    pub fn send(self, offset: u64) -> u32 {
        self.offset.store(offset, Ordering::Relaxed);
        // Release: who sees the new sequence sees the offset, and the block.
        let before = self.sequence.fetch_add(1, Ordering::Release);
        // Pairs with that of `wait`: either this sees that the receiver waits, or the receiver sees
        // the new sequence.
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) != 0 {
            Bell::new(self.bell).ring();
        }
        before.wrapping_add(1)
    }

    /// The receiver says that it has the message with this sequence, before it acts on it.
    pub fn take(self, sequence: u32) {
        self.taken.store(sequence, Ordering::Release);
    }

    /// The sequence of the last message that the receiver took. Of a receiver that has ended it is
    /// final: what was sent later was never acted on.
    pub fn last_taken(self) -> u32 {
        self.taken.load(Ordering::Acquire)
    }

    /// The message after the one with the sequence `last`, if it has come.
    pub fn poll(self, last: u32) -> Option<Message> {
        let sequence = self.sequence.load(Ordering::Acquire);
        (sequence != last).then(|| Message {
            offset: self.offset.load(Ordering::Relaxed),
            sequence,
        })
    }

    /// Blocks until that message has come; none once `is_over` says so, or after `timeout`.
    pub fn wait(
        self,
        last: u32,
        timeout: Option<Duration>,
        is_over: impl Fn() -> bool,
    ) -> Option<Message> {
        let bell = Bell::new(self.bell);
        let deadline = timeout.map(|timeout| std::time::Instant::now() + timeout);
        loop {
            if let Some(message) = self.poll(last) {
                return Some(message);
            }
            let left = deadline.map(|end| end.saturating_duration_since(std::time::Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let seen = bell.count();
            self.is_awaited.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let is_over = is_over();
            if !is_over && self.poll(last).is_none() {
                bell.wait(seen, left);
            }
            self.is_awaited.store(0, Ordering::Relaxed);
            if is_over {
                return self.poll(last);
            }
        }
    }

    /// Has a receiver that waits look at its `is_over`.
    pub fn interrupt(self) {
        Bell::new(self.bell).ring();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn messages_come_one_after_the_other() {
        let segment = Arc::new(SharedSegment::create("slot", crate::CONTROL_BYTES).unwrap());
        let replies = Arc::new(SharedSegment::create("replies", crate::CONTROL_BYTES).unwrap());
        let peer = thread::spawn({
            let (segment, replies) = (Arc::clone(&segment), Arc::clone(&replies));
            move || {
                let mut last = 0;
                for _ in 0..1000 {
                    let slot = MessageSlot::of(&segment);
                    let message = slot.wait(last, None, || false).unwrap();
                    last = message.sequence;
                    MessageSlot::of(&replies).send(message.offset * 2);
                }
            }
        });
        let mut last = 0;
        for number in 0..1000 {
            MessageSlot::of(&segment).send(number);
            let reply = MessageSlot::of(&replies).wait(last, None, || false);
            let reply = reply.unwrap();
            assert_eq!(reply.offset, number * 2);
            last = reply.sequence;
        }
        peer.join().unwrap();
    }

    #[test]
    fn a_message_counts_as_taken_once_the_receiver_says_so() {
        let segment = SharedSegment::create("slot", crate::CONTROL_BYTES).unwrap();
        let slot = MessageSlot::of(&segment);
        assert_eq!((slot.send(64), slot.last_taken()), (1, 0));
        let message = slot.wait(0, None, || false).unwrap();
        assert_eq!(slot.last_taken(), 0, "a look takes nothing");
        slot.take(message.sequence);
        assert_eq!((slot.last_taken(), slot.send(128)), (1, 2));
    }

    #[test]
    fn only_a_receiver_that_waits_is_rung_for() {
        let segment = Arc::new(SharedSegment::create("slot", crate::CONTROL_BYTES).unwrap());
        let slot = MessageSlot::of(&segment);
        let rings = || slot.bell.load(Ordering::SeqCst);
        slot.send(64);
        assert!(slot.wait(0, None, || false).is_some());
        assert_eq!(rings(), 0);
        let waiting = thread::spawn({
            let segment = Arc::clone(&segment);
            move || MessageSlot::of(&segment).wait(1, None, || false)
        });
        while slot.is_awaited.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        slot.send(128);
        assert_eq!(waiting.join().unwrap().unwrap().offset, 128);
        assert_eq!(slot.is_awaited.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_wait_ends_in_time_and_when_it_is_over() {
        let segment = Arc::new(SharedSegment::create("slot", crate::CONTROL_BYTES).unwrap());
        let slot = MessageSlot::of(&segment);
        let brief = Some(Duration::from_millis(1));
        assert_eq!(slot.wait(0, brief, || false), None);
        let is_over = Arc::new(AtomicBool::new(false));
        let other = thread::spawn({
            let (segment, is_over) = (Arc::clone(&segment), Arc::clone(&is_over));
            move || {
                is_over.store(true, Ordering::SeqCst);
                MessageSlot::of(&segment).interrupt();
            }
        });
        assert_eq!(slot.wait(0, None, || is_over.load(Ordering::SeqCst)), None);
        other.join().unwrap();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct Words {
        bell: AtomicU32,
        sequence: AtomicU32,
        offset: AtomicU64,
        taken: AtomicU32,
        is_awaited: AtomicU32,
        is_over: AtomicBool,
    }

    impl Words {
        fn slot(&self) -> MessageSlot<'_> {
            MessageSlot {
                bell: &self.bell,
                sequence: &self.sequence,
                offset: &self.offset,
                taken: &self.taken,
                is_awaited: &self.is_awaited,
            }
        }
    }

    #[test]
    fn no_message_is_missed() {
        loom::model(|| {
            let words = Arc::new(Words::default());
            let sender = thread::spawn({
                let words = Arc::clone(&words);
                move || {
                    words.slot().send(7);
                }
            });
            // Nobody else would ring.
            let message = words.slot().wait(0, None, || false).unwrap();
            assert_eq!((message.offset, message.sequence), (7, 1));
            sender.join().unwrap();
        });
    }

    #[test]
    fn no_message_and_no_end_is_missed() {
        // Three threads: without a bound it takes longer than anybody waits.
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let words = Arc::new(Words::default());
            let sender = thread::spawn({
                let words = Arc::clone(&words);
                move || {
                    words.slot().send(7);
                }
            });
            let closer = thread::spawn({
                let words = Arc::clone(&words);
                move || {
                    words.is_over.store(true, Ordering::SeqCst);
                    words.slot().interrupt();
                }
            });
            let over = || words.is_over.load(Ordering::SeqCst);
            if let Some(message) = words.slot().wait(0, None, over) {
                assert_eq!((message.offset, message.sequence), (7, 1));
                assert_eq!(words.slot().wait(1, None, over), None);
            }
            sender.join().unwrap();
            closer.join().unwrap();
            assert_eq!(words.slot().poll(0).unwrap().offset, 7);
        });
    }
}
