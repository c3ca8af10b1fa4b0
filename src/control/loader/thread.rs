//! Work that must be done, on threads of its own if there are any.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use conch_engine::threads::loader_placement::LoaderPlacement;
use conch_log as log;

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

/// Threads that work on many models, several at a time.
pub(super) struct LoaderThreads<'p> {
    pub(super) count_max: usize,
    /// A number follows.
    pub(super) name: &'static str,
    pub(super) placement: &'p LoaderPlacement,
}

impl LoaderThreads<'_> {
    /// Does `work` with each item. The calling thread is one of them, unless it may not become a
    /// loader; it does what is left if no other can be started. Blocks until all is done.
    pub(super) fn for_each<T: Send>(
        &self,
        items: impl IntoIterator<Item = T>,
        work: impl Fn(T) + Sync,
    ) {
        let items: VecDeque<T> = items.into_iter().collect();
        let thread_count = self.count_max.min(items.len());
        let items = Mutex::new(items);
        let work_off = || {
            while let Some(item) = next(&items) {
                work(item);
            }
        };
        let work_as_loader = || {
            self.placement.apply();
            work_off();
        };
        let first = usize::from(!self.placement.needs_own_threads());
        thread::scope(|scope| {
            let mut started_count = 0;
            for index in first..thread_count {
                let started = thread::Builder::new()
                    .name(format!("{}-{index}", self.name))
                    .spawn_scoped(scope, work_as_loader);
                if let Err(cause) = started {
                    log::warning!("loading with fewer threads than asked for: {cause}");
                    break;
                }
                started_count += 1;
            }
            // The work is done even if no other could be started.
            if started_count < thread_count {
                work_off();
            }
        });
    }
}

fn next<T>(items: &Mutex<VecDeque<T>>) -> Option<T> {
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
        for count_max in [1, 3, 100] {
            let done = Mutex::new(Vec::new());
            let threads = LoaderThreads {
                count_max,
                name: "test",
                placement: &LoaderPlacement::default(),
            };
            threads.for_each(0..50, |item| done.lock().unwrap().push(item));
            let done = done.into_inner().unwrap();
            assert_eq!(done.len(), 50);
            assert_eq!(done.into_iter().collect::<BTreeSet<_>>(), (0..50).collect());
        }
    }
}
