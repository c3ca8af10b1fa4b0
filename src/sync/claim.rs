//! Ownership of a request among the executor, the canceller and the timer.
//!
//! One atomic word per request: a generation (high 32 bits, raised by each reschedule) and a state.
//!
//! ```text
//!            begin            finish (drop of Owned)
//!   QUEUED ─────────► EXECUTING ─────────► DONE
//!     │  ▲                │  requeue (generation + 1)
//!     │  └────────────────┘
//!     │ cancel / expire
//!     └──────► CANCELLED | EXPIRED (whoever made the change owns the payload, then DONE)
//! ```
//!
//! Whoever began may also put the payload back as it was, to have only looked at it; a cancel that
//! came meanwhile is not lost.
//!
//! The winner of the compare-and-swap out of QUEUED gets an [`Owned`]: exclusive access to the
//! payload. All others see that they lost. A cancel that comes too late (EXECUTING) leaves a mark
//! that the executor can read.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::mpsc_queue::Link;
use crate::primitives::AtomicPtr;

const QUEUED: u64 = 0;
const EXECUTING: u64 = 1;
const CANCELLED: u64 = 2;
const EXPIRED: u64 = 3;
const DONE: u64 = 4;
const STATE_MASK: u64 = 0xff;
const GENERATION_SHIFT: u32 = 32;

/// How a claim out of the queue ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimReason {
    Execute,
    Cancel,
    Expire,
}

impl ClaimReason {
    const fn state(self) -> u64 {
        match self {
            ClaimReason::Execute => EXECUTING,
            ClaimReason::Cancel => CANCELLED,
            ClaimReason::Expire => EXPIRED,
        }
    }
}

/// A payload `T` that exactly one thread at a time may own, beside a part `S` that all may read.
pub struct Claim<S, T> {
    word: AtomicU64,
    is_cancel_requested: AtomicBool,
    /// Whether it lies in a queue, whose link is `next`.
    is_linked: AtomicBool,
    next: AtomicPtr<Claim<S, T>>,
    shared: S,
    payload: UnsafeCell<Option<T>>,
}

// SAFETY: the payload is only reached through `Owned`, of which at most one exists
// (compare-and-swap on `word`); moving it between threads needs `T: Send`. `shared` is read from
// all of them.
unsafe impl<S: Sync + Send, T: Send> Sync for Claim<S, T> {}
// SAFETY: as above.
unsafe impl<S: Send, T: Send> Send for Claim<S, T> {}

impl<S, T> Claim<S, T> {
    /// A queued claim of generation 0.
    pub fn new(shared: S, payload: T) -> Arc<Claim<S, T>> {
        Arc::new(Claim {
            word: AtomicU64::new(QUEUED),
            is_cancel_requested: AtomicBool::new(false),
            is_linked: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
            shared,
            payload: UnsafeCell::new(Some(payload)),
        })
    }

    pub fn shared(&self) -> &S {
        &self.shared
    }

    /// Raised by each [`Owned::requeue`]; a timer armed for one generation must not fire on the
    /// next.
    pub fn generation(&self) -> u32 {
        (self.word.load(Ordering::Acquire) >> GENERATION_SHIFT) as u32
    }

    pub fn is_queued(&self) -> bool {
        self.word.load(Ordering::Acquire) & STATE_MASK == QUEUED
    }

    /// Whether someone asked to cancel, in time or too late.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancel_requested.load(Ordering::Relaxed)
    }

    /// Leaves the mark of a cancel and claims nothing: for payloads whose end is for their
    /// scheduler to decide, which the caller tells afterwards, in a way that fences, or finds that
    /// it is about to look.
    pub fn request_cancel(&self) {
        self.is_cancel_requested.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether someone asked to cancel, for who has just taken the claim out of a queue: a
    /// [`Claim::request_cancel`] whose own push found the claim linked is seen.
    pub fn was_cancelled(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_cancelled()
    }

    /// Claims the queued payload of `generation` (`None`: whatever generation); none if another was
    /// faster.
    pub fn claim(
        self: &Arc<Self>,
        reason: ClaimReason,
        generation: Option<u32>,
    ) -> Option<Owned<S, T>> {
        if reason == ClaimReason::Cancel {
            // Relaxed: a hint to the executor, it orders nothing.
            self.is_cancel_requested.store(true, Ordering::Relaxed);
            // But for one that only looks: pairs with the fence of `put_back`, so that either the
            // loads below see the payload put back, or who put it back sees the mark.
            fence(Ordering::SeqCst);
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & STATE_MASK != QUEUED
                || generation.is_some_and(|wanted| wanted != (word >> GENERATION_SHIFT) as u32)
            {
                return None;
            }
            let target = (word & !STATE_MASK) | reason.state();
            // Acquire pairs with the Release of `requeue`: the winner sees all that the last owner
            // wrote.
            match self
                .word
                .compare_exchange_weak(word, target, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => {
                    return Some(Owned {
                        claim: Arc::clone(self),
                        payload: PhantomData,
                    });
                }
                Err(seen) => word = seen,
            }
        }
    }
}

