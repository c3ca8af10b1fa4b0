//! Whether a thread sleeps in the kernel, for those who bring it work.
//!
//! The sleeper announces its sleep, fences, and looks for work once more. Who brings work publishes
//! it, fences, and asks whether the thread sleeps. Of the two fences one comes second, and its
//! thread sees the other's writes: either the sleeper finds the work, or the other learns that it
//! has to wake it. Of several that bring work during one sleep, one wakes.

use crate::primitives::{AtomicBool, Ordering, fence};

/// See the module's head.
#[derive(Debug, Default)]
pub struct SleepFlag {
    is_asleep: AtomicBool,
}

impl SleepFlag {
    pub fn new() -> SleepFlag {
        SleepFlag {
            is_asleep: AtomicBool::new(false),
        }
    }

    /// The owner is about to sleep. It must look for work once more after this.
    pub fn announce(&self) {
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake.
    pub fn clear(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// After work was published: whether the caller has to wake the owner.
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load first: nearly always the owner is awake, and its line stays shared.
        self.is_asleep.load(Ordering::Relaxed)
            && self
                .is_asleep
                .compare_exchange(true, false, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;
    use crate::parker::{Clock, NEVER_NS, Parker, Spin};

    /// Nothing here has a deadline.
    struct Timeless;

    impl Clock for Timeless {
        fn now_ns(&self) -> u64 {
            0
        }

        fn jump_to(&self, _deadline_ns: u64) {}
    }

    fn bring(shared: &(SleepFlag, AtomicU64, Parker)) {
        let (flag, work, event) = shared;
        work.fetch_add(1, Ordering::Relaxed);
        if flag.must_wake() {
            event.unpark();
        }
    }

    /// Two threads bring work while the owner goes to sleep, again and again. A lost wake leaves
    /// the owner asleep for ever, which loom reports. The parker stands for the event that the
    /// sleeper watches: both keep a wake until the next sleep.
    #[test]
    fn no_work_is_slept_on() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((SleepFlag::new(), AtomicU64::new(0), Parker::default()));
            let (told, telling) = loom::sync::mpsc::channel();
            let owner = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let (flag, work, event) = &*shared;
                    event.attach();
                    told.send(()).unwrap();
                    let (mut taken, mut spin) = (0, Spin::OFF);
                    while taken < 2 {
                        flag.announce();
                        if work.load(Ordering::Relaxed) == taken {
                            event.park_until(NEVER_NS, &Timeless, &mut spin);
                        }
                        flag.clear();
                        taken = work.load(Ordering::Relaxed);
                    }
                }
            });
            // The event is there before anybody raises it.
            telling.recv().unwrap();
            let other = thread::spawn({
                let shared = Arc::clone(&shared);
                move || bring(&shared)
            });
            bring(&shared);
            // Nobody unparks this thread, which loom's join would not bear.
            other.join().unwrap();
            owner.join().unwrap();
        });
    }
}
