//! Sleep and wake-up of idle workers: [`Parker`] for one thread, [`IdleSet`] for the idle threads
//! of a pool.

use std::sync::{Mutex, PoisonError};
#[cfg(not(loom))]
use std::time::Duration;

use crate::primitives::{AtomicBool, AtomicU64, Ordering, Thread, current, park};

/// The clock of a parked thread. Loom has no time: its clock jumps to the deadline that a thread
/// waits for.
pub trait Clock {
    /// Monotonic, in ns.
    fn now_ns(&self) -> u64;

    /// Advances the time to `deadline_ns` if no unpark comes first.
    #[cfg(loom)]
    fn jump_to(&self, deadline_ns: u64);
}

/// No deadline.
pub const NEVER_NS: u64 = u64::MAX;

/// The longest spin before a thread sleeps: about the cost of going to sleep and being woken
/// (measured 15 to 31 us), so that spinning in vain at most doubles the price.
pub const SPIN_MAX_NS: u64 = 20_000;

/// A shorter adapted spin is not worth its clock readings.
const SPIN_MIN_NS: u64 = 1_000;

/// Wakes one thread. Two unparks wake once.
///
/// An unpark costs one system call (futex) if the thread sleeps and none if it is awake or spins.
#[derive(Debug, Default)]
pub struct Parker {
    is_unparked: AtomicBool,
    /// A lock, as the thread may change: a worker moves to another thread where its own does not
    /// come back from a call. It is held for a copy of the handle, some 10 ns beside a system call,
    /// and mostly by the one waker that took the worker out of its idle set.
    thread: Mutex<Option<Thread>>,
}

impl Parker {
    /// Attaches the calling thread as the one that parks, in place of an earlier one. What was
    /// unparked before is found by [`Parker::park_until`].
    pub fn attach(&self) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(current());
    }

    /// Wakes the attached thread, now or when it next parks.
    pub fn unpark(&self) {
        // Release: the woken thread sees what was done before. Before the handle is read: a thread
        // that is attached after that finds it set.
        self.is_unparked.store(true, Ordering::Release);
        // Not under the lock: loom changes threads inside.
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    /// Whether it was unparked, which stays so.
    pub(crate) fn is_unparked(&self) -> bool {
        self.is_unparked.load(Ordering::Relaxed)
    }

    pub(crate) fn consume_unpark(&self) -> bool {
        // The load first: a spinning thread must not write the cache line that the waker is about
        // to write.
        self.is_unparked() && self.is_unparked.swap(false, Ordering::Acquire)
    }

    /// Parks until an unpark, at most until `deadline_ns`. Returns whether it was unparked. Only
    /// the attached thread parks.
    pub fn park_until(&self, deadline_ns: u64, clock: &impl Clock, spin: &mut Spin) -> bool {
        park_current_until(deadline_ns, clock, spin, || self.consume_unpark())
    }
}

/// Parks the calling thread until `is_over`, at most until `deadline_ns`. Returns whether it is
/// over: for a thread that several parkers are attached to. Whoever makes it over unparks the
/// thread afterwards.
pub fn park_current_until(
    deadline_ns: u64,
    clock: &impl Clock,
    spin: &mut Spin,
    mut is_over: impl FnMut() -> bool,
) -> bool {
    if spin.watch(clock, deadline_ns, &mut is_over) {
        return true;
    }
    loop {
        if is_over() {
            spin.learn(clock);
            return true;
        }
        if deadline_ns == NEVER_NS {
            park();
        } else {
            #[cfg(loom)]
            {
                clock.jump_to(deadline_ns);
                return false;
            }
            #[cfg(not(loom))]
            {
                let now_ns = clock.now_ns();
                if now_ns >= deadline_ns {
                    return false;
                }
                std::thread::park_timeout(Duration::from_nanos(deadline_ns - now_ns));
            }
        }
    }
}

/// How long a thread spins before it sleeps, adapted to how soon it was unparked lately. Off unless
/// the waker and the thread run on different CPUs: on a shared one, spinning keeps the waker from
/// running.
#[derive(Debug)]
pub struct Spin {
    limit_ns: u64,
    current_ns: u64,
    started_ns: u64,
}

impl Spin {
    /// Never spins.
    pub const OFF: Spin = Spin::up_to(0);

    /// Spins up to `limit_ns`, itself at most [`SPIN_MAX_NS`].
    pub const fn up_to(limit_ns: u64) -> Spin {
        let limit_ns = if limit_ns > SPIN_MAX_NS {
            SPIN_MAX_NS
        } else {
            limit_ns
        };
        Spin {
            limit_ns,
            current_ns: limit_ns,
            started_ns: 0,
        }
    }

    fn watch(
        &mut self,
        clock: &impl Clock,
        deadline_ns: u64,
        mut is_over: impl FnMut() -> bool,
    ) -> bool {
        if self.limit_ns == 0 {
            return false;
        }
        self.started_ns = clock.now_ns();
        if self.current_ns < SPIN_MIN_NS {
            return false;
        }
        let end_ns = self
            .started_ns
            .saturating_add(self.current_ns)
            .min(deadline_ns);
        loop {
            // A clock reading costs about 20 pauses' time; look in between.
            for _ in 0..16 {
                if is_over() {
                    self.current_ns = self.current_ns.saturating_mul(2).min(self.limit_ns);
                    return true;
                }
                std::hint::spin_loop();
            }
            if clock.now_ns() >= end_ns {
                self.current_ns /= 2;
                return false;
            }
        }
    }

