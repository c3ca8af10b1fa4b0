//! Memory of tensors that go to another model and come back from it.

use std::alloc::{self, Layout};
use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_memory::MemoryPlace;

use crate::device::MemorySource;
use crate::{Error, TensorBytes};

/// As servers align outputs: what vector instructions and caches like.
const ALIGNMENT_BYTES: usize = 64;

/// Memory of one tensor, with what keeps it. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct TensorMemory {
    /// Not to be followed here if it lies on a device.
    address: *mut u8,
    len: usize,
    place: MemoryPlace,
    /// None of no bytes.
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: bytes are only copied, which provides for others that write them meanwhile (see
// `TensorBytes`); the owner may be dropped by any thread.
unsafe impl Send for TensorMemory {}
// SAFETY: as above.
unsafe impl Sync for TensorMemory {}

impl TensorMemory {
    /// The memory from `address` on, which `owner` keeps.
    ///
    /// # Safety
    /// Until the last reference to `owner` is dropped, `len` bytes are readable there, and writable
    /// if they are given for an output: by the CPU, or by copies of the device that `place` names.
    /// No Rust reference to them is used meanwhile. Other processes may write them at any time.
    pub unsafe fn new(
        address: *mut u8,
        len: usize,
        place: MemoryPlace,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        TensorMemory {
            address,
            len,
            place,
            _owner: Some(owner),
        }
    }

    /// No bytes.
    pub fn empty() -> Self {
        TensorMemory {
            address: ptr::null_mut(),
            len: 0,
            place: MemoryPlace::CPU,
            _owner: None,
        }
    }

    /// Zeroed host memory, aligned to 64 bytes.
    ///
    /// # Errors
    /// `Unavailable` if the system has no memory.
    pub fn host(len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Ok(TensorMemory::empty());
        }
        let block = HostBlock::new(len)?;
        let address = block.base.as_ptr();
        // SAFETY: that many bytes, which the block keeps; nobody but this wrapper has their
        // address.
        Ok(unsafe { TensorMemory::new(address, len, MemoryPlace::CPU, Arc::new(block)) })
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

    /// The address, of the CPU's or of a device; null of no bytes.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// The bytes; none if they lie on a device.
    pub fn bytes(&self) -> Option<TensorBytes<'_>> {
        // SAFETY: readable as long as the owner lives, which is borrowed; others may write.
        (self.place.is_host()).then(|| unsafe { TensorBytes::new(self.address, self.len) })
    }

    /// The bytes for [`Copies`](crate::Copies), wherever they lie.
    pub fn source(&self) -> MemorySource<'_> {
        // SAFETY: readable by the CPU or by copies as long as the owner lives, which is borrowed.
        unsafe { MemorySource::new(self.address.cast_const().cast(), self.len, self.place) }
    }

    /// The first `len` bytes; none if there are fewer.
    pub(super) fn first(&self, len: usize) -> Option<TensorMemory> {
        (len <= self.len).then(|| TensorMemory {
            len,
            ..self.clone()
        })
    }
}

impl From<Vec<u8>> for TensorMemory {
    /// Host memory with these bytes, which are not copied.
    fn from(bytes: Vec<u8>) -> Self {
        /// Nobody else can name it, and so nobody borrows the bytes.
        struct Owned(Vec<u8>);
        if bytes.is_empty() {
            return TensorMemory::empty();
        }
        let mut owned = Owned(bytes);
        let (address, len) = (owned.0.as_mut_ptr(), owned.0.len());
        // SAFETY: that many bytes, which the vector keeps where they are, and which nobody else
        // sees.
        unsafe { TensorMemory::new(address, len, MemoryPlace::CPU, Arc::new(owned)) }
    }
}

/// Memory from the global allocator.
struct HostBlock {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is only freed here.
unsafe impl Send for HostBlock {}
// SAFETY: as above.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// # Errors
    /// `Unavailable` if the system has no memory.
    fn new(len: usize) -> Result<Self, Error> {
        let none = || Error::out_of_memory(len);
        let layout = Layout::from_size_align(len, ALIGNMENT_BYTES).map_err(|_| none())?;
        if layout.size() == 0 {
            return Err(Error::internal("a block of no bytes"));
        }
        // Zeroed: a model that fills only part of it must not show what another one left there.
        // SAFETY: the size is not 0.
        let base = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(none)?;
        Ok(HostBlock { base, layout })
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and used by nobody afterwards.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Where a call's outputs are put.
///
/// The server asks on threads of the called model, while it executes; several at once if the model
/// sends responses from several threads.
pub trait OutputMemory: Send + Sync + 'static {
    /// Memory for `byte_count` bytes (more than none) of the output `name`; more may be given.
    /// `preferred` is where the called model wants it.
    ///
    /// # Errors
    /// Any error: it becomes the called model's response.
    fn allocate(
        &self,
        name: &CStr,
        byte_count: usize,
        preferred: MemoryPlace,
    ) -> Result<TensorMemory, Error>;

    /// Where outputs would be put that the called model wants in `preferred`: it may ask before it
    /// computes them.
    fn place(&self, _preferred: MemoryPlace) -> MemoryPlace {
        MemoryPlace::CPU
    }
}

/// Puts outputs into host memory of their own.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMemory;

impl OutputMemory for HostMemory {
    fn allocate(
        &self,
        _name: &CStr,
        byte_count: usize,
        _preferred: MemoryPlace,
    ) -> Result<TensorMemory, Error> {
        TensorMemory::host(byte_count)
    }
}

/// Memory of an output that the server has: what the response allocator attaches to it.
pub(super) struct Allocation(TensorMemory);

impl Allocation {
    /// A pointer for the server to give back, to [`read`](Self::read) and then to
    /// [`free`](Self::free).
    pub(super) fn into_raw(memory: TensorMemory) -> *mut c_void {
        Box::into_raw(Box::new(Allocation(memory))).cast()
    }