// SAFETY: the reference count moves into the queue and back; `is_linked` keeps a second reference
// to the same claim out of any queue meanwhile, so `next` has one writer.
unsafe impl<S, T> Link for Arc<Claim<S, T>> {
    type Node = Claim<S, T>;

    fn into_node(self) -> Result<NonNull<Claim<S, T>>, Self> {
        // Acquire pairs with the Release of `from_node`: the link of an earlier stay is read before
        // it is written again.
        if self.is_linked.swap(true, Ordering::Acquire) {
            return Err(self);
        }
        // SAFETY: addresses of an `Arc` are never null.
        Ok(unsafe { NonNull::new_unchecked(Arc::into_raw(self).cast_mut()) })
    }

    unsafe fn from_node(node: NonNull<Claim<S, T>>) -> Self {
        // SAFETY: the address came from `Arc::into_raw`, once per stay, by this function's
        // contract.
        let claim = unsafe { Arc::from_raw(node.as_ptr()) };
        claim.is_linked.store(false, Ordering::Release);
        claim
    }

    unsafe fn next<'a>(node: NonNull<Claim<S, T>>) -> &'a AtomicPtr<Claim<S, T>> {
        // SAFETY: live by this function's contract.
        unsafe { &(*node.as_ptr()).next }
    }
}

/// Exclusive possession of a claim's payload. Dropping it drops the payload and ends the claim.
///
/// It is `Send` and `Sync` as the payload is, while its [`Claim`] is `Sync` for every payload that
/// may be sent:
///
/// ```
/// fn assert_sync<T: Sync>() {}
/// assert_sync::<conch_sync::Owned<(), u32>>();
/// assert_sync::<conch_sync::Claim<(), std::cell::Cell<u32>>>();
/// ```
/// ```compile_fail,E0277
/// fn assert_sync<T: Sync>() {}
/// assert_sync::<conch_sync::Owned<(), std::cell::Cell<u32>>>();
/// ```
/// ```compile_fail,E0277
/// fn assert_send<T: Send>() {}
/// assert_send::<conch_sync::Owned<(), std::rc::Rc<u32>>>();
/// ```
pub struct Owned<S, T> {
    claim: Arc<Claim<S, T>>,
    /// `Deref` gives `&T`: without this, the claim alone would decide on `Sync`.
    payload: PhantomData<T>,
}

impl<S, T> Owned<S, T> {
    /// The shared handle, for cancellation checks and deliveries after the payload is gone.
    pub fn handle(&self) -> &Arc<Claim<S, T>> {
        &self.claim
    }

    pub fn shared(&self) -> &S {
        &self.claim.shared
    }

    /// Puts the payload back into the queue under the next generation.
    pub fn requeue(self) -> Arc<Claim<S, T>> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the reference count moves out exactly
        // once.
        let claim = unsafe { std::ptr::read(&this.claim) };
        let generation = claim.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        let next = (generation.wrapping_add(1) & u64::from(u32::MAX)) << GENERATION_SHIFT;
        claim.word.store(next | QUEUED, Ordering::Release);
        claim
    }

    /// Puts the payload back into the queue as if it had never been taken out. If a cancel came
    /// meanwhile, which has been told that it was too late, the payload returns, claimed for it.
    pub fn put_back(self) -> Option<Owned<S, T>> {
        let this = ManuallyDrop::new(self);
        // SAFETY: as in `requeue`.
        let claim = unsafe { std::ptr::read(&this.claim) };
        let generation = claim.word.load(Ordering::Relaxed) & !STATE_MASK;
        claim.word.store(generation | QUEUED, Ordering::Release);
        fence(Ordering::SeqCst);
        if claim.is_cancelled() {
            claim.claim(ClaimReason::Cancel, None)
        } else {
            None
        }
    }

    /// A stable address for the C ABI; ownership goes with it until [`Owned::from_raw`].
    pub fn into_raw(self) -> *const Claim<S, T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: as in `requeue`.
        Arc::into_raw(unsafe { std::ptr::read(&this.claim) })
    }

    /// # Safety
    /// `raw` came from [`Owned::into_raw`] and has not been taken back since.
    pub unsafe fn from_raw(raw: *const Claim<S, T>) -> Owned<S, T> {
        // SAFETY: the caller's contract is that of `Arc::from_raw`, and possession came along.
        let claim = unsafe { Arc::from_raw(raw) };
        Owned {
            claim,
            payload: PhantomData,
        }
    }

    /// The payload behind a raw address, for the duration of one call across the C ABI.
    ///
    /// # Safety
    /// `raw` came from [`Owned::into_raw`], has not been taken back, and no other reference to the
    /// payload is in use during `'a`.
    pub unsafe fn borrow_raw<'a>(raw: *const Claim<S, T>) -> (&'a S, &'a mut T) {
        // SAFETY: live by contract; the payload is present while possession exists and unaliased by
        // contract.
        unsafe {
            let claim = &*raw;
            let payload = (*claim.payload.get()).as_mut();
            (&claim.shared, payload.expect("present while owned"))
        }
    }
}

