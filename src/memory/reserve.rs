//! An allocator behind another, for the moment when the system has no memory: small allocations
//! that cannot fail come from here then.
//!
//! Rust ends the process if a `Box` or a queue finds no memory. What clients size is asked for in
//! ways that can fail and never comes from here; what remains is small, and belongs to requests and
//! connections that are under way. As soon as half of the reserve is used nothing new is let in
//! ([`is_scarce`](crate::is_scarce)), so that the other half is for what is there already; and an
//! allocation that finds nothing at all waits a while for others to end before the process does.
//!
//! The reserve is zero-initialised data of the program: address space that no limit takes away
//! later, and no memory until it is used. One lock, taken only after the system has refused memory.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{runs, scarcity};

const RESERVE_BYTES: usize = 64 << 20;
const UNIT_BYTES: usize = 256;
const UNIT_COUNT: usize = RESERVE_BYTES / UNIT_BYTES;
/// One allocation gets so much at the most: the table of DATA frames that HTTP/2 keeps per
/// connection has some 32,000 rows at the worst, and grows by doubling.
const SINGLE_BYTES_MAX: usize = 8 << 20;
/// From so much on nothing new is let in.
const SCARCE_FROM_UNITS: usize = UNIT_COUNT / 2;
/// How often an allocation that finds nothing tries again, and how long it sleeps between: five
/// seconds in all.
const ATTEMPTS_MAX: usize = 5000;
const PAUSE: Duration = Duration::from_millis(1);

#[repr(C, align(4096))]
struct ReserveRegion(UnsafeCell<[u8; RESERVE_BYTES]>);

// SAFETY: parts of it are handed out under a lock, each to one owner; this value itself never reads
// or writes it.
unsafe impl Sync for ReserveRegion {}

static REGION: ReserveRegion = ReserveRegion(UnsafeCell::new([0; RESERVE_BYTES]));

struct ReserveState {
    taken: [u64; runs::word_count(UNIT_COUNT)],
    taken_count: usize,
    /// There is no free unit before this.
    first_free: usize,
}

static STATE: Mutex<ReserveState> = Mutex::new(ReserveState {
    taken: [0; runs::word_count(UNIT_COUNT)],
    taken_count: 0,
    first_free: 0,
});

/// An allocator with a reserve behind it. There is one reserve per process, whatever the number of
/// these.
pub struct Reserve<A> {
    inner: A,
}

fn base() -> *mut u8 {
    REGION.0.get().cast()
}

fn is_here(place: *mut u8) -> bool {
    place.addr().wrapping_sub(base().addr()) < RESERVE_BYTES
}

/// The standard library's lock allocates nothing on Linux.
fn lock() -> MutexGuard<'static, ReserveState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES).max(1)
}

/// A part of the reserve; null if it has none.
fn allocate(layout: Layout) -> *mut u8 {
    if layout.size() > SINGLE_BYTES_MAX || layout.align() > UNIT_BYTES {
        return std::ptr::null_mut();
    }
    let count = units(layout.size());
    let state = &mut *lock();
    let Ok(start) = runs::find(&state.taken, UNIT_COUNT, count, state.first_free) else {
        return std::ptr::null_mut();
    };
    runs::set(&mut state.taken, start, count);
    if start == state.first_free {
        state.first_free += count;
    }
    state.taken_count += count;
    scarcity::set_scarce(state.taken_count >= SCARCE_FROM_UNITS);
    base().wrapping_add(start * UNIT_BYTES)
}

#[cold]
fn free(place: *mut u8, bytes: usize) {
    let start = place.addr().wrapping_sub(base().addr()) / UNIT_BYTES;
    let count = units(bytes);
    let state = &mut *lock();
    runs::clear(&mut state.taken, start, count);
    state.first_free = state.first_free.min(start);
    state.taken_count -= count;
    scarcity::set_scarce(state.taken_count >= SCARCE_FROM_UNITS);
}

impl<A: GlobalAlloc> Reserve<A> {
    pub const fn new(inner: A) -> Reserve<A> {
        Reserve { inner }
    }

    /// What an allocation gets that `inner` has refused.
    #[cold]
    fn last_resort(&self, layout: Layout) -> *mut u8 {
        if scarcity::can_fail() || layout.size() > SINGLE_BYTES_MAX {
            return std::ptr::null_mut();
        }
        for _ in 0..ATTEMPTS_MAX {
            let place = allocate(layout);
            if !place.is_null() {
                return place;
            }
            std::thread::sleep(PAUSE);
            // SAFETY: layouts of callers have a size.
            let place = unsafe { self.inner.alloc(layout) };
            if !place.is_null() {
                return place;
            }
        }
        std::ptr::null_mut()
    }

