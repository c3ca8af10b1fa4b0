//! An allocator in front of another that gives byte buffers of one page a home where an unused one
//! costs nothing.
//!
//! Allocators link their free blocks through the blocks' first bytes, so that a page is resident as
//! soon as a block begins in it, used or not. HTTP/2 brings along such a buffer per connection, for
//! Huffman-coded headers, which clients built on gRPC's C core (the C++ and Python ones) never
//! send: a fifth of what an open connection costs. Here a bitmap beside the pages says which are
//! taken. No locks: a thread that loses its CPU stops nobody.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The layouts that are kept here are of exactly this size and without alignment.
const PAGE_BYTES: usize = 4 << 10;
const WORD_PAGES: usize = u64::BITS as usize;
/// 65,536 pages: as many HTTP/2 connections. What does not fit goes to the other allocator.
const WORD_COUNT: usize = 1 << 10;
const REGION_BYTES: usize = WORD_COUNT * WORD_PAGES * PAGE_BYTES;
/// Pages of the first words stay resident once they are free; those of other words go back to the
/// kernel 64 at a time.
const KEPT_WORD_COUNT: usize = 16;

/// An array of zeros whose untouched pages take no memory. To be a static: its pages are never
/// unmapped.
pub struct SparseArray<A> {
    inner: A,
    /// Of the pages; null until the first is wanted.
    base: AtomicPtr<u8>,
    /// A bit per page that is taken.
    taken: [AtomicU64; WORD_COUNT],
    /// Words below have probably no free page.
    hint: AtomicUsize,
}

fn is_page(layout: Layout) -> bool {
    layout.size() == PAGE_BYTES && layout.align() == 1
}

impl<A> SparseArray<A> {
    /// All other layouts go to `inner`.
    pub const fn new(inner: A) -> SparseArray<A> {
        SparseArray {
            inner,
            base: AtomicPtr::new(std::ptr::null_mut()),
            taken: [const { AtomicU64::new(0) }; WORD_COUNT],
            hint: AtomicUsize::new(0),
        }
    }

    /// Where the pages begin; none while the kernel refuses them.
    fn base(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.base.load(Ordering::Acquire)).or_else(|| self.map())
    }

    #[cold]
    fn map(&self) -> Option<NonNull<u8>> {
        // SAFETY: an anonymous private mapping touches no existing memory.
        let fresh = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                REGION_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if fresh == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: concerns the mapping made above. A kernel without huge pages refuses, which is as
        // good.
        unsafe { libc::madvise(fresh, REGION_BYTES, libc::MADV_NOHUGEPAGE) };
        let fresh: *mut u8 = fresh.cast();
        match self.base.compare_exchange(
            std::ptr::null_mut(),
            fresh,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => NonNull::new(fresh),
            Err(earlier) => {
                // SAFETY: the mapping made above; nobody else has seen it.
                unsafe { libc::munmap(fresh.cast(), REGION_BYTES) };
                NonNull::new(earlier)
            }
        }
    }

    /// A free page; none if all are taken.
    fn take_page(&self) -> Option<NonNull<u8>> {
        let base = self.base()?;
        let first = self.hint.load(Ordering::Relaxed);
        for step in 0..WORD_COUNT {
            let index = (first + step) % WORD_COUNT;
            let word = &self.taken[index];
            let mut bits = word.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let bit = bits.trailing_ones() as usize;
                // Acquire: what the page's last owner did with it is over.
                match word.compare_exchange_weak(
                    bits,
                    bits | 1 << bit,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        if step > 0 {
                            self.hint.store(index, Ordering::Relaxed);
                        }
                        let offset = (index * WORD_PAGES + bit) * PAGE_BYTES;
                        // SAFETY: index and bit are below their counts, so this is a page of the
                        // mapping.
                        return Some(unsafe { base.add(offset) });
                    }
                    Err(current) => bits = current,
                }
            }
        }
        None
    }

    /// Which page `place` is; none if it is not from here.
    fn page_of(&self, place: *mut u8) -> Option<usize> {
        let base = NonNull::new(self.base.load(Ordering::Acquire))?;
        let offset = place.addr().wrapping_sub(base.as_ptr().addr());
        (offset < REGION_BYTES).then_some(offset / PAGE_BYTES)
    }

    fn free_page(&self, page: usize) {
        let (index, bit) = (page / WORD_PAGES, page % WORD_PAGES);
        let word = &self.taken[index];
        let before = word.fetch_and(!(1 << bit), Ordering::Release);
        // All 64 are taken for as long as their content is dropped, unless somebody was faster.
        if before == 1 << bit
            && index >= KEPT_WORD_COUNT
            && word
                .compare_exchange(0, u64::MAX, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            let offset = index * WORD_PAGES * PAGE_BYTES;
            let base = self.base.load(Ordering::Relaxed);
            // SAFETY: the 64 pages lie within the mapping, which exists since one of them was
            // handed out, and this thread has taken them all.
            unsafe {
                libc::madvise(
                    base.add(offset).cast(),
                    WORD_PAGES * PAGE_BYTES,
                    libc::MADV_DONTNEED,
                );
            }
            word.store(0, Ordering::Release);
        }
        self.hint.fetch_min(index, Ordering::Relaxed);
    }
}

