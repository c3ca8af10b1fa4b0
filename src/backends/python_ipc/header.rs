//! The words at the beginning of a block.

use std::time::Duration;

use crate::ALIGNMENT_BYTES;
#[cfg(not(loom))]
use crate::SharedSegment;
use crate::bell::{AtomicU32, AtomicU64, Ordering, fence, wait, wake};

/// What became of a block that the other side was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The other side uses it, or its own side does and has not said that it is done.
    InUse,
    /// The other side is done with it, and wrote its reply, if it has one.
    Done,
}

/// The header of one block: words that both sides read and write.
#[derive(Clone, Copy, Debug)]
pub struct BlockHeader<'s> {
    offset: u64,
    state: &'s AtomicU32,
    /// A thread of the block's owner waits for the state.
    is_awaited: &'s AtomicU32,
    /// Bytes of the message behind the header.
    message_bytes: &'s AtomicU64,
    /// The block with the reply, in the other side's segment; 0: none.
    reply: &'s AtomicU64,
}

const DONE: u32 = 1;

impl<'s> BlockHeader<'s> {
    /// Bytes of a header.
    pub const BYTES: u64 = ALIGNMENT_BYTES;

    /// The header of the block at `offset`; none unless it lies inside the segment, where blocks
    /// may begin.
    #[cfg(not(loom))]
    pub fn at(segment: &'s SharedSegment, offset: u64) -> Option<BlockHeader<'s>> {
        if offset < crate::CONTROL_BYTES || !offset.is_multiple_of(ALIGNMENT_BYTES) {
            return None;
        }
        segment.address(offset, Self::BYTES)?;
        Some(BlockHeader {
            offset,
            state: segment.word(offset)?,
            is_awaited: segment.word(offset + 4)?,
            message_bytes: segment.long_word(offset + 8)?,
            reply: segment.long_word(offset + 16)?,
        })
    }

    /// Makes it the header of a new message.
    pub fn begin(&self, message_bytes: u64) {
        self.is_awaited.store(0, Ordering::Relaxed);
        self.message_bytes.store(message_bytes, Ordering::Relaxed);
        self.reply.store(0, Ordering::Relaxed);
        self.state.store(0, Ordering::Release);
    }

    /// Where the message begins.
    pub fn message_at(&self) -> u64 {
        self.offset + Self::BYTES
    }

    /// Where its tensors begin.
    pub fn tensors_at(&self) -> u64 {
        let end = self.message_at().saturating_add(self.message_bytes());
        end.saturating_add(ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES
    }

    pub fn message_bytes(&self) -> u64 {
        self.message_bytes.load(Ordering::Relaxed)
    }

    /// A copy of the message; none unless it lies inside the segment and has at most `bytes_max`
    /// bytes.
    #[cfg(not(loom))]
    pub fn read_message(&self, segment: &SharedSegment, bytes_max: u64) -> Option<Vec<u8>> {
        let bytes = self.message_bytes();
        if bytes > bytes_max {
            return None;
        }
        segment.read(self.message_at(), bytes)
    }

    pub fn state(&self) -> BlockState {
        match self.state.load(Ordering::Acquire) {
            DONE => BlockState::Done,
            _ => BlockState::InUse,
        }
    }

    /// The block with the reply, once the state is [`BlockState::Done`]; 0: there is none.
    pub fn reply(&self) -> u64 {
        self.reply.load(Ordering::Relaxed)
    }

    /// Says that the block is done with, and where the reply is (0: none). Wakes whoever waits.
    pub fn finish(&self, reply: u64) {
        self.reply.store(reply, Ordering::Relaxed);
        self.state.store(DONE, Ordering::Release);
        // Pairs with that of `wait`: either this sees that somebody waits, or the waiter sees the
        // state.
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) != 0 {
            wake(self.state);
        }
    }

    /// Blocks until it is done with, or for `timeout`; says whether it is.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.is_awaited.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let deadline = timeout.map(|timeout| std::time::Instant::now() + timeout);
        while self.state.load(Ordering::Acquire) != DONE {
            let left = deadline.map(|end| end.saturating_duration_since(std::time::Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            wait(self.state, 0, left);
        }
        true
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct Words {
        state: AtomicU32,
        is_awaited: AtomicU32,
        message_bytes: AtomicU64,
        reply: AtomicU64,
    }

    impl Words {
        fn header(&self) -> BlockHeader<'_> {
            BlockHeader {
                offset: 0,
                state: &self.state,
                is_awaited: &self.is_awaited,
                message_bytes: &self.message_bytes,
                reply: &self.reply,
            }
        }
    }

    #[test]
    fn no_end_is_missed() {
        loom::model(|| {
            let words = Arc::new(Words::default());
            words.header().begin(5);
            let other = thread::spawn({
                let words = Arc::clone(&words);
                move || words.header().finish(9)
            });
            assert!(words.header().wait(None));
            assert_eq!(words.header().reply(), 9);
            other.join().unwrap();
        });
    }
}
