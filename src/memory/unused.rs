//! Giving back what a thread has freed.
//!
//! An allocator keeps freed memory for the thread that freed it, page by page for each size. A
//! thread that has prepared itself and then waits for requests keeps what the preparation needed,
//! and there is one such thread per instance. So a thread says when it is done, and the memory goes
//! to whichever prepares next. Only the executable has an allocator of its own, so it registers how
//! that is done; elsewhere this does nothing.

use std::sync::OnceLock;

/// How an allocator gives back what the calling thread has freed.
#[derive(Clone, Copy, Debug)]
pub struct Collector {
    /// To other threads.
    pub to_threads: fn(),
    /// To the system, from all threads that have given back.
    pub to_system: fn(),
}

static COLLECTOR: OnceLock<Collector> = OnceLock::new();

/// Registers how the allocator of this process does it. The first one counts.
pub fn register(collector: Collector) {
    let _ = COLLECTOR.set(collector);
}

/// Lets other threads have what the calling thread has freed. For the end of a preparation: some
/// microseconds.
pub fn give_to_threads() {
    if let Some(collector) = COLLECTOR.get() {
        (collector.to_threads)();
    }
}

/// Lets the system have it. For the end of a start: each page that is needed again is a fault.
pub fn give_to_system() {
    if let Some(collector) = COLLECTOR.get() {
        (collector.to_system)();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static CALLS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

    #[test]
    fn what_is_registered_is_called() {
        give_to_threads();
        let count = |index: usize| CALLS[index].load(Ordering::Relaxed);
        assert_eq!((count(0), count(1)), (0, 0));
        register(Collector {
            to_threads: || {
                CALLS[0].fetch_add(1, Ordering::Relaxed);
            },
            to_system: || {
                CALLS[1].fetch_add(1, Ordering::Relaxed);
            },
        });
        give_to_threads();
        give_to_threads();
        give_to_system();
        assert_eq!((count(0), count(1)), (2, 1));
    }
}
