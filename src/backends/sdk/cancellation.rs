//! Ends executions whose requests nobody waits for any more.
//!
//! An execution that may take long is entered into the slot of its instance while it lasts. One
//! thread per backend looks into the slots now and then, asks the server about executions that are
//! old enough to be worth it, and interrupts those of which every request was cancelled. An
//! execution pays for this with a lock that nobody contends for and a look at the clock; the thread
//! sleeps while nothing is executed.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use conch_abi as abi;

use crate::{Batch, Error};

/// What ends an execution that is going on, from another thread.
pub trait Interrupt: Send + Sync {
    /// Has the execution that is going on end soon, with any result.
    fn interrupt(&self);

    /// Takes that back, so that the next execution runs. Called when the interrupted one is over.
    fn reset(&self);
}

/// Watches the executions of one instance.
pub struct CancellationWatch {
    slot: Arc<Slot>,
    watcher: Arc<Watcher>,
}

impl CancellationWatch {
    /// # Errors
    /// `Unavailable` if the system has no thread for it.
    pub fn new(interrupt: Arc<dyn Interrupt>) -> Result<Self, Error> {
        CancellationWatch::asking(interrupt, is_cancelled)
    }

    fn asking(
        interrupt: Arc<dyn Interrupt>,
        is_cancelled: fn(&RawRequest) -> bool,
    ) -> Result<Self, Error> {
        let watcher = Watcher::of_backend()?;
        let slot = Arc::new(Slot {
            interrupt,
            is_cancelled,
            execution: Mutex::new(Execution {
                requests: Vec::new(),
                since: None,
                is_interrupted: false,
                // The thread has not looked here yet, and may sleep.
                wakes: true,
            }),
        });
        watcher.slots().push(Arc::downgrade(&slot));
        Ok(CancellationWatch { slot, watcher })
    }

    /// Executes `batch` by `execute`, which is interrupted when all requests are cancelled. Returns
    /// its result, and whether it was interrupted.
    pub fn during<T>(&self, batch: &Batch<'_>, execute: impl FnOnce() -> T) -> (T, bool) {
        if self.slot.begin(batch) {
            self.watcher.thread.unpark();
        }
        // Also if it panics: the requests are released soon after.
        let watched = Watched(&self.slot);
        let result = execute();
        std::mem::forget(watched);
        let is_interrupted = self.slot.end();
        (result, is_interrupted)
    }
}

struct Watched<'s>(&'s Slot);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Where an instance tells what it executes.
struct Slot {
    interrupt: Arc<dyn Interrupt>,
    /// What the server says of a request.
    is_cancelled: fn(&RawRequest) -> bool,
    execution: Mutex<Execution>,
}

type RawRequest = NonNull<abi::TRITONBACKEND_Request>;

struct Execution {
    /// Those of the execution that is going on; empty between executions.
    requests: Vec<RawRequest>,
    since: Option<Instant>,
    is_interrupted: bool,
    /// The thread sleeps until an execution begins.
    wakes: bool,
}

// SAFETY: the requests are only asked whether they are cancelled, which the server allows on any
// thread, and only while an execution of theirs keeps them, by the lock.
unsafe impl Send for Execution {}

/// What the thread found in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Nothing,
    Young,
    Old,
}

impl Slot {
    /// Returns whether the thread must be woken.
    fn begin(&self, batch: &Batch<'_>) -> bool {
        let mut execution = self.lock();
        execution.requests.clear();
        let requests = batch.requests();
        // Without memory for the list, the execution is not watched.
        if execution.requests.try_reserve(requests.len()).is_ok() {
            let raw = requests.filter_map(|request| NonNull::new(request.raw()));
            execution.requests.extend(raw);
            execution.since = Some(Instant::now());
        }
        std::mem::take(&mut execution.wakes)
    }

    /// Returns whether the execution was interrupted, once.
    fn end(&self) -> bool {
        let mut execution = self.lock();
        execution.requests.clear();
        execution.since = None;
        let is_interrupted = std::mem::take(&mut execution.is_interrupted);
        // No interruption can follow: there is nothing to interrupt until the next execution.
        drop(execution);
        if is_interrupted {
            self.interrupt.reset();
        }
        is_interrupted
    }

    /// Looks at the execution, if there is one, and interrupts it where nobody waits for it.
    fn look(&self, now: Instant) -> Found {
        let mut execution = self.lock();
        let Some(since) = execution.since else {
            return Found::Nothing;
        };
        if now.saturating_duration_since(since) < OLD {
            return Found::Young;
        }
        let is_watched = !execution.is_interrupted && !execution.requests.is_empty();
        if is_watched && execution.requests.iter().all(self.is_cancelled) {
            execution.is_interrupted = true;
            self.interrupt.interrupt();
        }
        Found::Old
    }