    /// Another place for what lies at `place`.
    ///
    /// # Safety
    /// As `GlobalAlloc::realloc`.
    #[cold]
    unsafe fn relocate(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size` is valid for this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller promises that `size` is not zero.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both are at least this long, and one was just allocated.
            unsafe { moved.copy_from_nonoverlapping(place, size.min(layout.size())) };
            // SAFETY: the caller gives `place` up.
            unsafe { self.dealloc(place, layout) };
        }
        moved
    }
}

// SAFETY: a part of the reserve is handed out by setting the bits of its units and is nobody else's
// until its owner's `dealloc` or `realloc` clears them; it is aligned and as long as its layout
// asks. Everything else is the inner allocator's, told apart by the address.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Reserve<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if scarcity::is_refused() {
            return self.last_resort(layout);
        }
        // SAFETY: the caller's promises are passed on.
        let place = unsafe { self.inner.alloc(layout) };
        if place.is_null() {
            return self.last_resort(layout);
        }
        place
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if is_here(place) {
            return free(place, layout.size());
        }
        // SAFETY: the caller's promises are passed on; the block is not from here, so it is from
        // `inner`.
        unsafe { self.inner.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !scarcity::is_refused() {
            // SAFETY: the caller's promises are passed on.
            let place = unsafe { self.inner.alloc_zeroed(layout) };
            if !place.is_null() {
                return place;
            }
        }
        let place = self.last_resort(layout);
        if !place.is_null() {
            // SAFETY: just handed out, and as long as the layout says.
            unsafe { place.write_bytes(0, layout.size()) };
        }
        place
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_here(place) {
            // SAFETY: the caller's promises are passed on.
            return unsafe { self.relocate(place, layout, size) };
        }
        let moved = if scarcity::is_refused() {
            std::ptr::null_mut()
        } else {
            // SAFETY: the caller's promises are passed on; the block is not from here, so it is
            // from `inner`.
            unsafe { self.inner.realloc(place, layout, size) }
        };
        if moved.is_null() && !scarcity::can_fail() {
            // SAFETY: a refused block is as it was.
            return unsafe { self.relocate(place, layout, size) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Refuses everything while it is told to.
    struct Refusing(AtomicBool);

    // SAFETY: what it does not refuse it passes on.
    unsafe impl GlobalAlloc for Refusing {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if self.0.load(Ordering::Relaxed) {
                return std::ptr::null_mut();
            }
            // SAFETY: the caller's promises are passed on.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
            // SAFETY: the caller's promises are passed on.
            unsafe { System.dealloc(place, layout) }
        }
    }

    /// One test, as there is one reserve: small ones are served, their content survives, large ones
    /// and those that can fail are refused, half of it makes memory scarce, and everything comes
    /// back.
    #[test]
    fn what_the_system_refuses_comes_from_the_reserve() {
        let allocator = Reserve::new(Refusing(AtomicBool::new(false)));
        let refuse = |refuses| allocator.inner.0.store(refuses, Ordering::Relaxed);
        let layout = |size| Layout::from_size_align(size, 64).unwrap();
        // SAFETY: each call names the layout that the block has at that time, and bytes within it.
        unsafe {
            let outside = allocator.alloc(layout(100));
            assert!(!is_here(outside));
            outside.write_bytes(7, 100);
            refuse(true);
            let grown = allocator.realloc(outside, layout(100), 5000);
            assert!(is_here(grown));
            assert!((0..100).all(|index| grown.add(index).read() == 7));
            let more = allocator.realloc(grown, layout(5000), 9000);
            assert!(is_here(more) && more != grown);
            assert!((0..100).all(|index| more.add(index).read() == 7));
            let zeroed = allocator.alloc_zeroed(layout(5000));
            assert!((0..5000).all(|index| zeroed.add(index).read() == 0));
            assert!(allocator.alloc(layout(SINGLE_BYTES_MAX + 1)).is_null());
            assert!(scarcity::fallible(|| allocator.alloc(layout(10))).is_null());
            assert!(scarcity::fallible(|| allocator.realloc(zeroed, layout(5000), 9000)).is_null());
            let mut parts = Vec::new();
            while !scarcity::is_scarce() {
                parts.push(allocator.alloc(layout(100_000)));
            }
            assert!(parts.iter().all(|part| is_here(*part)));
            assert!((300..350).contains(&parts.len()), "half of 64 MiB");
            for part in parts {
                allocator.dealloc(part, layout(100_000));
            }
            assert!(!scarcity::is_scarce());
            refuse(false);
            let back = allocator.realloc(more, layout(9000), 50);
            assert!(!is_here(back) && back.read() == 7);
            allocator.dealloc(back, layout(50));
            allocator.dealloc(zeroed, layout(5000));
        }
        assert_eq!(lock().taken_count, 0);
        assert!(lock().taken.iter().all(|word| *word == 0));
    }
}
