//! Memory of tensors, wherever it lies. It is only copied from and to.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;

use conch_abi as abi;
use conch_memory::{MemoryKind, MemoryPlace};

use crate::Error;

/// Bytes of an input, readable during `'m`. They may be memory that a client changes meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct MemorySource<'m> {
    address: u64,
    len: usize,
    place: MemoryPlace,
    memory: PhantomData<&'m u8>,
}

impl MemorySource<'_> {
    /// # Safety
    /// `base` is readable for `len` bytes during the wrapper's life, by the CPU or by copies as
    /// `place` says; it may be anything if `len` is 0.
    pub(crate) unsafe fn new(base: *const c_void, len: usize, place: MemoryPlace) -> Self {
        MemorySource {
            address: base.expose_provenance() as u64,
            len,
            place,
            memory: PhantomData,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn place(&self) -> MemoryPlace {
        self.place
    }

    /// Where the bytes begin, for an engine that reads them in that place.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl<'m> MemorySource<'m> {
    /// Memory of a GPU that an engine has filled.
    ///
    /// # Safety
    /// `address` has `len` bytes on the GPU `device`, which copies may read during `'m`.
    pub unsafe fn on_device(address: u64, len: usize, device: i32) -> Self {
        MemorySource {
            address,
            len,
            place: MemoryPlace {
                kind: MemoryKind::Gpu,
                id: i64::from(device),
            },
            memory: PhantomData,
        }
    }

    /// Some of the bytes; none unless they lie inside.
    pub fn get(&self, range: Range<usize>) -> Option<MemorySource<'m>> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= self.len).then_some(MemorySource {
            address: self.address + range.start as u64,
            len,
            ..*self
        })
    }
}

/// Memory of an output, writable during `'m`, which is filled from front to back.
#[derive(Debug)]
pub struct MemoryTarget<'m> {
    address: u64,
    len: usize,
    filled: usize,
    place: MemoryPlace,
    memory: PhantomData<&'m mut u8>,
}

impl MemoryTarget<'_> {
    /// # Safety
    /// `base` is writable for `len` bytes during the wrapper's life, by the CPU or by copies as
    /// `place` says.
    ///
    /// # Errors
    /// `Internal` if there is no memory where some is needed.
    pub(crate) unsafe fn new(
        base: *mut c_void,
        len: usize,
        place: MemoryPlace,
        name: &CStr,
    ) -> Result<Self, Error> {
        if base.is_null() && len > 0 {
            return Err(Error::internal(format!(
                "server gave no buffer for '{}'",
                name.to_string_lossy()
            )));
        }
        Ok(MemoryTarget {
            address: base.expose_provenance() as u64,
            len,
            filled: 0,
            place,
            memory: PhantomData,
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is, which need not be where it was wanted.
    pub fn place(&self) -> MemoryPlace {
        self.place
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The same memory as the CPU writes it; given back if it lies on a device.
    ///
    /// # Errors
    /// The target itself, on a device.
    pub(crate) fn into_host(self) -> Result<*mut c_void, Self> {
        match self.place.is_host() {
            true => Ok(ptr::with_exposed_provenance_mut(
                usize::try_from(self.address).unwrap_or(0),
            )),
            false => Err(self),
        }
    }

    /// The address of the next `byte_count` bytes, which count as filled from now on.
    ///
    /// # Errors
    /// `Internal` if they do not fit.
    pub(super) fn take(&mut self, byte_count: usize) -> Result<u64, Error> {
        if byte_count > self.len - self.filled {
            return Err(Error::internal(format!(
                "{byte_count} bytes do not fit behind {} of {}",
                self.filled, self.len
            )));
        }
        let address = self.address + self.filled as u64;
        self.filled += byte_count;
        Ok(address)
    }

    /// The address and the length of what is left, which counts as filled from now on.
    pub(super) fn take_rest(&mut self) -> (u64, usize) {
        let filled = std::mem::replace(&mut self.filled, self.len);
        (self.address + filled as u64, self.len - filled)
    }
}

/// # Safety
/// `source` is readable and `target` writable host memory of that length. They may overlap, and
/// others may write both meanwhile, which leaves some mixture of bytes.
pub(super) unsafe fn copy_on_host(target: u64, source: u64, len: usize) {
    let source = ptr::with_exposed_provenance::<u8>(source as usize);
    let target = ptr::with_exposed_provenance_mut::<u8>(target as usize);
    // SAFETY: by this function's contract.
    unsafe { ptr::copy(source, target, len) };
}

/// The place of a buffer as the server names it.
///
/// # Errors
/// `Unsupported` for a kind of memory that is not known here.
pub(crate) fn place_of(
    memory_type: abi::TRITONSERVER_MemoryType,
    id: i64,
) -> Result<MemoryPlace, Error> {
    let kind = match memory_type {
        abi::TRITONSERVER_MEMORY_CPU => MemoryKind::Cpu,
        abi::TRITONSERVER_MEMORY_CPU_PINNED => MemoryKind::CpuPinned,
        abi::TRITONSERVER_MEMORY_GPU => MemoryKind::Gpu,
        other => {
            return Err(Error::unsupported(format!(
                "unknown type {other} of memory"
            )));
        }
    };
    Ok(MemoryPlace { kind, id })
}

/// The server's name for a kind of memory.
pub(crate) fn raw_kind(kind: MemoryKind) -> abi::TRITONSERVER_MemoryType {
    match kind {
        MemoryKind::Cpu => abi::TRITONSERVER_MEMORY_CPU,
        MemoryKind::CpuPinned => abi::TRITONSERVER_MEMORY_CPU_PINNED,
        MemoryKind::Gpu => abi::TRITONSERVER_MEMORY_GPU,
    }
}
