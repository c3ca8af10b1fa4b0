//! Work of a stream, captured once and enqueued as a whole.

use std::sync::Arc;

use cudarc::driver::sys;

use crate::error::check;
use crate::{CudaError, Device, Stream};

/// What the driver needs for graphs, beyond what it needs for the rest.
const FUNCTIONS: [&str; 6] = [
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
];

/// Why there is no graph.
#[derive(Debug)]
pub enum CaptureError<E> {
    /// The driver is older than CUDA 11.4, and lacks this function.
    TooOld(&'static str),
    Refused(CudaError),
    /// What was to be captured failed.
    Work(E),
}

/// A captured piece of work. It uses the addresses that it was captured with.
#[derive(Debug)]
pub struct CudaGraph {
    device: Arc<Device>,
    handle: sys::CUgraphExec,
}

// SAFETY: the driver allows a graph to be launched and destroyed by any thread, one at a time; the
// handle is never dereferenced here.
unsafe impl Send for CudaGraph {}

impl Stream {
    /// Captures what `work` enqueues on this stream, which does nothing of it meanwhile. Calls of
    /// other threads are not in the way. A stream that is waited for in `work` fails the capture.
    ///
    /// # Errors
    /// See [`CaptureError`]. The stream captures no longer, whatever happened.
    pub fn capture<E>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<CudaGraph, CaptureError<E>> {
        use sys::CUstreamCaptureMode_enum as Mode;
        if let Some(name) = missing() {
            return Err(CaptureError::TooOld(name));
        }
        let _current = self.device().current().map_err(CaptureError::Refused)?;
        // SAFETY: the stream lives.
        check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(self.handle(), Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        })
        .map_err(CaptureError::Refused)?;
        let worked = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives, the result is writable.
        let ended = check("cuStreamEndCapture", unsafe {
            sys::cuStreamEndCapture(self.handle(), &raw mut graph)
        });
        let made = worked.map_err(CaptureError::Work).and_then(|()| {
            ended.map_err(CaptureError::Refused)?;
            let mut handle = std::ptr::null_mut();
            // SAFETY: the graph is the driver's, the result is writable; no flags are needed.
            check("cuGraphInstantiate", unsafe {
                sys::cuGraphInstantiateWithFlags(&raw mut handle, graph, 0)
            })
            .map_err(CaptureError::Refused)?;
            Ok(CudaGraph {
                device: Arc::clone(self.device()),
                handle,
            })
        });
        if !graph.is_null() {
            // SAFETY: what was instantiated does not need it.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        made
    }

    /// Enqueues the work of a graph.
    ///
    /// # Safety
    /// What it was captured with is still there, and nobody else uses it, until the work is done,
    /// as for [`Stream::copy`]. The graph lives as long.
    ///
    /// # Errors
    /// What the driver refuses.
    pub unsafe fn launch_graph(&self, graph: &CudaGraph) -> Result<(), CudaError> {
        let _current = self.device().current()?;
        // SAFETY: graph and stream live; the rest is promised by the caller.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(graph.handle, self.handle())
        })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: instantiated once, destroyed once; the driver finishes what was launched.
            let _ = unsafe { sys::cuGraphExecDestroy(self.handle) };
        }
    }
}

fn missing() -> Option<&'static str> {
    // SAFETY: a stream has been made by this library, so it is there.
    let library = unsafe { sys::culib() };
    FUNCTIONS.into_iter().find(|name| {
        // SAFETY: the symbol is only looked up, not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        found.is_err()
    })
}
