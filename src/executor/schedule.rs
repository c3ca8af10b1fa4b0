//! Which tasks are ready, and who wakes the thread for them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Wake;

use async_task::Runnable;
use conch_net::WakeEvent;
use conch_sync::{MpscQueue, Node, SleepFlag};

thread_local! {
    /// The number of the executor whose thread this is; 0 for none.
    static OWN_NUMBER: Cell<u64> = const { Cell::new(0) };
    static READY: RefCell<VecDeque<Runnable>> = const { RefCell::new(VecDeque::new()) };
}

/// The next executor's number.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// What every waker of an executor's tasks knows of it.
pub(crate) struct Schedule {
    number: u64,
    /// Tasks that other threads woke. At most one entry per task.
    foreign: MpscQueue<Box<Node<Runnable>>>,
    is_root_ready: AtomicBool,
    sleep_flag: SleepFlag,
    pub(crate) event: WakeEvent,
}

impl Schedule {
    /// For the calling thread, until [`Schedule::leave`].
    pub(crate) fn enter(event: WakeEvent) -> Arc<Schedule> {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        OWN_NUMBER.set(number);
        Arc::new(Schedule {
            number,
            foreign: MpscQueue::default(),
            is_root_ready: AtomicBool::new(false),
            sleep_flag: SleepFlag::new(),
            event,
        })
    }

    /// From now on the thread is as any other.
    pub(crate) fn leave(&self) {
        OWN_NUMBER.set(0);
    }

    /// A task is ready. Called by wakers, on any thread.
    pub(crate) fn push(&self, runnable: Runnable) {
        if self.is_own_thread() {
            READY.with_borrow_mut(|ready| ready.push_back(runnable));
            return;
        }
        match self.foreign.push(Node::new(runnable)) {
            Ok(_) => self.wake_thread(),
            // The queue is never closed, and a task is scheduled once.
            Err(_) => debug_assert!(false, "a task is in the queue twice"),
        }
    }

    /// The next task that is ready.
    pub(crate) fn pop(&self) -> Option<Runnable> {
        READY.with_borrow_mut(VecDeque::pop_front)
    }

    /// Takes what other threads woke. Returns how many tasks are ready.
    pub(crate) fn collect(&self) -> usize {
        READY.with_borrow_mut(|ready| {
            if !self.foreign.is_empty() {
                ready.extend(self.foreign.take_all().map(|node| node.into_value()));
            }
            ready.len()
        })
    }

    /// Whether the root future was woken since the last call.
    pub(crate) fn take_root(&self) -> bool {
        self.is_root_ready.load(Ordering::Relaxed)
            && self.is_root_ready.swap(false, Ordering::Acquire)
    }

    /// Whether the thread has nothing to do, as far as it has heard.
    pub(crate) fn is_idle(&self) -> bool {
        READY.with_borrow(VecDeque::is_empty) && !self.has_foreign()
    }

    fn has_foreign(&self) -> bool {
        self.is_root_ready.load(Ordering::Relaxed) || !self.foreign.is_empty()
    }

    /// Has `sleep` put the thread to sleep, unless somebody was faster. What is woken meanwhile
    /// ends the sleep by the event.
    pub(crate) fn sleep<R>(&self, sleep: impl FnOnce() -> R) -> Option<R> {
        self.sleep_flag.announce();
        let result = (!self.has_foreign()).then(sleep);
        self.sleep_flag.clear();
        result
    }

    fn is_own_thread(&self) -> bool {
        // Failure: the thread ends, and with it its executor.
        OWN_NUMBER.try_with(Cell::get) == Ok(self.number)
    }

    fn wake_thread(&self) {
        if self.sleep_flag.must_wake() {
            self.event.raise();
        }
    }
}

/// The waker of the root future. Other threads wake it without a queue.
impl Wake for Schedule {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: the thread sees what was done before.
        self.is_root_ready.store(true, Ordering::Release);
        if !self.is_own_thread() {
            self.wake_thread();
        }
    }
}
