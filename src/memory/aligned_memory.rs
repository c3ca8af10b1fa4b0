//! Aligned memory, from the allocator, the [`Arena`] or somebody who lends it: what blocks are made
//! of and pools recycle.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;

use crate::arena::{Arena, Extent, ExtentPlace};
use crate::{ALIGNMENT_BYTES, OutOfMemory};

/// From this capacity on, memory comes from the [`Arena`]: zero pages cost nothing until touched.
pub(crate) const MAPPED_FROM_BYTES: usize = 64 << 10;

/// Memory of the allocator up to this capacity has [`FRONT_BYTES`] more in front of it. Beyond, an
/// allocation costs little beside what is done with the bytes.
const FRONT_CAPACITY_MAX: usize = 2 << 10;
/// Room in front of small memory for what is kept of it while views share it; see
/// [`crate::shared_block`].
pub(crate) const FRONT_BYTES: usize = 2 * ALIGNMENT_BYTES;

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
        let start = unsafe { alloc_zeroed(AlignedMemory::layout(capacity)) };
        // SAFETY: inside what was allocated, by its layout.
        let base = unsafe { NonNull::new(start)?.add(AlignedMemory::front_bytes(capacity)) };
        Some(AlignedMemory {
            base,
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

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Overwrites the first `bytes` bytes, or all if there are fewer.
    pub(crate) fn zero(&mut self, bytes: usize) {
        let bytes = bytes.min(self.capacity);
        // SAFETY: that many bytes belong to this value, which is borrowed uniquely.
        unsafe { std::ptr::write_bytes(self.base.as_ptr(), 0, bytes) };
    }

    /// Of an allocation for so many bytes and what lies in front of them.
    pub(crate) fn layout(capacity: usize) -> Layout {
        let bytes = AlignedMemory::front_bytes(capacity) + capacity;
        Layout::from_size_align(bytes, ALIGNMENT_BYTES)
            .expect("capacities are far below isize::MAX")
    }

    fn front_bytes(capacity: usize) -> usize {
        if capacity <= FRONT_CAPACITY_MAX {
            FRONT_BYTES
        } else {
            0
        }
    }

    /// [`FRONT_BYTES`] in front of the first byte, aligned as that is, which belong to this memory
    /// and hold nothing of it; none if it is large or not the allocator's.
    pub(crate) fn front(&self) -> Option<NonNull<u8>> {
        let is_there =
            matches!(self.origin, Origin::Allocator) && self.capacity <= FRONT_CAPACITY_MAX;
        // SAFETY: the allocation begins there, by `of_allocator`.
        is_there.then(|| unsafe { self.base.sub(FRONT_BYTES) })
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
            // SAFETY: allocated in `of_allocator` with the same layout, so much before the base.
            Origin::Allocator => unsafe {
                let start = self.base.sub(AlignedMemory::front_bytes(self.capacity));
                dealloc(start.as_ptr(), AlignedMemory::layout(self.capacity));
            },
            Origin::Pinned(lender) => drop(lender),
        }
    }
}