    /// After a sleep that a spin would have avoided, the next spin is long enough.
    fn learn(&mut self, clock: &impl Clock) {
        if self.limit_ns > 0 && clock.now_ns().saturating_sub(self.started_ns) <= 2 * self.limit_ns
        {
            self.current_ns = self.limit_ns;
        }
    }
}

/// The idle threads of a pool, one bit each, with their parkers.
///
/// A worker inserts itself, fences, looks once more for work, and parks; the waker removes it. So a
/// producer learns by one load that no thread needs waking, and each unpark goes to a worker that
/// no other waker has woken already.
#[derive(Debug)]
pub struct IdleSet {
    words: Box<[AtomicU64]>,
    parkers: Box<[Parker]>,
}

impl IdleSet {
    pub fn new(core_count: usize) -> IdleSet {
        IdleSet {
            words: (0..core_count.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
            parkers: (0..core_count).map(|_| Parker::default()).collect(),
        }
    }

    pub fn parker(&self, core: usize) -> &Parker {
        &self.parkers[core]
    }

    pub fn core_count(&self) -> usize {
        self.parkers.len()
    }

    /// The caller fences (SeqCst) and looks for work once more before it parks.
    pub fn insert(&self, core: usize) {
        self.words[core / 64].fetch_or(1 << (core % 64), Ordering::Release);
    }

    /// Returns whether it was in the set; if not, it is unparked already or about to be.
    pub fn remove(&self, core: usize) -> bool {
        let bit = 1 << (core % 64);
        self.words[core / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Whether a worker is idle. The caller has fenced (SeqCst) after publishing its work.
    pub fn has_any(&self) -> bool {
        let mut words = self.words.iter();
        words.any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Whether worker `core` is idle.
    pub fn has(&self, core: usize) -> bool {
        self.words[core / 64].load(Ordering::Relaxed) & (1 << (core % 64)) != 0
    }

    /// Removes the lowest idle worker and unparks it; false if none is idle. The caller has fenced
    /// (SeqCst) after publishing its work.
    pub fn unpark_one(&self) -> bool {
        for (index, word) in self.words.iter().enumerate() {
            let mut idle = word.load(Ordering::Relaxed);
            while idle != 0 {
                let bit = idle & idle.wrapping_neg();
                idle = word.fetch_and(!bit, Ordering::AcqRel);
                if idle & bit != 0 {
                    let core = index * 64 + bit.trailing_zeros() as usize;
                    self.parkers[core].unpark();
                    return true;
                }
            }
        }
        false
    }

    /// Removes worker `core` and unparks it, if it is idle. The caller has fenced (SeqCst) after
    /// publishing its work.
    pub fn unpark(&self, core: usize) -> bool {
        // The load first: a worker that executes needs no unpark, and its cache line no write.
        let is_unparked = self.has(core) && self.remove(core);
        if is_unparked {
            self.parkers[core].unpark();
        }
        is_unparked
    }

    pub fn unpark_all(&self) {
        while self.unpark_one() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    struct Real(Instant);

    impl Clock for Real {
        fn now_ns(&self) -> u64 {
            u64::try_from(self.0.elapsed().as_nanos()).expect("a test is short")
        }
    }

    struct Standing;

    impl Clock for Standing {
        fn now_ns(&self) -> u64 {
            1_000
        }
    }

    #[test]
    fn an_unpark_before_the_wait_is_kept_and_a_deadline_ends_it() {
        for spin_ns in [0, 5_000] {
            let clock = Real(Instant::now());
            let mut spin = Spin::up_to(spin_ns);
            let parker = Parker::default();
            parker.attach();
            parker.unpark();
            parker.unpark();
            assert!(parker.park_until(NEVER_NS, &clock, &mut spin));
            let deadline_ns = clock.now_ns() + 2_000_000;
            assert!(
                !parker.park_until(deadline_ns, &clock, &mut spin),
                "two unparks are one"
            );
            assert!(clock.now_ns() >= deadline_ns);
        }
    }

    #[test]
    fn spin_gives_up_when_in_vain_and_comes_back() {
        let clock = Real(Instant::now());
        let mut spin = Spin::up_to(8_000);
        for _ in 0..8 {
            assert!(!spin.watch(&clock, NEVER_NS, || false));
        }
        assert!(spin.current_ns < SPIN_MIN_NS, "no longer worth it");
        assert!(!spin.watch(&clock, NEVER_NS, || true), "sleeps at once");
        // On a stopped clock: the wake came at once, however long the test is kept from its CPU.
        spin.started_ns = 1_000;
        spin.learn(&Standing);
        assert_eq!(spin.current_ns, 8_000);
    }

    #[test]
    fn each_unpark_goes_to_another_worker() {
        let idle = Arc::new(IdleSet::new(70));
        assert!(!idle.unpark_one());
        for core in [3, 69, 64] {
            idle.insert(core);
        }
        assert!(idle.remove(64) && !idle.remove(64));
        assert!(idle.unpark_one() && idle.unpark_one() && !idle.unpark_one());
        idle.insert(5);
        assert!(!idle.unpark(6) && idle.unpark(5) && !idle.unpark(5));
        for (core, is_unparked) in [(3, true), (69, true), (64, false), (5, true), (6, false)] {
            assert_eq!(
                idle.parker(core).consume_unpark(),
                is_unparked,
                "core {core}"
            );
        }
    }
}
