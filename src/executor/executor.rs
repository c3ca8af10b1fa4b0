//! The executor of a thread, and its turns.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use conch_net::WakeEvent;
use conch_net::ring::{Ring, Setup};

use crate::reactor::{Reactor, now_ns};
use crate::schedule::Schedule;
use crate::turn_meter::{LongTurnObserver, TurnMeter};

/// After this long a turn ends, and sockets and timers are looked at, though tasks are ready.
pub const TURN_MAX: Duration = Duration::from_micros(100);
const TURN_NS_MAX: u64 = TURN_MAX.as_nanos() as u64;

/// Tasks that are run between two looks at the clock.
const TASKS_PER_LOOK: usize = 4;

/// How an executor is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sockets that can begin to be waited for without an extra system call, per turn.
    pub ring_entries: u32,
    /// How long an idle thread looks for work before it sleeps.
    pub spin: Duration,
    /// How the kernel is to run its part of the work; none takes the best that it knows.
    pub setup: Option<Setup>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ring_entries: 256,
            spin: Duration::ZERO,
            setup: None,
        }
    }
}

/// The executor of the thread that makes it.
pub struct LocalExecutor {
    reactor: Rc<Reactor>,
    schedule: Arc<Schedule>,
    spin_ns: u64,
    meter: RefCell<TurnMeter>,
}

impl LocalExecutor {
    /// Makes the executor of the calling thread.
    ///
    /// # Errors
    /// The kernel's: no ring, no descriptor.
    ///
    /// # Panics
    /// If the thread has one already.
    pub fn new(options: &Options) -> io::Result<LocalExecutor> {
        let ring = match options.setup {
            Some(setup) => Ring::with_setup(options.ring_entries, setup),
            None => Ring::new(options.ring_entries),
        }?;
        let event = WakeEvent::new()?;
        assert!(
            Reactor::try_with(|_| ()).is_none(),
            "a thread has one executor"
        );
        let schedule = Schedule::enter(event);
        let reactor = Reactor::new(Arc::clone(&schedule), ring)?;
        Reactor::install(Some(Rc::clone(&reactor)));
        Ok(LocalExecutor {
            reactor,
            schedule,
            spin_ns: u64::try_from(options.spin.as_nanos()).unwrap_or(u64::MAX),
            meter: RefCell::default(),
        })
    }

    /// Has `observer` told of turns that last for [`crate::LONG_TURN_NS`] or longer, from the next
    /// run on.
    pub fn observe_long_turns(&mut self, observer: LongTurnObserver) {
        self.meter = RefCell::new(TurnMeter::new(Some(observer)));
    }

    /// Runs until `root` completes. Tasks that it spawned and that are not over by then are
    /// dropped if their handles are dropped before; other tasks leak what they hold.
    ///
    /// # Errors
    /// The kernel refuses the ring. Nothing can be waited for then.
    pub fn run<R>(&self, root: impl Future<Output = R>) -> io::Result<R> {
        let waker = Waker::from(Arc::clone(&self.schedule));
        let mut context = Context::from_waker(&waker);
        let mut root = pin!(root);
        waker.wake_by_ref();
        let meter = &mut *self.meter.borrow_mut();
        meter.begin(now_ns());
        loop {
            if self.schedule.take_root()
                && let Poll::Ready(result) = root.as_mut().poll(&mut context)
            {
                return Ok(result);
            }
            let ready_count = self.schedule.collect();
            let is_over = self.run_tasks(ready_count, meter);
            if self.schedule.is_idle() && !self.spin() {
                meter.end(self.spin_ns);
                let slept = self.schedule.sleep(|| self.reactor.enter(true));
                slept.transpose()?;
                meter.begin(now_ns());
            } else if is_over || self.reactor.has_completions() {
                self.reactor.enter(false)?;
                // What is ready waits for the kernel, too.
                meter.look(now_ns());
                meter.end(0);
                meter.begin_at_look();
            }
            self.reactor.wake_due()?;
        }
    }

    /// Runs `count` tasks, or fewer if that takes too long. Whether the turn is over by time.
    fn run_tasks(&self, count: usize, meter: &mut TurnMeter) -> bool {
        let mut is_over = || {
            meter.look(now_ns());
            meter.elapsed_ns() >= TURN_NS_MAX
        };
        for number in 1..=count {
            let Some(runnable) = self.schedule.pop() else {
                break;
            };
            runnable.run();
            if number % TASKS_PER_LOOK == 0 && is_over() {
                return true;
            }
        }
        // Also for one task that is always ready: what others wait for is submitted at the end of a
        // turn.
        is_over()
    }

    /// Looks for work without sleeping. Whether there is any.
    fn spin(&self) -> bool {
        if self.spin_ns == 0 {
            return false;
        }
        let begin_ns = now_ns();
        loop {
            // A clock reading costs about 20 pauses' time; look in between.
            for _ in 0..16 {
                if !self.schedule.is_idle() || self.reactor.has_completions() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if now_ns().saturating_sub(begin_ns) >= self.spin_ns {
                return false;
            }
        }
    }
}

impl Drop for LocalExecutor {
    fn drop(&mut self) {
        while let Some(runnable) = self.schedule.pop() {
            // Drops its future.
            drop(runnable);
        }
        Reactor::install(None);
        self.schedule.leave();
    }
}
