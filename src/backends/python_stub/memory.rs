//! Both segments, seen from the stub: commands come in one, replies and posted messages go out in
//! the other.
//!
//! The process trusts the backend: offsets that it sends are not checked here but where they are
//! used.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conch_python_ipc::{
    ALIGNMENT_BYTES, BlockAllocator, BlockHeader, MessageSlot, OffsetRing, SharedSegment,
};

/// How long a thread without room waits before it looks again whether a block came back.
const ROOM_LOOK: Duration = Duration::from_millis(2);

/// Memory that was not used for so long goes back, or twice that.
const TRIM_PAUSE: Duration = Duration::from_secs(5);

/// Looks of one wait for room; some seconds, as the server gives blocks back at once.
const ROOM_LOOKS_MAX: u32 = 15_000;

/// The memory of this process' connection to the backend. Every thread may use it.
#[derive(Debug)]
pub(crate) struct StubMemory {
    /// The backend's, with its commands.
    requests: SharedSegment,
    /// Ours.
    blocks: BlockAllocator,
    last_command: AtomicU32,
    /// Where the last command's block begins, and its tensors end.
    command: (AtomicU64, AtomicU64),
    /// One thread at a time posts.
    posting: Mutex<()>,
}

/// Bytes of a tensor that go into a block. Whoever makes it keeps them readable as long as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    address: *const u8,
    bytes: usize,
}

impl Part {
    /// # Safety
    /// The bytes are readable as long as the part is used.
    pub(crate) unsafe fn new(address: *const u8, bytes: usize) -> Part {
        Part { address, bytes }
    }

    /// Bytes that it takes up in a block.
    pub(crate) fn room(self) -> Option<u64> {
        (self.bytes as u64).checked_next_multiple_of(ALIGNMENT_BYTES)
    }
}

impl StubMemory {
    /// Maps the two segments.
    ///
    /// # Errors
    /// If one of the files is no segment.
    pub(crate) fn open(requests: OwnedFd, responses: OwnedFd) -> io::Result<StubMemory> {
        let open = |file| SharedSegment::open(file).map_err(io::Error::other);
        Ok(StubMemory {
            requests: open(requests)?,
            blocks: BlockAllocator::new(Arc::new(open(responses)?), Arc::new(())),
            last_command: AtomicU32::new(0),
            command: (AtomicU64::new(0), AtomicU64::new(0)),
            posting: Mutex::new(()),
        })
    }

    /// Where the backend's segment begins in this process.
    pub(crate) fn requests_address(&self) -> usize {
        self.requests.base().addr()
    }

    pub(crate) fn requests_bytes(&self) -> u64 {
        self.requests.len()
    }

    /// Blocks until the backend sends a command; the offset of its block. For one thread. Gives
    /// memory back that was not used for a while.
    pub(crate) fn next(&self) -> u64 {
        loop {
            let last = self.last_command.load(Ordering::Relaxed);
            let is_idle = self.blocks.is_trimmed();
            let timeout = (!is_idle).then_some(TRIM_PAUSE);
            let slot = MessageSlot::of(&self.requests);
            if let Some(message) = slot.wait(last, timeout, || false) {
                slot.take(message.sequence);
                self.last_command.store(message.sequence, Ordering::Relaxed);
                return message.offset;
            }
            self.blocks.trim();
        }
    }

    /// A copy of the message in a block of the backend's, and where its tensors begin.
    pub(crate) fn message(&self, offset: u64) -> Option<(Vec<u8>, u64)> {
        let header = BlockHeader::at(&self.requests, offset)?;
        let message = header.read_message(&self.requests, self.requests.len())?;
        Some((message, header.tensors_at()))
    }

    /// Notes where the tensors of the last command lie. They are the backend's until it has the
    /// reply, so outputs may be left there.
    pub(crate) fn set_command_tensors(&self, begin: u64, end: u64) {
        self.command.0.store(begin, Ordering::Relaxed);
        self.command.1.store(end, Ordering::Relaxed);
    }

    /// Where bytes lie in the backend's segment, if they are among the tensors of the last command.
    pub(crate) fn offset_in_command(&self, address: usize, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.requests_address())? as u64;
        let (begin, end) = (&self.command.0, &self.command.1);
        let is_inside = offset >= begin.load(Ordering::Relaxed)
            && offset.checked_add(bytes)? <= end.load(Ordering::Relaxed);
        is_inside.then_some(offset)
    }

    /// Says that a block of the backend's is done with.
    pub(crate) fn finish(&self, offset: u64) {
        if let Some(header) = BlockHeader::at(&self.requests, offset) {
            header.finish(0);
        }
    }

    /// A block with a message and tensors behind it; none without room.
    pub(crate) fn write(&self, message: &[u8], parts: &[Part]) -> Option<u64> {
        let text_end = BlockHeader::BYTES
            .checked_add(message.len() as u64)?
            .checked_next_multiple_of(ALIGNMENT_BYTES)?;
        let mut end = text_end;
        for part in parts {
            end = end.checked_add(part.room()?)?;
        }
        let offset = self.blocks.take(end)?;
        let segment = self.blocks.segment();
        let header = BlockHeader::at(segment, offset)?;
        header.begin(message.len() as u64);
        segment.write(header.message_at(), message);
        let mut at = offset + text_end;
        for part in parts {
            let target = segment.address(at, part.bytes as u64)?;
            // SAFETY: the target lies inside a block that is ours; the source is readable by the
            // contract of `Part::new`, and may be anywhere, also in this segment.
            unsafe { ptr::copy(part.address, target.as_ptr(), part.bytes) };
            at += part.room()?;
        }
        Some(offset)
    }

    /// The same, and waits for blocks to come back if there is no room. None once that took too
    /// long.
    pub(crate) fn write_waiting(&self, message: &[u8], parts: &[Part]) -> Option<u64> {
        for _ in 0..ROOM_LOOKS_MAX {
            if let Some(offset) = self.write(message, parts) {
                return Some(offset);
            }
            if !self.blocks.has_lent() {
                return None;
            }
            std::thread::sleep(ROOM_LOOK);
        }
        None
    }

    /// Answers the last command with a block, which the backend gives back.
    pub(crate) fn reply(&self, offset: u64) {
        self.blocks.lend(offset);
        MessageSlot::of(self.blocks.segment()).send(offset);
    }

    /// The same, and waits until the backend is done with it.
    pub(crate) fn reply_waiting(&self, offset: u64) {
        MessageSlot::of(self.blocks.segment()).send(offset);
        if let Some(header) = BlockHeader::at(self.blocks.segment(), offset) {
            header.wait(None);
        }
        self.blocks.give_back(offset);
    }

    /// Posts a block that the backend gives back. Blocks while too many are on their way.
    pub(crate) fn post(&self, offset: u64) {
        self.blocks.lend(offset);
        self.push(offset);
    }

    /// Posts a block and waits for its answer: a block of the backend's, or 0.
    pub(crate) fn call(&self, offset: u64) -> u64 {
        self.push(offset);
        let Some(header) = BlockHeader::at(self.blocks.segment(), offset) else {
            return 0;
        };
        header.wait(None);
        let reply = header.reply();
        self.blocks.give_back(offset);
        reply
    }

    fn push(&self, offset: u64) {
        let _posting = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        OffsetRing::of(self.blocks.segment()).push(offset);
    }
}
