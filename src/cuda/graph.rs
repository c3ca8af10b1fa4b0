//! Work of a stream, captured once and enqueued as a whole.

use std::sync::Arc;

use cudarc::driver::sys;

use crate::driver::first_missing;
use crate::error::check;
use crate::{CudaError, Device, Stream};

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
    /// See [`CaptureError`]. The stream captures no longer, whatever happened, a panic of `work`
    /// included.
    pub fn capture<E>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<CudaGraph, CaptureError<E>> {
        if let Some(name) = first_missing(&FUNCTIONS) {
            return Err(CaptureError::TooOld(name));
        }
        let _current = self.device().current().map_err(CaptureError::Refused)?;
        let capture = Capture::begin(self).map_err(CaptureError::Refused)?;
        work().map_err(CaptureError::Work)?;
        capture.instantiate().map_err(CaptureError::Refused)
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
        // SAFETY: graph and stream live, and `capture` has looked the driver's function up; the
        // rest is promised by the caller.
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

/// A capture on a stream whose device is current. When this is dropped, the stream captures no
/// longer.
struct Capture<'stream> {
    stream: &'stream Stream,
    has_ended: bool,
    /// What the driver makes of the capture, and instantiates; null before.
    graph: sys::CUgraph,
}

impl<'stream> Capture<'stream> {
    fn begin(stream: &'stream Stream) -> Result<Self, CudaError> {
        use sys::CUstreamCaptureMode_enum as Mode;
        // SAFETY: the stream lives, and the function was looked up.
        check("cuStreamBeginCapture_v2", unsafe {
            sys::cuStreamBeginCapture_v2(stream.handle(), Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        })?;
        Ok(Capture {
            stream,
            has_ended: false,
            graph: std::ptr::null_mut(),
        })
    }

    /// Ends the capture, whatever the driver answers.
    fn end(&mut self) -> Result<(), CudaError> {
        self.has_ended = true;
        // SAFETY: the stream lives and captures, the result is writable.
        check("cuStreamEndCapture", unsafe {
            sys::cuStreamEndCapture(self.stream.handle(), &raw mut self.graph)
        })
    }

    fn instantiate(mut self) -> Result<CudaGraph, CudaError> {
        self.end()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the graph is the driver's, the result is writable; no flags are needed.
        check("cuGraphInstantiateWithFlags", unsafe {
            sys::cuGraphInstantiateWithFlags(&raw mut handle, self.graph, 0)
        })?;
        Ok(CudaGraph {
            device: Arc::clone(self.stream.device()),
            handle,
        })
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.end();
        }
        if !self.graph.is_null() {
            // SAFETY: destroyed once; what was instantiated does not need it.
            let _ = unsafe { sys::cuGraphDestroy(self.graph) };
        }
    }
}

/// The functions of captures and graphs.
const FUNCTIONS: [&str; 6] = [
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
];
