//! What a stub process calls to share memory with the Python backend: a C interface for `ctypes`,
//! so that one build serves every CPython.
//!
//! The functions block without the interpreter's lock, as `ctypes.CDLL` gives it up around each
//! call. The process trusts the backend: offsets that it sends are not checked here but where they
//! are used. [`conch_stub_next`] is for one thread; the others may be called from any.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conch_python_ipc::{BlockAllocator, BlockHeader, MessageSlot, OffsetRing, SharedSegment};

/// How long a thread without room waits before it looks again whether a block came back.
const ROOM_LOOK: Duration = Duration::from_millis(2);

/// Looks of one wait for room; some seconds, as the server gives blocks back at once.
const ROOM_LOOKS_MAX: u32 = 15_000;

/// Both segments, seen from the stub.
pub struct StubMemory {
    /// The backend's, with its commands.
    requests: SharedSegment,
    /// Ours.
    blocks: BlockAllocator,
    last_command: AtomicU32,
    /// One thread at a time posts.
    posting: Mutex<()>,
    waits_for_room: AtomicU32,
}

/// Maps the two segments. The files are the caller's no more. Null if one cannot be mapped.
///
/// # Safety
/// Both are open files that nothing else closes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_open(requests: RawFd, responses: RawFd) -> *mut StubMemory {
    // SAFETY: by this function's contract.
    let files = unsafe { [requests, responses].map(|file| OwnedFd::from_raw_fd(file)) };
    let [requests, responses] = files.map(SharedSegment::open);
    let (Ok(requests), Ok(responses)) = (requests, responses) else {
        return ptr::null_mut();
    };
    Box::into_raw(Box::new(StubMemory {
        requests,
        blocks: BlockAllocator::new(Arc::new(responses)),
        last_command: AtomicU32::new(0),
        posting: Mutex::new(()),
        waits_for_room: AtomicU32::new(0),
    }))
}

/// Where a segment begins: 0 that of requests, 1 that of responses.
///
/// # Safety
/// `stub` came from [`conch_stub_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_base(stub: *const StubMemory, which: i32) -> *mut u8 {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    stub.segment(which).base()
}

/// Bytes of a segment.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_length(stub: *const StubMemory, which: i32) -> u64 {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    stub.segment(which).len()
}

/// Blocks until the backend sends a command; the offset of its block.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_next(stub: *const StubMemory) -> u64 {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    loop {
        let last = stub.last_command.load(Ordering::Relaxed);
        if let Some(message) = MessageSlot::of(&stub.requests).wait(last, None, || false) {
            stub.last_command.store(message.sequence, Ordering::Relaxed);
            return message.offset;
        }
    }
}

/// A block of `len` bytes, its header included; 0 without room.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_take(stub: *const StubMemory, len: u64) -> u64 {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    stub.blocks.take(len).unwrap_or(0)
}

/// Waits for blocks to come back. 0 once that took too long: there is no room.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_wait_for_room(stub: *const StubMemory) -> i32 {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    if !stub.blocks.has_lent() {
        return 0;
    }
    std::thread::sleep(ROOM_LOOK);
    let looks = stub.waits_for_room.fetch_add(1, Ordering::Relaxed);
    i32::from(looks < ROOM_LOOKS_MAX)
}

/// Writes the message of a block, which is complete then.
///
/// # Safety
/// As [`conch_stub_base`]; `message` is readable for `len` bytes, and the block has room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_publish(
    stub: *const StubMemory,
    offset: u64,
    message: *const u8,
    len: u64,
) {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    stub.waits_for_room.store(0, Ordering::Relaxed);
    let segment = stub.blocks.segment();
    let Some(header) = BlockHeader::at(segment, offset) else {
        return;
    };
    header.begin(len);
    let len = usize::try_from(len).unwrap_or(0);
    // SAFETY: by this function's contract.
    segment.write(header.message_at(), unsafe {
        slice::from_raw_parts(message, len)
    });
}

/// Answers the last command with a block, which the backend gives back.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_reply(stub: *const StubMemory, offset: u64) {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    stub.blocks.lend(offset);
    MessageSlot::of(stub.blocks.segment()).send(offset);
}

/// Posts a block; `lends` if the backend gives it back, else the caller waits and does. Blocks
/// while too many are on their way.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_post(stub: *const StubMemory, offset: u64, lends: i32) {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    if lends != 0 {
        stub.blocks.lend(offset);
    }
    let _posting = stub.posting.lock().unwrap_or_else(PoisonError::into_inner);
    OffsetRing::of(stub.blocks.segment()).push(offset);
}

/// Blocks until the backend has answered a posted block; the block of the answer, or 0.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_wait(stub: *const StubMemory, offset: u64) -> u64 {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    let Some(header) = BlockHeader::at(stub.blocks.segment(), offset) else {
        return 0;
    };
    header.wait(None);
    header.reply()
}

/// Gives a block of ours back.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_give_back(stub: *const StubMemory, offset: u64) {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    stub.blocks.give_back(offset);
}

/// Says that a block of the backend's is done with.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_finish(stub: *const StubMemory, offset: u64) {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    if let Some(header) = BlockHeader::at(&stub.requests, offset) {
        header.finish(0);
    }
}

/// Copies `len` bytes from an address to `offset` in the segment of responses.
///
/// # Safety
/// As [`conch_stub_base`]; `source` is readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_copy(
    stub: *const StubMemory,
    offset: u64,
    source: *const u8,
    len: u64,
) {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    let Some(target) = stub.blocks.segment().address(offset, len) else {
        return;
    };
    let len = usize::try_from(len).unwrap_or(0);
    // SAFETY: the target lies inside the segment; the source is readable by this function's
    // contract, and may lie in the segment of requests, never in that of responses.
    unsafe { ptr::copy(source, target.as_ptr(), len) };
}

/// Gives pages back that were not used for a while.
///
/// # Safety
/// As [`conch_stub_base`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conch_stub_trim(stub: *const StubMemory) {
    // SAFETY: by this function's contract.
    let stub = unsafe { &*stub };
    stub.blocks.trim();
}

impl StubMemory {
    fn segment(&self, which: i32) -> &SharedSegment {
        match which {
            0 => &self.requests,
            _ => self.blocks.segment(),
        }
    }
}
