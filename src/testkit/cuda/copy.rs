//! Copies and fills: what they refuse at once, and what a stream then does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::backing::Backing;
use crate::code::{Code, ILLEGAL_ADDRESS, INVALID_VALUE};
use crate::driver::{Driver, lock};
use crate::faults;
use crate::host::Block;
use crate::space::Piece;
use crate::tally;

/// The delay that holds copies or kernels back until there is another.
const HELD: u64 = u64::MAX;

/// Which memory a copy function takes at one of its ends.
#[derive(Clone, Copy, PartialEq)]
pub enum EndpointKind {
    Device,
    Host,
    /// Either, told by the address.
    Any,
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub struct CopyEndpoint {
    pub address: u64,
    pub kind: EndpointKind,
}

/// Memory that a copy reads or writes, and what keeps it.
enum Memory {
    Device(Vec<Piece>),
    /// A device range that the device may not access.
    Forbidden,
    Pinned {
        address: usize,
        _keeps: Option<Arc<Block>>,
    },
    Pageable(usize),
    Staged(Vec<u8>),
}

/// Consecutive bytes: where they are and how many.
type Segment = (usize, usize);

impl Memory {
    /// As the tally names it.
    fn kind(&self) -> &'static str {
        match self {
            Memory::Device(_) | Memory::Forbidden => "device",
            Memory::Pinned { .. } => "pinned",
            Memory::Pageable(_) | Memory::Staged(_) => "pageable",
        }
    }

    fn segments(&self, len: usize) -> Result<Vec<Segment>, Code> {
        match self {
            Memory::Device(pieces) => pieces.iter().map(alias).collect(),
            Memory::Forbidden => Err(ILLEGAL_ADDRESS),
            Memory::Pinned { address, .. } | Memory::Pageable(address) => Ok(vec![(*address, len)]),
            Memory::Staged(bytes) => Ok(vec![(bytes.as_ptr() as usize, len)]),
        }
    }
}

fn alias(piece: &Piece) -> Result<Segment, Code> {
    let backing: &Backing = &piece.backing;
    let address = backing
        .alias(piece.offset, piece.len)
        .ok_or(ILLEGAL_ADDRESS)?;
    Ok((address, piece.len))
}

/// Finds the memory at one end. Device memory must lie in what exists, to its last byte.
fn resolve(driver: &Driver, end: CopyEndpoint, len: usize, device: usize) -> Result<Memory, Code> {
    let space = lock(&driver.space);
    let is_device = space.window.contains(end.address);
    match (end.kind, is_device) {
        (EndpointKind::Device, false) | (EndpointKind::Host, true) => return Err(INVALID_VALUE),
        (_, true) => {
            return match space.pieces(end.address, len, device) {
                Ok(pieces) => Ok(Memory::Device(pieces)),
                Err(ILLEGAL_ADDRESS) => Ok(Memory::Forbidden),
                Err(code) => Err(code),
            };
        }
        (_, false) => drop(space),
    }
    let address = usize::try_from(end.address).map_err(|_| INVALID_VALUE)?;
    if address == 0 {
        return Err(INVALID_VALUE);
    }
    match lock(&driver.pinned).find(address) {
        None => Ok(Memory::Pageable(address)),
        Some((start, range)) if len <= start + range.len - address => Ok(Memory::Pinned {
            address,
            _keeps: range.block.clone(),
        }),
        Some(_) => Err(INVALID_VALUE),
    }
}

/// Copies out of what a device may access.
///
/// # Safety
/// `target` is writable for `len` bytes.
pub unsafe fn read(
    driver: &Driver,
    target: *mut u8,
    address: u64,
    len: usize,
    device: usize,
) -> Result<(), Code> {
    each_piece(driver, address, len, device, |base, start, len| {
        // SAFETY: the piece keeps its memory; the target has room by this function's contract.
        unsafe { std::ptr::copy(base as *const u8, target.add(start), len) };
    })
}

/// Copies into what a device may access.
///
/// # Safety
/// `source` is readable for `len` bytes.
pub unsafe fn write(
    driver: &Driver,
    address: u64,
    source: *const u8,
    len: usize,
    device: usize,
) -> Result<(), Code> {
    each_piece(driver, address, len, device, |base, start, len| {
        // SAFETY: the piece keeps its memory; the source is that long by this function's contract.
        unsafe { std::ptr::copy(source.add(start), base as *mut u8, len) };
    })
}

