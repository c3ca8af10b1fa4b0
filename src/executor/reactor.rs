//! What the tasks of a thread wait for: sockets and times.
//!
//! A watch of a socket is an entry in a table, with the waker of the task that waits. Its number
//! names it to the ring. An entry stays until the kernel has said its last word about it, also if
//! the socket is gone by then.

use std::cell::{RefCell, RefMut};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use conch_net::ring::{Interest, Ring, Wait};

use crate::schedule::Schedule;
use crate::wheel::Wheel;

/// The token of the event that other threads raise. Watches count from 0.
const EVENT: u64 = u64::MAX - 1;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Reactor>>> = const { RefCell::new(None) };
}

/// Of one thread, found by [`Reactor::with`].
pub(crate) struct Reactor {
    schedule: Arc<Schedule>,
    ring: RefCell<Ring>,
    watches: RefCell<slab::Slab<Watch>>,
    wheel: RefCell<Wheel>,
    /// Wakers to be woken, kept for its capacity.
    due: RefCell<Vec<Waker>>,
}

/// Where a watch is.
enum Watch {
    Waiting(Waker),
    Ready,
    /// Nobody waits any more; the kernel has yet to end it.
    Orphaned,
}

/// Names a watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchKey(usize);

impl Reactor {
    pub(crate) fn new(schedule: Arc<Schedule>, mut ring: Ring) -> io::Result<Rc<Reactor>> {
        ring.watch_arrivals(schedule.event.as_raw_fd(), EVENT)?;
        Ok(Rc::new(Reactor {
            schedule,
            ring: RefCell::new(ring),
            watches: RefCell::default(),
            wheel: RefCell::new(Wheel::new(now_ns())),
            due: RefCell::default(),
        }))
    }

    /// Makes `reactor` that of this thread, or none.
    pub(crate) fn install(reactor: Option<Rc<Reactor>>) -> Option<Rc<Reactor>> {
        CURRENT.replace(reactor)
    }

    /// # Panics
    /// Outside of an executor.
    pub(crate) fn with<R>(use_it: impl FnOnce(&Reactor) -> R) -> R {
        Reactor::try_with(use_it).expect("only threads with an executor have one")
    }

    /// None outside of an executor.
    pub(crate) fn try_with<R>(use_it: impl FnOnce(&Reactor) -> R) -> Option<R> {
        // Failure: the thread ends.
        CURRENT
            .try_with(|current| current.borrow().as_deref().map(use_it))
            .ok()
            .flatten()
    }

    pub(crate) fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    pub(crate) fn wheel(&self) -> RefMut<'_, Wheel> {
        self.wheel.borrow_mut()
    }

    /// Has `waker` woken once `descriptor` is ready.
    ///
    /// # Errors
    /// The kernel takes no more.
    pub(crate) fn watch(
        &self,
        descriptor: RawFd,
        interest: Interest,
        waker: &Waker,
    ) -> io::Result<WatchKey> {
        let mut watches = self.watches.borrow_mut();
        let entry = watches.vacant_entry();
        let key = entry.key();
        self.ring
            .borrow_mut()
            .watch(descriptor, interest, key as u64)?;
        entry.insert(Watch::Waiting(waker.clone()));
        Ok(WatchKey(key))
    }

    /// Whether the watch is over; else it wakes `waker` from now on. The key is used up if so.
    pub(crate) fn is_ready(&self, key: WatchKey, waker: &Waker) -> bool {
        let mut watches = self.watches.borrow_mut();
        let before = match watches.get_mut(key.0) {
            Some(Watch::Waiting(known)) if known.will_wake(waker) => None,
            Some(Watch::Waiting(known)) => Some(std::mem::replace(known, waker.clone())),
            _ => {
                watches.try_remove(key.0);
                return true;
            }
        };
        drop(watches);
        drop(before);
        false
    }

    /// Nobody waits any more.
    pub(crate) fn forget(&self, key: WatchKey) {
        let mut watches = self.watches.borrow_mut();
        let before = match watches.get_mut(key.0) {
            Some(watch @ Watch::Waiting(_)) => {
                // Failure: the kernel takes no more. The watch ends with the ring then.
                let _ = self.ring.borrow_mut().unwatch(key.0 as u64);
                Some(std::mem::replace(watch, Watch::Orphaned))
            }
            _ => watches.try_remove(key.0),
        };
        drop(watches);
        // Its task may end with the waker.
        drop(before);
    }

    /// Whether the kernel has something to tell.
    pub(crate) fn has_completions(&self) -> bool {
        self.ring.borrow_mut().has_completions()
    }

    /// Enters the kernel, for as long as nothing happens and no timer is due if `may_wait`.
    ///
    /// # Errors
    /// The kernel refuses the ring.
    pub(crate) fn enter(&self, may_wait: bool) -> io::Result<()> {
        let wait = match may_wait {
            false => Wait::Not,
            true => match self.wheel.borrow().next_ns() {
                None => Wait::Forever,
                Some(next_ns) => match next_ns.saturating_sub(now_ns()) {
                    0 => Wait::Not,
                    left_ns => Wait::AtMost(Duration::from_nanos(left_ns)),
                },
            },
        };
        self.ring.borrow_mut().enter(wait)
    }

    /// Wakes the tasks whose sockets are ready or whose time has come.
    ///
    /// # Errors
    /// The kernel refuses the ring.
    pub(crate) fn wake_due(&self) -> io::Result<()> {
        let mut due = self.due.take();
        let mut ring = self.ring.borrow_mut();
        while let Some(completion) = ring.take() {
            if completion.token == EVENT {
                if completion.is_last {
                    ring.watch_arrivals(self.schedule.event.as_raw_fd(), EVENT)?;
                }
                continue;
            }
            let mut watches = self.watches.borrow_mut();
            let key = usize::try_from(completion.token).unwrap_or(usize::MAX);
            match watches.get_mut(key) {
                Some(watch @ Watch::Waiting(_)) => {
                    if let Watch::Waiting(waker) = std::mem::replace(watch, Watch::Ready) {
                        due.push(waker);
                    }
                }
                Some(Watch::Orphaned) => drop(watches.remove(key)),
                Some(Watch::Ready) | None => debug_assert!(false, "no watch ends twice"),
            }
        }
        drop(ring);
        let mut wheel = self.wheel.borrow_mut();
        if let Some(next_ns) = wheel.next_ns() {
            let now_ns = now_ns();
            if next_ns <= now_ns {
                wheel.advance(now_ns, &mut due);
            }
        }
        drop(wheel);
        due.drain(..).for_each(Waker::wake);
        self.due.replace(due);
        Ok(())
    }
}

/// The monotonic clock, which counts from the machine's start.
pub(crate) fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = time.tv_sec.cast_unsigned();
    seconds * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
