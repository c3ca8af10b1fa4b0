//! Aligned memory, from the allocator, the [`Arena`] or somebody who lends it: what blocks are made
//! of and pools recycle.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;

use crate::arena::{Arena, Extent, ExtentPlace};
use crate::{ALIGNMENT_BYTES, OutOfMemory};

/// From this capacity on, memory comes from the [`Arena`]: zero pages cost nothing until touched.
pub(crate) const MAPPED_FROM_BYTES: usize = 64 << 10;

static ARENA: Arena = Arena::new();

/// Raw aligned memory, all of it initialised; freed on drop.
pub struct AlignedMemory {
    base: NonNull<u8>,
    capacity: usize,
    origin: Origin,
}

/// Whom memory goes back to. As small as can be, since blocks are moved often.
enum Origin {
    Allocator,
    Arena(ExtentPlace),
    Pinned(Box<Lender>),
}

/// The owner of page-locked memory, which takes it back when dropped.
struct Lender(#[allow(dead_code, reason = "it is dropped")] Box<dyn Any + Send + Sync>);

// SAFETY: `AlignedMemory` owns its bytes exclusively and has no thread affinity.
unsafe impl Send for AlignedMemory {}
// SAFETY: shared access only reads the pointer and capacity.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// `capacity` zeroed bytes, at least 1, aligned to [`ALIGNMENT_BYTES`].
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has none.
    pub(crate) fn try_zeroed(capacity: usize) -> Result<AlignedMemory, OutOfMemory> {
        let capacity = capacity.max(1);
        if capacity >= MAPPED_FROM_BYTES {
            let extent = ARENA.allocate(capacity)?;
            return Ok(AlignedMemory {
                base: extent.base,
                capacity,
                origin: Origin::Arena(extent.place()),
            });
        }
        crate::fallible(|| AlignedMemory::of_allocator(capacity)).ok_or(OutOfMemory {
            asked_bytes: capacity,
        })
    }

    /// Less than [`MAPPED_FROM_BYTES`], and at least 1.
    pub(crate) fn of_allocator(capacity: usize) -> Option<AlignedMemory> {
        // SAFETY: the layout has non-zero size.
        let base = unsafe { alloc_zeroed(AlignedMemory::layout(capacity)) };
        Some(AlignedMemory {
            base: NonNull::new(base)?,
            capacity,
            origin: Origin::Allocator,
        })
    }

    /// Page-locked memory of `owner`, who takes it back when dropped.
    ///
    /// # Safety
    /// `capacity` bytes from `base` are initialised, and nobody else's until `owner` is dropped.
    /// `base` is aligned to [`ALIGNMENT_BYTES`].
    pub unsafe fn pinned(
        base: NonNull<u8>,
        capacity: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> AlignedMemory {
        AlignedMemory {
            base,
            capacity,
            origin: Origin::Pinned(Box::new(Lender(owner))),
        }
    }

    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.origin, Origin::Pinned(_))
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The first byte. Valid until dropped or grown.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Overwrites the first `bytes` bytes, or all if there are fewer.
    pub(crate) fn zero(&mut self, bytes: usize) {
        let bytes = bytes.min(self.capacity);
        // SAFETY: that many bytes belong to this value, which is borrowed uniquely.
        unsafe { std::ptr::write_bytes(self.base.as_ptr(), 0, bytes) };
    }

    pub(crate) fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT_BYTES)
            .expect("capacities are far below isize::MAX")
    }

    /// Raises the capacity; the first `used` bytes stay.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has none; nothing changes then.
    pub(crate) fn grow(&mut self, used: usize, capacity: usize) -> Result<(), OutOfMemory> {
        if let Origin::Arena(place) = &mut self.origin {
            let mut extent = Extent::at(self.base, *place);
            ARENA.grow(&mut extent, used, capacity)?;
            *place = extent.place();
            self.base = extent.base;
            self.capacity = capacity;
            return Ok(());
        }
        let grown = AlignedMemory::try_zeroed(capacity)?;
        let used = used.min(self.capacity);
        // SAFETY: both allocations hold at least `used` bytes and are distinct.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base.as_ptr(), grown.base.as_ptr(), used);
        }
        *self = grown;
        Ok(())
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.origin, Origin::Allocator) {
            Origin::Arena(place) => ARENA.free(Extent::at(self.base, place)),
            // SAFETY: allocated in `try_zeroed` with the same layout.
            Origin::Allocator => unsafe {
                dealloc(self.base.as_ptr(), AlignedMemory::layout(self.capacity));
            },
            Origin::Pinned(lender) => drop(lender),
        }
    }
}
