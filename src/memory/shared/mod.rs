//! Memory shared with other processes: a named POSIX shared memory object, mapped.
//!
//! Its bytes may change at any moment, whatever anybody here does. Rust's references promise that
//! this does not happen, so none is ever made into such memory: it is handed to backends by
//! address, as C does, and code of ours copies out of it (or into it) by `SharedMapping::read`
//! and `SharedMapping::write`, and looks at the copy. A copy made while the other process writes
//! may hold any mixture; whoever checks it uses the same copy afterwards.

use std::any::Any;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FileType, Mode};
use rustix::shm;

use crate::fault::AddressWatch;
use crate::{Block, ByteView, MemoryPlace};

/// Why an object could not be mapped.
#[derive(Debug)]
pub enum MapError {
    /// It cannot be opened for reading and writing.
    Open(io::Error),
    /// It is no regular file, or says nothing about itself.
    Unusable,
    /// It belongs to this user, whose objects are not to be mapped.
    Foreign(u32),
    /// The part that was asked for does not lie within it.
    OutOfBounds,
    /// The system refuses the mapping.
    Map(io::Error),
    /// Too many objects are mapped.
    TooMany,
}

/// Whose objects may be mapped. Who may only talk to this process over a network shall not borrow
/// its right to other users' memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedOwners {
    /// Those of the user that this process runs as; of all users if that is root, whom nothing
    /// would be kept from anyway.
    #[default]
    Own,
    All,
    Only(Vec<u32>),
}

impl AllowedOwners {
    fn include(&self, owner: u32) -> bool {
        match self {
            AllowedOwners::Own => {
                let own = rustix::process::geteuid();
                own.is_root() || own.as_raw() == owner
            }
            AllowedOwners::All => true,
            AllowedOwners::Only(users) => users.contains(&owner),
        }
    }
}

/// A mapped part of a shared memory object.
pub struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
    /// Before the mapping goes: what is mapped at the same place afterwards is none of the watch's
    /// business.
    watch: Option<AddressWatch>,
}

// SAFETY: the mapping belongs to this value and has no thread affinity.
unsafe impl Send for SharedMapping {}
// SAFETY: through a shared reference bytes are only copied, or their address handed on; other
// processes change them at any time anyway, and nobody relies on their staying the same (see the
// module).
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes from `offset` on of the object called `key`, which must belong to one of
    /// `owners`. Blocks as long as the kernel does.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn open(
        key: &CStr,
        offset: u64,
        len: u64,
        owners: &AllowedOwners,
    ) -> Result<SharedMapping, MapError> {
        // The C library refuses names that lead out of its directory, does not follow links and
        // sets CLOEXEC.
        let file = shm::open(key, shm::OFlags::RDWR, Mode::empty())
            .map_err(|error| MapError::Open(error.into()))?;
        let end = offset.checked_add(len).ok_or(MapError::OutOfBounds)?;
        let (owner, size) = facts_of(&file)?;
        if !owners.include(owner) {
            return Err(MapError::Foreign(owner));
        }
        if end > size {
            return Err(MapError::OutOfBounds);
        }
        let (Ok(position), Ok(len)) = (libc::off_t::try_from(offset), usize::try_from(len)) else {
            return Err(MapError::OutOfBounds);
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                position,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(MapError::Map(io::Error::last_os_error()));
        }
        let mut shared = SharedMapping {
            base: NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED"),
            len,
            watch: None,
        };
        let start = shared.base.as_ptr().addr();
        // The kernel maps whole pages, so the end of the last one is an address.
        let end = start + len.next_multiple_of(rustix::param::page_size());
        shared.watch = Some(AddressWatch::over(start, end).ok_or(MapError::TooMany)?);
        Ok(shared)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the object shrank, or the system had no memory for it, and somebody stumbled over
    /// that: since then here are zeros, which nobody else sees.
    pub fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(AddressWatch::is_lost)
    }

    /// The bytes `start..start + len`, which the view keeps mapped; `keeper` is dropped with the
    /// view, after it has let go of the mapping. None if they do not lie inside.
    pub fn view<K: Any + Send + Sync>(
        self: &Arc<Self>,
        start: usize,
        len: usize,
        keeper: K,
    ) -> Option<ByteView> {
        start.checked_add(len).filter(|end| *end <= self.len)?;
        // SAFETY: `start` lies inside the mapping or at its end.
        let base = unsafe { self.base.add(start) };
        // In this order: a keeper with a reference of its own decides where the last one is
        // dropped.
        let owner = Arc::new((Arc::clone(self), keeper));
        // SAFETY: the mapping stays at its place, readable and writable, for as long as the owner
        // lives.
        Some(unsafe { ByteView::shared(base, len, MemoryPlace::CPU, owner) })
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        drop(self.watch.take());
        // SAFETY: base and length describe a mapping that this value owns; views keep the value
        // alive.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Copies out of and into views of shared memory. Each copies the bytes once, in no particular
/// order.
impl ByteView {
    /// Appends the bytes from `start` on to `target`, as many as it has room for.
    pub fn read(&self, start: usize, target: &mut Block) {
        let spare = target.spare_mut();
        let count = self.len().saturating_sub(start).min(spare.len());
        if !self.place().is_host() || count == 0 {
            return;
        }
        // SAFETY: `start + count` bytes are inside the view, `count` inside the spare capacity,
        // which is exclusively borrowed. Another process may write the source meanwhile: memcpy
        // then gives some bytes or other, of which nothing is assumed.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr().add(start), spare.as_mut_ptr(), count)
        };
        target.advance(count);
    }

    /// Copies `bytes` to the beginning of shared memory. False if the view is not of such memory,
    /// is too short, or lies where the CPU cannot write.
    pub fn write(&self, bytes: &[u8]) -> bool {
        if !self.is_shared() || !self.place().is_host() || bytes.len() > self.len() {
            return false;
        }
        // SAFETY: the bytes fit, and shared memory is writable and never borrowed; what others
        // write at the same time is their business.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr().cast_mut(), bytes.len())
        };
        true
    }
}

impl std::fmt::Debug for SharedMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

fn facts_of(file: &OwnedFd) -> Result<(u32, u64), MapError> {
    let facts = rustix::fs::fstat(file).map_err(|_| MapError::Unusable)?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Err(MapError::Unusable);
    }
    let size = u64::try_from(facts.st_size).map_err(|_| MapError::Unusable)?;
    Ok((facts.st_uid, size))
}

// Shared memory is beyond Miri.
#[cfg(not(miri))]
#[cfg(test)]
pub(crate) mod tests;
