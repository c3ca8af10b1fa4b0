//! Work that must be done, on a thread of its own if there is one.

use std::sync::{Arc, Mutex, PoisonError};

/// Runs `work` on a thread of its own; on this one if no thread is to be had.
pub(super) fn run_on_thread(name: &str, work: impl FnOnce() + Send + 'static) {
    // Shared with the thread so that it can still be had if that does not start.
    let delivery_guard = Arc::new(Mutex::new(Some(work)));
    let run = {
        let delivery_guard = Arc::clone(&delivery_guard);
        move || {
            let work = delivery_guard
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(work) = work {
                work();
            }
        }
    };
    let fallback = run.clone();
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    if started.is_err() {
        fallback();
    }
}