    /// Has the next execution wake the thread. Returns whether one is going on.
    fn ask_to_be_woken(&self) -> bool {
        let mut execution = self.lock();
        execution.wakes = true;
        execution.since.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Execution> {
        self.execution
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_cancelled(request: &RawRequest) -> bool {
    let mut is_cancelled = false;
    // SAFETY: the execution that entered the request still holds it, since its end needs the lock
    // that the caller has; the result is writable.
    let asked = unsafe {
        Error::check(abi::TRITONBACKEND_RequestIsCancelled(
            request.as_ptr(),
            &raw mut is_cancelled,
        ))
    };
    asked.is_ok() && is_cancelled
}

type Slots = Arc<Mutex<Vec<Weak<Slot>>>>;

/// The thread that watches all instances of a backend. It ends with the last of them, since the
/// backend's code may be gone after that.
struct Watcher {
    slots: Slots,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
    /// The thread goes on while this is there.
    life: Option<Arc<()>>,
}

static WATCHER: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());

impl Watcher {
    fn of_backend() -> Result<Arc<Watcher>, Error> {
        let mut kept = WATCHER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = kept.upgrade() {
            return Ok(watcher);
        }
        let slots = Slots::default();
        let life = Arc::new(());
        let (watched, end) = (Arc::clone(&slots), Arc::downgrade(&life));
        let handle = thread::Builder::new()
            .name("cancellation".to_owned())
            .spawn(move || watch(&watched, &end))
            .map_err(|error| Error::unavailable(format!("no thread to be had: {error}")))?;
        let watcher = Arc::new(Watcher {
            slots,
            thread: handle.thread().clone(),
            handle: Some(handle),
            life: Some(life),
        });
        *kept = Arc::downgrade(&watcher);
        Ok(watcher)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Weak<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.life = None;
        self.thread.unpark();
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

fn watch(slots: &Slots, life: &Weak<()>) {
    let mut last_seen = Instant::now();
    while life.strong_count() > 0 {
        let now = Instant::now();
        let found = live(slots).iter().map(|slot| slot.look(now)).max();
        match found.unwrap_or(Found::Nothing) {
            Found::Old => thread::park_timeout(NEAR),
            Found::Young => thread::park_timeout(FAR),
            Found::Nothing if now.saturating_duration_since(last_seen) < REST => {
                thread::park_timeout(FAR);
                continue;
            }
            Found::Nothing => {
                let mut is_idle = true;
                for slot in live(slots) {
                    is_idle &= !slot.ask_to_be_woken();
                }
                if is_idle {
                    thread::park();
                }
            }
        }
        last_seen = Instant::now();
    }
}

/// The slots of instances that are there; those of others leave the list.
fn live(slots: &Slots) -> Vec<Arc<Slot>> {
    let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
    slots.retain(|slot| slot.strong_count() > 0);
    slots.iter().filter_map(Weak::upgrade).collect()
}

/// Younger executions are left to end by themselves.
const OLD: Duration = Duration::from_millis(20);

/// Between looks while there is an old execution, and while there are only others. An execution
/// that takes 100 ms or less mostly ends unseen, which costs less than looking.
const NEAR: Duration = Duration::from_millis(20);
const FAR: Duration = Duration::from_millis(100);

/// Without an execution for this long, the thread sleeps until one begins, which then costs a
/// system call.
const REST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Interrupt for Flag {
        fn interrupt(&self) {
            self.0.store(true, Ordering::SeqCst);
        }

        fn reset(&self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    /// A slot of an execution of two requests, whose addresses say whether they are cancelled.
    fn slot(flag: &Arc<Flag>, since: Option<Instant>, requests: [usize; 2]) -> Slot {
        let interrupt: Arc<dyn Interrupt> = flag.clone();
        let requests =
            requests.map(|address| NonNull::without_provenance(address.try_into().unwrap()));
        Slot {
            interrupt,
            is_cancelled: |request| request.addr().get() == GONE,
            execution: Mutex::new(Execution {
                requests: requests.to_vec(),
                since,
                is_interrupted: false,
                wakes: false,
            }),
        }
    }

    const WAITING: usize = 16;
    const GONE: usize = 32;

    #[test]
    fn old_executions_that_nobody_waits_for_are_interrupted() {
        let begun = Instant::now();
        for (since, after, requests, expected, is_interrupted) in [
            (None, OLD, [GONE, GONE], Found::Nothing, false),
            (Some(begun), OLD / 2, [GONE, GONE], Found::Young, false),
            (Some(begun), OLD, [GONE, GONE], Found::Old, true),
            (Some(begun), OLD, [GONE, WAITING], Found::Old, false),
        ] {
            let flag = Arc::new(Flag::default());
            let slot = slot(&flag, since, requests);
            assert_eq!(slot.look(begun + after), expected);
            assert_eq!(flag.0.load(Ordering::SeqCst), is_interrupted, "{after:?}");
        }
    }

    #[test]
    fn an_interruption_ends_with_its_execution() {
        let flag = Arc::new(Flag::default());
        let slot = slot(&flag, Some(Instant::now()), [GONE, GONE]);
        slot.look(Instant::now() + OLD);
        assert!(flag.0.load(Ordering::SeqCst));
        assert!(slot.end());
        assert!(!flag.0.load(Ordering::SeqCst));
        // Once, and nothing is left to interrupt.
        assert!(!slot.end());
        assert!(!slot.ask_to_be_woken());
        assert_eq!(slot.look(Instant::now() + OLD), Found::Nothing);
    }

    #[test]
    fn the_thread_ends_with_the_last_instance() {
        let watch = || CancellationWatch::asking(Arc::new(Flag::default()), |_| false).unwrap();
        let (first, second) = (watch(), watch());
        assert!(Arc::ptr_eq(&first.watcher, &second.watcher));
        let life = Arc::downgrade(first.watcher.life.as_ref().unwrap());
        drop(first);
        assert_eq!(live(&second.watcher.slots).len(), 1);
        drop(second);
        assert_eq!(life.strong_count(), 0);
    }
}
