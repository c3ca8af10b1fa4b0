//! The bytes behind device memory: a file in memory with a hidden mapping that only copies use.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// What fresh device memory holds, so that nobody takes it for zeros.
const FRESH: u8 = 0xc5;
const PAGE: usize = 4096;

pub struct Backing {
    file: File,
    alias: usize,
    len: usize,
    inode: u64,
}

pub fn round_up(size: usize, unit: usize) -> Option<usize> {
    size.checked_next_multiple_of(unit)
}

impl Backing {
    /// New memory of at least `size` bytes.
    pub fn create(size: usize) -> io::Result<Backing> {
        let len = round_up(size, PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the name is a C string; the call makes a new descriptor.
        let descriptor =
            unsafe { libc::memfd_create(c"conch-cuda-double".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else owns it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        let end = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // Takes the memory now: a later shortage would be a SIGBUS in a copy.
        // SAFETY: a system call on a descriptor that `file` owns.
        if unsafe { libc::fallocate(descriptor, 0, 0, end) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let backing = Backing::map(file, len)?;
        // SAFETY: the mapping has `len` writable bytes, and nobody else knows it yet.
        unsafe { (backing.alias as *mut u8).write_bytes(FRESH, len) };
        Ok(backing)
    }

    /// Memory of another process, named by its descriptor there; `inode` says that it is the same.
    pub fn open(pid: u32, descriptor: u32, size: usize, inode: u64) -> io::Result<Backing> {
        let path = format!("/proc/{pid}/fd/{descriptor}");
        // Looks before it opens: the descriptor may be a pipe by now, whose opening would wait.
        let metadata = std::fs::metadata(&path)?;
        let len = round_up(size, PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        if !metadata.is_file() || metadata.ino() != inode || metadata.len() != len as u64 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = File::options().read(true).write(true).open(path)?;
        match file.metadata()?.ino() == inode {
            true => Backing::map(file, len),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn map(file: File, len: usize) -> io::Result<Backing> {
        let inode = file.metadata()?.ino();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let descriptor = file.as_raw_fd();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let alias = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                access,
                libc::MAP_SHARED,
                descriptor,
                0,
            )
        };
        if alias == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Backing {
            file,
            alias: alias as usize,
            len,
            inode,
        })
    }

    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Tells this memory from any other that gets the same descriptor.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The hidden address of `len` bytes at `offset`, if they lie inside.
    pub fn alias(&self, offset: usize, len: usize) -> Option<usize> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(self.alias + offset)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; whoever copies holds a reference to it.
        unsafe { libc::munmap(self.alias as *mut libc::c_void, self.len) };
    }
}