// SAFETY: a page is handed out by setting its bit and is nobody else's until the bit is cleared,
// which only its owner's `dealloc` or `realloc` does; a page has the size that its layout asks for.
// Everything else is the inner allocator's, told apart by the address.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SparseArray<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_page(layout)
            && let Some(page) = self.take_page()
        {
            return page.as_ptr();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { self.inner.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if is_page(layout)
            && let Some(page) = self.page_of(place)
        {
            return self.free_page(page);
        }
        // SAFETY: the caller's promises are passed on; the block is not from here, so it is from
        // `inner`.
        unsafe { self.inner.dealloc(place, layout) }
    }

    // Pages that were used before are not zero, so zeroed ones come from the other allocator.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.inner.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(page) = is_page(layout).then(|| self.page_of(place)).flatten() else {
            // SAFETY: the caller's promises are passed on; the block is not from here, so it is
            // from `inner`.
            return unsafe { self.inner.realloc(place, layout, size) };
        };
        if size == PAGE_BYTES {
            return place;
        }
        // SAFETY: the caller promises that `size` is valid for this alignment, and not zero.
        let moved = unsafe {
            self.inner
                .alloc(Layout::from_size_align_unchecked(size, layout.align()))
        };
        if !moved.is_null() {
            // SAFETY: both blocks are at least this long, and one was just allocated.
            unsafe { moved.copy_from_nonoverlapping(place, size.min(PAGE_BYTES)) };
            self.free_page(page);
        }
        moved
    }
}

