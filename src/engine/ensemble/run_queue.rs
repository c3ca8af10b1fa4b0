//! Runs that have something to do, one after another on the thread that noticed.
//!
//! What one run does may wake another: an ensemble that is a step of another one, or a run that
//! waited for the first one's place. If each woke the next from within, a long chain of them would
//! overflow the stack. So a thread that is at it only notes the next. When its turn is over, the
//! timer thread's thread goes on with what is left, one turn each.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A run that waits for a thread.
pub(super) trait QueuedRun {
    /// Takes of what has arrived as much as is `left` of this thread's turn, unless another thread
    /// is at it.
    fn drive(&self, left: &mut usize);

    /// Attending it panicked: it is answered all the same.
    fn abort(&self);
}

thread_local! {
    /// None: this thread is not at it. A thread-local because the way from one run to the next
    /// leads through interfaces that know of neither: queues, completions, caches.
    static RUN_QUEUE: RefCell<Option<VecDeque<Arc<dyn QueuedRun>>>> = const { RefCell::new(None) };
}

/// Lets `run` look at what has arrived for it, now or as soon as this thread has done what it is
/// doing.
pub(super) fn drive(run: Arc<dyn QueuedRun>) {
    let first = RUN_QUEUE.with_borrow_mut(|run_queue| match run_queue {
        Some(run_queue) => {
            run_queue.push_back(run);
            None
        }
        None => {
            *run_queue = Some(VecDeque::new());
            Some(run)
        }
    });
    let Some(mut run) = first else { return };
    let mut left = TURN_MAX;
    loop {
        if catch_unwind(AssertUnwindSafe(|| run.drive(&mut left))).is_err() {
            conch_log::error!("a request of an ensemble panicked between its steps");
            run.abort();
        }
        let next = RUN_QUEUE.with_borrow_mut(|run_queue| {
            let next = run_queue.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                *run_queue = None;
            }
            next
        });
        match next {
            Some(next) => run = next,
            None => return,
        }
    }
}

/// What one thread takes at a time, of whichever runs: arrivals, or steps that these start. Some
/// 100 us.
pub const TURN_MAX: usize = 64;
