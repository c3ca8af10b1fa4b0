//! Work that must be done, on threads of its own if there are any.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

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
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    if started.is_err() {
        fallback();
    }
}

/// Does `work` with each item, several at a time: on this thread, and on others as far as there are
/// any. Blocks until all is done.
pub(super) fn for_each<T: Send>(
    items: impl IntoIterator<Item = T>,
    thread_count: usize,
    name: &str,
    work: impl Fn(T) + Sync,
) {
    let items: VecDeque<T> = items.into_iter().collect();
    let thread_count = thread_count.min(items.len());
    let items = Mutex::new(items);
    let work_off = || {
        while let Some(item) = next(&items) {
            work(item);
        }
    };
    thread::scope(|scope| {
        for index in 1..thread_count {
            let builder = thread::Builder::new().name(format!("{name}-{index}"));
            if builder.spawn_scoped(scope, work_off).is_err() {
                break;
            }
        }
        work_off();
    });
}

/// Takes the first item.
pub(super) fn next<T>(items: &Mutex<VecDeque<T>>) -> Option<T> {
    items
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        for thread_count in [0, 1, 3, 100] {
            let done = Mutex::new(Vec::new());
            for_each(0..50, thread_count, "test", |item| {
                done.lock().unwrap().push(item);
            });
            let done = done.into_inner().unwrap();
            assert_eq!(done.len(), 50);
            assert_eq!(done.into_iter().collect::<BTreeSet<_>>(), (0..50).collect());
        }
    }
}
