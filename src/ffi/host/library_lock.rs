//! One library file is initialised and finalised by one server at a time.

use std::sync::{Condvar, Mutex};

use super::lock::lock;

/// Serialises Initialize and Finalize of one library file.
#[derive(Default)]
pub(super) struct LibraryLock {
    /// From Initialize to the end of Finalize.
    pub(super) is_open: Mutex<bool>,
    pub(super) closed: Condvar,
}

impl LibraryLock {
    /// Ends the life of a backend that was opened.
    pub(super) fn end(&self, finalize: impl FnOnce()) {
        let mut is_open = lock(&self.is_open);
        finalize();
        *is_open = false;
        self.closed.notify_all();
    }
}