/// Calls `copy` for each piece of what a device may access: with where the server has it, where it
/// begins within the whole, and its length.
fn each_piece(
    driver: &Driver,
    address: u64,
    len: usize,
    device: usize,
    mut copy: impl FnMut(usize, usize, usize),
) -> Result<(), Code> {
    let pieces = lock(&driver.space).pieces(address, len, device)?;
    let mut start = 0;
    for piece in &pieces {
        let (base, len) = alias(piece)?;
        copy(base, start, len);
        start += len;
    }
    Ok(())
}

/// Enqueues a copy on a stream of the current context.
///
/// # Safety
/// Host memory must be valid for `len` bytes, pinned memory until the stream is done with it; all
/// of it again whenever a graph repeats what was captured.
pub unsafe fn copy(
    driver: &'static Driver,
    to: CopyEndpoint,
    from: CopyEndpoint,
    len: usize,
    stream: usize,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    // SAFETY: by this function's contract.
    let again = move |stream| unsafe { copy(driver, to, from, len, stream) };
    if len == 0 || stream.capture.take(|| again) {
        return Ok(());
    }
    let to = resolve(driver, to, len, stream.device)?;
    let from = match resolve(driver, from, len, stream.device)? {
        Memory::Pageable(address) => {
            let mut bytes = vec![0_u8; len];
            // SAFETY: the caller's memory has `len` bytes, as does the vector.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), len) };
            Memory::Staged(bytes)
        }
        other => other,
    };
    let must_wait = matches!(to, Memory::Pageable(_));
    let kinds = (from.kind(), to.kind());
    stream.enqueue(Box::new(move || {
        pause(&driver.copy_us);
        faults::pass("copy").map_or(Ok(()), Err)?;
        let (to, from) = (to.segments(len)?, from.segments(len)?);
        // SAFETY: `to` and `from` keep their memory; host memory is valid by this function's
        // contract.
        unsafe { move_bytes(&to, &from) };
        tally::add(kinds.0, kinds.1, len);
        Ok(())
    }));
    if !must_wait {
        return Ok(());
    }
    let outcome = stream.synchronize();
    // The copy may have left a sticky error.
    driver.current()?;
    outcome
}

/// Enqueues a fill of device memory on a stream of the current context.
pub fn fill(
    driver: &'static Driver,
    to: u64,
    value: u8,
    len: usize,
    stream: usize,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    let again = move |stream| fill(driver, to, value, len, stream);
    if len == 0 || stream.capture.take(|| again) {
        return Ok(());
    }
    let end = CopyEndpoint {
        address: to,
        kind: EndpointKind::Device,
    };
    let to = resolve(driver, end, len, stream.device)?;
    stream.enqueue(Box::new(move || {
        faults::pass("memset").map_or(Ok(()), Err)?;
        for (address, len) in to.segments(len)? {
            // SAFETY: the bytes lie in the alias of memory that `to` keeps.
            unsafe { (address as *mut u8).write_bytes(value, len) };
        }
        Ok(())
    }));
    Ok(())
}

/// Waits for as long as tests want copies, or kernels, to take.
pub fn pause(delay: &AtomicU64) {
    while delay.load(Ordering::Acquire) == HELD {
        std::thread::sleep(Duration::from_millis(1));
    }
    let delay = delay.load(Ordering::Acquire);
    if delay > 0 && delay != HELD {
        std::thread::sleep(Duration::from_micros(delay));
    }
}

/// Copies between two lists of segments of the same length in all.
///
/// # Safety
/// The segments must be valid memory.
unsafe fn move_bytes(to: &[Segment], from: &[Segment]) {
    let (mut to, mut from) = (to.iter().copied(), from.iter().copied());
    let (mut target, mut source) = (to.next(), from.next());
    while let (Some((into, room)), Some((out, left))) = (target, source) {
        let len = room.min(left);
        // SAFETY: both segments have at least `len` bytes; they may overlap.
        unsafe { std::ptr::copy(out as *const u8, into as *mut u8, len) };
        target = if len < room {
            Some((into + len, room - len))
        } else {
            to.next()
        };
        source = if len < left {
            Some((out + len, left - len))
        } else {
            from.next()
        };
    }
}
