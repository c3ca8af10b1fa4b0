//! Memory that two processes map, without a name in any file system.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Why a segment cannot be used.
#[derive(Debug)]
pub enum SegmentError {
    System(io::Error),
    /// The file is not sealed, or too short to hold the control area.
    NotASegment,
}

impl std::fmt::Display for SegmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SegmentError::System(error) => write!(f, "shared memory: {error}"),
            SegmentError::NotASegment => f.write_str("shared memory: not a sealed memory file"),
        }
    }
}

impl std::error::Error for SegmentError {}

impl From<rustix::io::Errno> for SegmentError {
    fn from(errno: rustix::io::Errno) -> SegmentError {
        SegmentError::System(errno.into())
    }
}

/// A memory file of fixed length, mapped for reading and writing. Its pages take up memory from
/// when they are written until they are discarded.
///
/// Other processes may write anything at any time, so bytes are only copied, never borrowed.
#[derive(Debug)]
pub struct SharedSegment {
    base: NonNull<u8>,
    len: u64,
    file: OwnedFd,
}

// SAFETY: the mapping lives as long as the value; bytes are only copied, and words are atomics.
unsafe impl Send for SharedSegment {}
// SAFETY: as above.
unsafe impl Sync for SharedSegment {}

impl SharedSegment {
    /// A new segment of `len` bytes of zeros. `name` shows in `/proc/<pid>/maps`.
    ///
    /// # Errors
    /// What the system refuses: address space, descriptors.
    pub fn create(name: &str, len: u64) -> Result<SharedSegment, SegmentError> {
        let name = CString::new(name.replace('\0', "")).unwrap_or_default();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(&name, flags)?;
        rustix::fs::ftruncate(&file, len)?;
        rustix::fs::fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        SharedSegment::map(file, len)
    }

    /// The segment in a file that another process made.
    ///
    /// # Errors
    /// [`SegmentError::NotASegment`] if its length could change.
    pub fn open(file: OwnedFd) -> Result<SharedSegment, SegmentError> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let len = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if !seals.contains(SEALS) || len < crate::CONTROL_BYTES {
            return Err(SegmentError::NotASegment);
        }
        SharedSegment::map(file, len)
    }

    fn map(file: OwnedFd, len: u64) -> Result<SharedSegment, SegmentError> {
        let size = usize::try_from(len).map_err(|_| SegmentError::NotASegment)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory. Its
        // length is sealed, so no access within it faults.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(SegmentError::NotASegment)?;
        Ok(SharedSegment { base, len, file })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What another process opens it by.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The address of its first byte in this process.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The address of the bytes `offset..offset + len`; none unless they lie inside.
    pub fn address(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        // SAFETY: the offset lies inside the mapping, or at its end.
        Some(unsafe { self.base.add(offset) })
    }

    /// The 4-byte word at `offset`; none unless it lies inside, at a multiple of 4.
    pub fn word(&self, offset: u64) -> Option<&AtomicU32> {
        let address = self.address(offset, 4)?.cast::<AtomicU32>();
        if !address.is_aligned() {
            return None;
        }
        // SAFETY: aligned, inside the mapping, which lives as long as `self`; both processes access
        // words only as atomics.
        Some(unsafe { address.as_ref() })
    }

    /// The 8-byte word at `offset`; none unless it lies inside, at a multiple of 8.
    pub fn long_word(&self, offset: u64) -> Option<&AtomicU64> {
        let address = self.address(offset, 8)?.cast::<AtomicU64>();
        if !address.is_aligned() {
            return None;
        }
        // SAFETY: as in `word`.
        Some(unsafe { address.as_ref() })
    }

    /// A copy of `len` bytes from `offset` on; none unless they lie inside and there is memory.
    pub fn read(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let source = self.address(offset, len)?;
        let len = usize::try_from(len).ok()?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).ok()?;
        // SAFETY: the source lies inside the mapping, the target has room for `len` bytes, and the
        // new memory is nobody else's. Others may write the source meanwhile: the copy is then of
        // no use to them, and any bytes are a value.
        unsafe {
            ptr::copy_nonoverlapping(source.as_ptr(), bytes.as_mut_ptr(), len);
            bytes.set_len(len);
        }
        Some(bytes)
    }

    /// Copies `bytes` to `offset`; false unless they lie inside.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(target) = self.address(offset, bytes.len() as u64) else {
            return false;
        };
        // SAFETY: the target lies inside the mapping, of which nobody has a reference.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        true
    }

    /// Takes memory for the pages of a part now, so that writing there cannot fail later.
    ///
    /// # Errors
    /// Without memory.
    pub fn commit(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(
            &self.file,
            FallocateFlags::empty(),
            offset,
            len,
        )?)
    }

    /// Gives the memory of the whole pages of a part back; they read as zeros from then on.
    ///
    /// # Errors
    /// What the system refuses; the part is then as before.
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)
    }

    /// Bytes of memory that its pages take up.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        const BLOCK_BYTES: u64 = 512;
        let blocks = rustix::fs::fstat(&self.file)?.st_blocks;
        Ok(u64::try_from(blocks).unwrap_or(0) * BLOCK_BYTES)
    }
}

/// Nobody may change the length.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

impl Drop for SharedSegment {
    fn drop(&mut self) {
        let size = usize::try_from(self.len).unwrap_or(0);
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), size) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::CONTROL_BYTES;

    #[test]
    fn both_sides_see_the_same_bytes_within_bounds() {
        let ours = SharedSegment::create("test", CONTROL_BYTES).unwrap();
        let theirs = SharedSegment::open(ours.file().try_clone_to_owned().unwrap()).unwrap();
        assert!(ours.write(10, b"hello"));
        assert_eq!(theirs.read(10, 5).unwrap(), b"hello");
        for (offset, len) in [
            (0, CONTROL_BYTES + 1),
            (CONTROL_BYTES, 1),
            (u64::MAX, 2),
            (1, u64::MAX),
        ] {
            assert!(ours.address(offset, len).is_none(), "{offset} {len}");
            assert!(ours.read(offset, len).is_none(), "{offset} {len}");
        }
        assert!(!ours.write(CONTROL_BYTES - 1, b"ab"));
        assert!(ours.word(CONTROL_BYTES - 4).is_some());
        assert!(ours.word(CONTROL_BYTES - 3).is_none());
        assert!(ours.word(2).is_none());
        assert!(ours.long_word(4).is_none());
    }

    #[test]
    fn its_length_is_sealed() {
        let segment = SharedSegment::create("test", 1 << 20).unwrap();
        assert!(rustix::fs::ftruncate(segment.file(), 0).is_err());
        assert!(rustix::fs::ftruncate(segment.file(), 2 << 20).is_err());
        let open = rustix::fs::memfd_create(c"open", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&open, 1 << 20).unwrap();
        assert!(matches!(
            SharedSegment::open(open),
            Err(SegmentError::NotASegment)
        ));
    }

    #[test]
    fn pages_come_and_go() {
        let segment = SharedSegment::create("test", 1 << 30).unwrap();
        assert_eq!(segment.resident_bytes().unwrap(), 0);
        segment.commit(0, 1 << 20).unwrap();
        assert_eq!(segment.resident_bytes().unwrap(), 1 << 20);
        assert!(segment.write(0, &[7; 4096]));
        segment.discard(0, 1 << 20).unwrap();
        assert_eq!(segment.resident_bytes().unwrap(), 0);
        assert_eq!(segment.read(0, 4).unwrap(), [0; 4]);
    }
}
