//! Graphs: the calls that a stream captured instead of enqueueing their work, to be repeated at
//! every launch. One stream, no events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::code::{CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, Code, INVALID_VALUE};

/// Repeats a captured call on the stream of a handle.
pub type Node = Arc<dyn Fn(usize) -> Result<(), Code> + Send + Sync>;

/// The nodes of a graph, in order. Whether it is instantiated: only then it can be launched.
pub struct Graph {
    pub nodes: Vec<Node>,
    pub is_executable: bool,
}

/// What a stream captures.
#[derive(Default)]
pub struct Capture {
    state: Mutex<Option<CaptureState>>,
}

#[derive(Default)]
struct CaptureState {
    nodes: Vec<Node>,
    is_invalid: bool,
}

impl Capture {
    fn lock(&self) -> MutexGuard<'_, Option<CaptureState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the stream does nothing.
    pub fn begin(&self) -> Result<(), Code> {
        let mut state = self.lock();
        match *state {
            Some(_) => Err(INVALID_VALUE),
            None => {
                *state = Some(CaptureState::default());
                Ok(())
            }
        }
    }

    /// What was captured.
    pub fn end(&self) -> Result<Vec<Node>, Code> {
        let state = self.lock().take().ok_or(INVALID_VALUE)?;
        match state.is_invalid {
            true => Err(CAPTURE_INVALIDATED),
            false => Ok(state.nodes),
        }
    }

    pub fn is_active(&self) -> bool {
        self.lock().is_some()
    }

    /// Takes a call of a stream that captures, as what repeats it; false if it does not capture.
    pub fn take<F>(&self, again: impl FnOnce() -> F) -> bool
    where
        F: Fn(usize) -> Result<(), Code> + Send + Sync + 'static,
    {
        match &mut *self.lock() {
            Some(state) => {
                state.nodes.push(Arc::new(again()));
                true
            }
            None => false,
        }
    }

    /// For what no stream may be asked while it captures: the capture is lost.
    pub fn refuse(&self) -> Result<(), Code> {
        match &mut *self.lock() {
            Some(state) => {
                state.is_invalid = true;
                Err(CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }
}