impl<S, T> Deref for Owned<S, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: possession is exclusive, and shared borrows of `self` only read.
        unsafe { (*self.claim.payload.get()).as_ref() }.expect("present while owned")
    }
}

impl<S, T> DerefMut for Owned<S, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: possession is exclusive and `self` is borrowed mutably.
        unsafe { (*self.claim.payload.get()).as_mut() }.expect("present while owned")
    }
}

impl<S, T> Drop for Owned<S, T> {
    fn drop(&mut self) {
        // SAFETY: possession is exclusive; nobody can win it after DONE.
        unsafe { *self.claim.payload.get() = None };
        let generation = self.claim.word.load(Ordering::Relaxed) & !STATE_MASK;
        self.claim.word.store(generation | DONE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_one_claim_wins_and_the_payload_dies_with_it() {
        let payload = Arc::new(());
        let claim = Claim::new("shared", Arc::clone(&payload));
        let owned = claim.claim(ClaimReason::Execute, None).unwrap();
        assert!(claim.claim(ClaimReason::Cancel, None).is_none());
        assert!(claim.is_cancelled(), "a late cancel leaves its mark");
        assert_eq!(*owned.shared(), "shared");
        drop(owned);
        assert_eq!(Arc::strong_count(&payload), 1);
        assert!(claim.claim(ClaimReason::Execute, None).is_none());
    }

    #[test]
    fn a_requeued_payload_has_a_new_generation() {
        let claim = Claim::new((), 1);
        let mut owned = claim.claim(ClaimReason::Execute, Some(0)).unwrap();
        *owned += 1;
        let claim = owned.requeue();
        assert!(
            claim.claim(ClaimReason::Expire, Some(0)).is_none(),
            "armed for the earlier generation"
        );
        assert_eq!(*claim.claim(ClaimReason::Execute, Some(1)).unwrap(), 2);
    }

    #[test]
    fn a_payload_that_was_put_back_is_as_before() {
        let claim = Claim::new((), 1);
        let owned = claim.claim(ClaimReason::Execute, None).unwrap();
        assert!(owned.put_back().is_none());
        assert!(claim.is_queued());
        assert_eq!(*claim.claim(ClaimReason::Execute, Some(0)).unwrap(), 1);

        // A cancel while it was out was told that it came too late; it must not get lost.
        let claim = Claim::new((), 2);
        let owned = claim.claim(ClaimReason::Execute, None).unwrap();
        assert!(claim.claim(ClaimReason::Cancel, None).is_none());
        assert_eq!(*owned.put_back().unwrap(), 2);
        assert!(!claim.is_queued());
    }

    #[test]
    fn a_cancel_is_never_lost_on_one_who_looks() {
        // Miri interprets, and tries other interleavings by itself.
        for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
            let claim = Claim::new((), ());
            let canceller = Arc::clone(&claim);
            let owned = claim.claim(ClaimReason::Execute, None).unwrap();
            let won = std::thread::scope(|scope| {
                let cancel =
                    scope.spawn(move || canceller.claim(ClaimReason::Cancel, None).is_some());
                let returned = owned.put_back().is_some();
                [cancel.join().unwrap(), returned]
            });
            assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
        }
    }

    #[test]
    fn a_claim_lies_in_one_queue_at_a_time() {
        let claim = Claim::new((), 1);
        let (first, second) = (crate::Inbox::default(), crate::Inbox::default());
        assert!(matches!(first.push(Arc::clone(&claim)), Ok(true)));
        assert!(matches!(
            second.push(Arc::clone(&claim)),
            Err(crate::Refused::Linked(_))
        ));
        assert_eq!(first.take_all().count(), 1);
        assert!(
            matches!(second.push(Arc::clone(&claim)), Ok(true)),
            "taken out, it may be queued again"
        );
        drop((first, second));
        assert_eq!(Arc::strong_count(&claim), 1);
    }

    #[test]
    fn raw_possession_round_trips() {
        let claim = Claim::new(7, String::from("x"));
        let raw = claim.claim(ClaimReason::Execute, None).unwrap().into_raw();
        // SAFETY: `raw` is live and this is the only use.
        let (shared, payload) = unsafe { Owned::borrow_raw(raw) };
        payload.push('y');
        assert_eq!((*shared, payload.as_str()), (7, "xy"));
        // SAFETY: taken back once.
        drop(unsafe { Owned::from_raw(raw) });
        assert_eq!(Arc::strong_count(&claim), 1);
    }
}
