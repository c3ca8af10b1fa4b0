//! Graphs: what was put on a stream while it captured, to be done at every launch. One stream, no
//! events.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::code::{CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, Code, INVALID_VALUE};
use crate::end::End;

/// A `CUhostFn`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// One thing that a stream does.
#[derive(Clone, Copy)]
pub enum Step {
    Copy { to: End, from: End, len: usize },
    Fill { to: u64, value: u8, len: usize },
    Call { function: HostFunction, data: usize },
}

/// The steps of a graph, in order. Whether it is instantiated: only then it can be launched.
pub struct Graph {
    pub steps: Vec<Step>,
    pub is_executable: bool,
}

/// What a stream captures.
#[derive(Default)]
pub struct Capture {
    state: Mutex<Option<Captured>>,
}

#[derive(Default)]
struct Captured {
    steps: Vec<Step>,
    is_invalid: bool,
}

impl Capture {
    fn lock(&self) -> MutexGuard<'_, Option<Captured>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the stream does nothing.
    pub fn begin(&self) -> Result<(), Code> {
        let mut state = self.lock();
        match *state {
            Some(_) => Err(INVALID_VALUE),
            None => {
                *state = Some(Captured::default());
                Ok(())
            }
        }
    }

    /// What was captured.
    pub fn end(&self) -> Result<Vec<Step>, Code> {
        let captured = self.lock().take().ok_or(INVALID_VALUE)?;
        match captured.is_invalid {
            true => Err(CAPTURE_INVALIDATED),
            false => Ok(captured.steps),
        }
    }

    pub fn is_active(&self) -> bool {
        self.lock().is_some()
    }

    /// Takes a step of a stream that captures; false if it does not.
    pub fn take(&self, step: impl FnOnce() -> Step) -> bool {
        match &mut *self.lock() {
            Some(captured) => {
                captured.steps.push(step());
                true
            }
            None => false,
        }
    }

    /// For what no stream may be asked while it captures: the capture is lost.
    pub fn refuse(&self) -> Result<(), Code> {
        match &mut *self.lock() {
            Some(captured) => {
                captured.is_invalid = true;
                Err(CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }
}
