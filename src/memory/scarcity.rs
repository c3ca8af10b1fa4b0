//! Allocations that may fail: without memory one request fails, not the process.
//!
//! What a client sizes is asked for by functions that can fail ([`try_reserve`],
//! `Block::try_with_capacity` and their like). The rest, small allocations of a size that no client
//! chooses, cannot fail in Rust; [`Reserve`](crate::Reserve) keeps memory for those, and while that
//! is being used up nothing new is let in ([`is_scarce`]).

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// The system has no memory for what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    pub asked_bytes: usize,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the server has no memory left for the request: the system refused {} bytes",
            self.asked_bytes
        )
    }
}

impl std::error::Error for OutOfMemory {}

static IS_SCARCE: AtomicBool = AtomicBool::new(false);

/// Whether so much of the reserve is used that nothing new should be begun.
pub fn is_scarce() -> bool {
    // Relaxed: a hint.
    IS_SCARCE.load(Ordering::Relaxed)
}

pub(crate) fn set_scarce(is_scarce: bool) {
    IS_SCARCE.store(is_scarce, Ordering::Relaxed);
}

thread_local! {
    /// This thread can do without what it asks for. Without a destructor, so that allocators may
    /// look at it.
    static CAN_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `attempt`, whose allocations leave the reserve alone, as it can do without them.
pub fn fallible<T>(attempt: impl FnOnce() -> T) -> T {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            CAN_FAIL.set(self.0);
        }
    }
    let _reset = Reset(CAN_FAIL.replace(true));
    attempt()
}

/// Whether a test wants what is asked for next to be refused.
pub(crate) fn is_refused() -> bool {
    #[cfg(debug_assertions)]
    return crate::refusals::is_next();
    #[cfg(not(debug_assertions))]
    false
}

pub(crate) fn can_fail() -> bool {
    CAN_FAIL.get()
}

/// A list that grows at its end.
pub trait Growable {
    type Item;
    /// How many more there is room for.
    fn spare(&self) -> usize;
    /// Room for so many more, at least doubling it; says whether there is.
    fn try_grow(&mut self, count: usize) -> bool;
    fn append(&mut self, item: Self::Item);
}

impl<T> Growable for Vec<T> {
    type Item = T;

    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }

    fn try_grow(&mut self, count: usize) -> bool {
        self.try_reserve(count).is_ok()
    }

    fn append(&mut self, item: T) {
        self.push(item);
    }
}

impl<A: smallvec::Array> Growable for smallvec::SmallVec<A> {
    type Item = A::Item;

    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }

    fn try_grow(&mut self, count: usize) -> bool {
        self.try_reserve(count).is_ok()
    }

    fn append(&mut self, item: A::Item) {
        self.push(item);
    }
}

/// Room for `count` more in a vector.
///
/// # Errors
/// [`OutOfMemory`] if the system has none; the vector is then as before.
pub fn try_reserve<G: Growable>(target: &mut G, count: usize) -> Result<(), OutOfMemory> {
    if count <= target.spare() {
        return Ok(());
    }
    if fallible(|| target.try_grow(count)) {
        return Ok(());
    }
    Err(OutOfMemory {
        asked_bytes: count.saturating_mul(size_of::<G::Item>()),
    })
}

/// Appends one.
///
/// # Errors
/// As [`try_reserve`].
pub fn try_push<G: Growable>(target: &mut G, item: G::Item) -> Result<(), OutOfMemory> {
    try_reserve(target, 1)?;
    target.append(item);
    Ok(())
}

/// Appends `bytes`.
///
/// # Errors
/// As [`try_reserve`].
pub fn try_extend(target: &mut Vec<u8>, bytes: &[u8]) -> Result<(), OutOfMemory> {
    try_reserve(target, bytes.len())?;
    target.extend_from_slice(bytes);
    Ok(())
}

/// A copy of `text`.
///
/// # Errors
/// As [`try_reserve`].
pub fn try_text(text: &str) -> Result<Box<str>, OutOfMemory> {
    let mut copy = String::new();
    if fallible(|| copy.try_reserve_exact(text.len())).is_err() {
        return Err(OutOfMemory {
            asked_bytes: text.len(),
        });
    }
    copy.push_str(text);
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_grow_or_stay_as_they_are() {
        let mut bytes = vec![1u8];
        try_extend(&mut bytes, &[2; 100]).unwrap();
        assert_eq!(bytes.len(), 101);
        assert!(try_reserve(&mut bytes, usize::MAX).is_err());
        let refused = try_reserve(&mut bytes, isize::MAX as usize - 4096).unwrap_err();
        assert!(refused.to_string().contains("no memory left"), "{refused}");
        assert_eq!(bytes.len(), 101);
        let mut words = Vec::<u64>::new();
        try_push(&mut words, 7).unwrap();
        assert_eq!(words, [7]);
        let mut few = smallvec::SmallVec::<[u64; 2]>::new();
        (0..5).for_each(|number| try_push(&mut few, number).unwrap());
        assert_eq!(few[..], [0, 1, 2, 3, 4]);
        assert!(try_reserve(&mut few, usize::MAX).is_err());
    }

    #[test]
    fn the_mark_goes_with_the_attempt() {
        assert!(!can_fail());
        fallible(|| {
            fallible(|| assert!(can_fail()));
            assert!(can_fail());
        });
        assert!(!can_fail());
        let panicked = std::panic::catch_unwind(|| fallible(|| panic!("meant")));
        assert!(panicked.is_err() && !can_fail());
    }
}
