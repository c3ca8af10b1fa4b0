//! Device memory that processes share by handles.

use std::sync::Arc;

use crate::backing::Backing;
use crate::code::{Code, INVALID_CONTEXT, INVALID_VALUE, PEER_ACCESS_UNSUPPORTED};
use crate::driver::{Driver, lock};
use crate::space::{Allocation, Origin};

const MAGIC: u64 = u64::from_le_bytes(*b"cudadbl1");
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
const WORDS: usize = 7;
/// Alignment of `cuMemAlloc`, which mappings of it have too.
pub const ALIGNMENT: u64 = 4096;

/// A `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Handle {
    pub bytes: [u8; 64],
}

impl Handle {
    fn pack(words: [u64; WORDS]) -> Handle {
        let mut bytes = [0; 64];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Handle { bytes }
    }

    fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(self.bytes.chunks_exact(8)) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(place);
            *word = u64::from_le_bytes(bytes);
        }
        words
    }
}

/// The handle of the whole allocation that an address lies in.
pub fn export(driver: &Driver, address: u64) -> Result<Handle, Code> {
    driver.current()?;
    let space = lock(&driver.space);
    let (_, found) = space.find(address).ok_or(INVALID_VALUE)?;
    if !matches!(found.origin, Origin::Allocated) {
        return Err(INVALID_VALUE);
    }
    let device = driver.devices.get(found.device).ok_or(INVALID_VALUE)?;
    Ok(Handle::pack([
        MAGIC,
        u64::from(std::process::id()),
        found.backing.descriptor() as u64,
        found.size,
        device.hardware.index as u64,
        found.backing.inode(),
        found.id,
    ]))
}

/// Maps the allocation of another process into the current context.
pub fn open(driver: &Driver, handle: Handle, flags: u32) -> Result<u64, Code> {
    let current = driver.current()?;
    let [magic, pid, descriptor, size, index, inode, _generation] = handle.words();
    if magic != MAGIC || flags & !LAZY_ENABLE_PEER_ACCESS != 0 || size == 0 {
        return Err(INVALID_VALUE);
    }
    if pid == u64::from(std::process::id()) {
        return Err(INVALID_CONTEXT);
    }
    let is_elsewhere = index != current.hardware.index as u64;
    if is_elsewhere && (flags == 0 || !driver.config.can_access_peer) {
        return Err(PEER_ACCESS_UNSUPPORTED);
    }
    let (pid, descriptor) = (narrow(pid)?, narrow(descriptor)?);
    let backing =
        Backing::open(pid, descriptor, size as usize, inode).map_err(|_| INVALID_VALUE)?;
    let mut space = lock(&driver.space);
    // A handle that is open already gives the same address, and counts.
    for (address, found) in &mut space.allocations {
        if let Origin::Imported {
            inode: known,
            opened,
        } = &mut found.origin
            && *known == inode
            && found.device == current.ordinal
        {
            *opened += 1;
            return Ok(*address);
        }
    }
    let allocation = Allocation {
        size,
        device: current.ordinal,
        origin: Origin::Imported { inode, opened: 1 },
        backing: Arc::new(backing),
        offset: 0,
        access: u64::MAX,
        id: 0,
    };
    space.place(allocation, ALIGNMENT)
}

fn narrow(word: u64) -> Result<u32, Code> {
    u32::try_from(word).map_err(|_| INVALID_VALUE)
}

/// Takes back one [`open`] of exactly this address; the last unmaps it.
pub fn close(driver: &Driver, address: u64) -> Result<(), Code> {
    driver.current()?;
    let mut space = lock(&driver.space);
    let found = space.allocations.get_mut(&address).ok_or(INVALID_VALUE)?;
    let Origin::Imported { opened, .. } = &mut found.origin else {
        return Err(INVALID_VALUE);
    };
    *opened -= 1;
    if *opened == 0 {
        drop(space.remove(address));
    }
    Ok(())
}