    /// The memory; none for null.
    ///
    /// # Safety
    /// `raw` is null or from [`into_raw`](Self::into_raw), and not freed.
    pub(super) unsafe fn read(raw: *mut c_void) -> Option<TensorMemory> {
        // SAFETY: null or a box of this type that lives during the call.
        let allocation = unsafe { raw.cast::<Allocation>().as_ref() };
        allocation.map(|allocation| allocation.0.clone())
    }

    /// Ends the server's use of the memory.
    ///
    /// # Safety
    /// `raw` is null or from [`into_raw`](Self::into_raw), and not used afterwards.
    pub(super) unsafe fn free(raw: *mut c_void) {
        if !raw.is_null() {
            // SAFETY: a box of this type that nobody else frees.
            drop(unsafe { Box::from_raw(raw.cast::<Allocation>()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use conch_memory::MemoryKind;

    use super::*;

    #[test]
    fn memory_lives_as_long_as_its_last_clone() {
        struct Counted {
            bytes: [u8; 4],
            _count: Arc<()>,
        }
        let count = Arc::new(());
        let mut owner = Arc::new(Counted {
            bytes: *b"abcd",
            _count: Arc::clone(&count),
        });
        let address = ptr::from_mut(&mut Arc::get_mut(&mut owner).unwrap().bytes).cast();
        // SAFETY: the owner has four bytes there, which are only read.
        let memory = unsafe { TensorMemory::new(address, 4, MemoryPlace::CPU, owner) };
        let part = memory.first(3).unwrap();
        assert!(memory.first(5).is_none());
        drop(memory);
        assert_eq!(Arc::strong_count(&count), 2);
        assert_eq!(part.bytes().unwrap().to_vec(), b"abc");
        drop(part);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn host_memory_is_zeroed_aligned_and_refused() {
        let memory = HostMemory
            .allocate(c"OUT", 100_000, MemoryPlace::CPU)
            .unwrap();
        assert!(memory.bytes().unwrap().is_aligned_to(ALIGNMENT_BYTES));
        assert_eq!(memory.bytes().unwrap().to_vec(), vec![0; 100_000]);
        // Miri ends where an allocator would return null: it tries a length that no layout holds.
        let refused = [usize::MAX, isize::MAX as usize - 64];
        for &len in refused.iter().take(if cfg!(miri) { 1 } else { 2 }) {
            let error = TensorMemory::host(len).unwrap_err();
            assert_eq!(error, Error::out_of_memory(len));
        }
        assert!(TensorMemory::host(0).unwrap().is_empty());
        assert!(TensorMemory::from(Vec::new()).address().is_null());
        let vector = TensorMemory::from(b"xyz".to_vec());
        assert_eq!(vector.clone().bytes().unwrap().to_vec(), b"xyz");
    }

    #[test]
    fn an_output_keeps_the_memory_that_the_server_gives_back() {
        let raw = Allocation::into_raw(TensorMemory::from(b"xyz".to_vec()));
        // SAFETY: made above, freed last.
        let kept = unsafe {
            let kept = Allocation::read(raw).unwrap();
            Allocation::free(raw);
            Allocation::free(ptr::null_mut());
            kept
        };
        assert_eq!(kept.bytes().unwrap().to_vec(), b"xyz");
        // SAFETY: null.
        assert!(unsafe { Allocation::read(ptr::null_mut()) }.is_none());
    }

    #[test]
    fn memory_of_a_device_has_no_bytes_here() {
        let place = MemoryPlace {
            kind: MemoryKind::Gpu,
            id: 1,
        };
        let address = ptr::without_provenance_mut(0x1000);
        // SAFETY: not followed.
        let memory = unsafe { TensorMemory::new(address, 16, place, Arc::new(())) };
        assert!(memory.bytes().is_none());
        assert_eq!(
            (memory.source().len(), memory.source().place()),
            (16, place)
        );
    }
}