// What the kernel keeps resident is beyond Miri.
#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    const PAGE: Layout = match Layout::from_size_align(PAGE_BYTES, 1) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    fn resident(allocator: &SparseArray<System>) -> usize {
        let base = allocator.base.load(Ordering::Relaxed);
        let mut pages = vec![0; WORD_COUNT * WORD_PAGES];
        // SAFETY: the vector has a byte per page of the mapping.
        let outcome = unsafe { libc::mincore(base.cast(), REGION_BYTES, pages.as_mut_ptr()) };
        assert_eq!(outcome, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    fn allocate(allocator: &SparseArray<System>, count: usize) -> Vec<*mut u8> {
        // SAFETY: the layout has a size.
        let places = (0..count).map(|_| unsafe { allocator.alloc(PAGE) });
        places.inspect(|place| assert!(!place.is_null())).collect()
    }

    fn free(allocator: &SparseArray<System>, places: &[*mut u8]) {
        for place in places {
            // SAFETY: allocated with this layout, and freed once.
            unsafe { allocator.dealloc(*place, PAGE) };
        }
    }

    #[test]
    fn only_what_is_written_is_resident() {
        static ALLOCATOR: SparseArray<System> = SparseArray::new(System);
        let places = allocate(&ALLOCATOR, 1000);
        assert_eq!(resident(&ALLOCATOR), 0);
        for place in &places[..10] {
            // SAFETY: a page of its own.
            unsafe { place.write(1) };
        }
        assert_eq!(resident(&ALLOCATOR), 10);
        free(&ALLOCATOR, &places);
    }

    #[test]
    fn free_pages_are_found_again_and_go_back_to_the_kernel() {
        static ALLOCATOR: SparseArray<System> = SparseArray::new(System);
        let count = (KEPT_WORD_COUNT + 2) * WORD_PAGES;
        let places = allocate(&ALLOCATOR, count);
        for place in &places {
            // SAFETY: a page of its own.
            unsafe { place.write_bytes(1, PAGE_BYTES) };
        }
        assert_eq!(resident(&ALLOCATOR), count);
        free(&ALLOCATOR, &places);
        assert_eq!(resident(&ALLOCATOR), KEPT_WORD_COUNT * WORD_PAGES);
        let mut again = allocate(&ALLOCATOR, count);
        again.sort_unstable();
        let mut places = places;
        places.sort_unstable();
        assert_eq!(places, again, "the same pages, each once");
        free(&ALLOCATOR, &again);
    }

    #[test]
    fn what_does_not_fit_comes_from_the_other_allocator() {
        static ALLOCATOR: SparseArray<System> = SparseArray::new(System);
        let places = allocate(&ALLOCATOR, WORD_COUNT * WORD_PAGES + 2);
        let (own, others) = places.split_at(WORD_COUNT * WORD_PAGES);
        assert!(own.iter().all(|place| ALLOCATOR.page_of(*place).is_some()));
        assert!(
            others
                .iter()
                .all(|place| ALLOCATOR.page_of(*place).is_none())
        );
        free(&ALLOCATOR, &places);
        assert!(
            ALLOCATOR
                .taken
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
    }

    #[test]
    fn content_survives_growing_and_shrinking_through_a_page() {
        static ALLOCATOR: SparseArray<System> = SparseArray::new(System);
        let sizes = [100, PAGE_BYTES, 9000, PAGE_BYTES, PAGE_BYTES, 50];
        let layout = |size| Layout::from_size_align(size, 1).unwrap();
        // SAFETY: each call names the layout that the block has at that time; the first 50 bytes
        // are within all of them.
        unsafe {
            for first in [100, PAGE_BYTES] {
                let (mut place, mut size) = (ALLOCATOR.alloc(layout(first)), first);
                (0..50).for_each(|index| place.add(index).write(index as u8));
                for next in sizes {
                    place = ALLOCATOR.realloc(place, layout(size), next);
                    size = next;
                    assert!((0..50).all(|index| place.add(index).read() == index as u8));
                }
                ALLOCATOR.dealloc(place, layout(size));
            }
        }
        assert_eq!(ALLOCATOR.taken[0].load(Ordering::Relaxed), 0);
    }

    /// Threads that take, fill, check and free pages across the border from which on pages go back
    /// to the kernel.
    #[test]
    fn no_page_has_two_owners() {
        static ALLOCATOR: SparseArray<System> = SparseArray::new(System);
        let kept = allocate(&ALLOCATOR, KEPT_WORD_COUNT * WORD_PAGES);
        let fill_and_check = |mark: u8, count| {
            let places = allocate(&ALLOCATOR, count);
            for place in &places {
                // SAFETY: a page of its own.
                unsafe { place.write_bytes(mark, PAGE_BYTES) };
            }
            for place in &places {
                // SAFETY: written above.
                let page = unsafe { std::slice::from_raw_parts(*place, PAGE_BYTES) };
                assert!(page == [mark; PAGE_BYTES]);
            }
            free(&ALLOCATOR, &places);
        };
        std::thread::scope(|scope| {
            for mark in 1..=4_u8 {
                scope.spawn(move || {
                    for round in 0..400 {
                        fill_and_check(mark, 1 + (round * usize::from(mark)) % 48);
                    }
                });
            }
        });
        free(&ALLOCATOR, &kept);
        assert!(
            ALLOCATOR
                .taken
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
    }
}
