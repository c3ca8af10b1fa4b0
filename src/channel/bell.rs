//! What an idle core waits for, and the set of those that wait.

use std::sync::OnceLock;
#[cfg(not(loom))]
use std::time::Duration;

use crate::sync::{AtomicBool, AtomicU64, Ordering, Thread, current, park};

/// Where a waiting core reads the time. Loom has no time: its clock jumps to whatever is waited for.
pub trait Clock {
    /// Monotonic, in ns.
    fn now_ns(&self) -> u64;

    /// Time passes until `deadline_ns` without a ring.
    #[cfg(loom)]
    fn jump_to(&self, deadline_ns: u64);
}

/// No deadline.
pub const NEVER_NS: u64 = u64::MAX;

/// The longest that a bell ever spins before it sleeps: about what going to sleep and being woken costs (measured 15 to 31 us), so that
/// spinning in vain at most doubles the price.
pub const SPIN_MAX_NS: u64 = 20_000;

/// Below this an adapted spin is not worth its clock readings.
const SPIN_MIN_NS: u64 = 1_000;

/// Wakes one thread. Ringing twice wakes once.
///
/// Ringing costs one system call (futex) if the thread sleeps and none if it is awake or spins.
#[derive(Debug, Default)]
pub struct Bell {
    is_rung: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Bell {
    /// Names the calling thread as the one that waits. Once per bell, before it can be rung.
    pub fn attach(&self) {
        let is_first = self.thread.set(current()).is_ok();
        assert!(is_first, "a bell belongs to one thread");
    }

    /// Wakes the waiting thread, now or when it next waits.
    pub fn ring(&self) {
        // Release: the woken thread sees what was done before.
        self.is_rung.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn take(&self) -> bool {
        // The load first: a spinning waiter shall not write the line that the ringer is about to.
        self.is_rung.load(Ordering::Relaxed) && self.is_rung.swap(false, Ordering::Acquire)
    }

    /// Waits for a ring, at most until `deadline_ns`; says whether it rang. Only the attached thread waits.
    pub fn wait(&self, deadline_ns: u64, clock: &impl Clock, spin: &mut Spin) -> bool {
        if spin.watch(clock, deadline_ns, || self.take()) {
            return true;
        }
        loop {
            if self.take() {
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
}

/// How long a waiter looks before it sleeps, adapted to how soon it was rung lately. Off unless ringer and waiter run on
/// different CPUs: on a shared one, spinning keeps the ringer from running.
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

    /// After a sleep: one that spinning would have avoided makes the next spin long enough.
    fn learn(&mut self, clock: &impl Clock) {
        if self.limit_ns > 0 && clock.now_ns().saturating_sub(self.started_ns) <= 2 * self.limit_ns
        {
            self.current_ns = self.limit_ns;
        }
    }
}

/// Which cores are idle, as bits, with their bells.
///
/// A core enters itself, fences, looks once more for work, and waits; who rings removes it. So one load tells a producer that
/// nobody needs waking, and each ring goes to a core that no other ringer has woken already.
#[derive(Debug)]
pub struct IdleSet {
    words: Box<[AtomicU64]>,
    bells: Box<[Bell]>,
}

impl IdleSet {
    pub fn new(core_count: usize) -> IdleSet {
        IdleSet {
            words: (0..core_count.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
            bells: (0..core_count).map(|_| Bell::default()).collect(),
        }
    }

    pub fn bell(&self, core: usize) -> &Bell {
        &self.bells[core]
    }

    pub fn core_count(&self) -> usize {
        self.bells.len()
    }

    /// The caller fences (SeqCst) and looks for work once more before it waits.
    pub fn insert(&self, core: usize) {
        self.words[core / 64].fetch_or(1 << (core % 64), Ordering::Release);
    }

    /// Whether it was there; if not, its bell rings or will.
    pub fn remove(&self, core: usize) -> bool {
        let bit = 1 << (core % 64);
        self.words[core / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Whether a core is idle. The caller has fenced (SeqCst) after what it did.
    pub fn has_any(&self) -> bool {
        let mut words = self.words.iter();
        words.any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Removes one idle core, the lowest, and rings it; false if none is idle. The caller has fenced (SeqCst) after what it did.
    pub fn ring_one(&self) -> bool {
        for (index, word) in self.words.iter().enumerate() {
            let mut idle = word.load(Ordering::Relaxed);
            while idle != 0 {
                let bit = idle & idle.wrapping_neg();
                idle = word.fetch_and(!bit, Ordering::AcqRel);
                if idle & bit != 0 {
                    let core = index * 64 + bit.trailing_zeros() as usize;
                    self.bells[core].ring();
                    return true;
                }
            }
        }
        false
    }

    /// Removes core `core` and rings it, if it is idle. The caller has fenced (SeqCst) after what it did.
    pub fn ring(&self, core: usize) -> bool {
        // The load first: a core that executes is not told, and its line not written.
        let is_idle = self.words[core / 64].load(Ordering::Relaxed) & (1 << (core % 64)) != 0;
        let is_rung = is_idle && self.remove(core);
        if is_rung {
            self.bells[core].ring();
        }
        is_rung
    }

    pub fn ring_all(&self) {
        while self.ring_one() {}
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
    fn a_ring_before_the_wait_is_kept_and_a_deadline_ends_it() {
        for spin_ns in [0, 5_000] {
            let clock = Real(Instant::now());
            let mut spin = Spin::up_to(spin_ns);
            let bell = Bell::default();
            bell.attach();
            bell.ring();
            bell.ring();
            assert!(bell.wait(NEVER_NS, &clock, &mut spin));
            let deadline_ns = clock.now_ns() + 2_000_000;
            assert!(
                !bell.wait(deadline_ns, &clock, &mut spin),
                "two rings are one"
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
        // On a clock that stands: however long the test is kept from its CPU, the wake came at once.
        spin.started_ns = 1_000;
        spin.learn(&Standing);
        assert_eq!(spin.current_ns, 8_000);
    }

    #[test]
    fn each_ring_goes_to_another_core() {
        let idle = Arc::new(IdleSet::new(70));
        assert!(!idle.ring_one());
        for core in [3, 69, 64] {
            idle.insert(core);
        }
        assert!(idle.remove(64) && !idle.remove(64));
        assert!(idle.ring_one() && idle.ring_one() && !idle.ring_one());
        idle.insert(5);
        assert!(!idle.ring(6) && idle.ring(5) && !idle.ring(5));
        for (core, is_rung) in [(3, true), (69, true), (64, false), (5, true), (6, false)] {
            assert_eq!(idle.bell(core).take(), is_rung, "core {core}");
        }
    }
}
