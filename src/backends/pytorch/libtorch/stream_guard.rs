//! The stream that a thread's work on a GPU goes to.

use std::ptr;

use conch_backend_sdk::{Error, StreamHandle};

use super::cuda::{CudaFunctions, RawGuard};
use super::torch::Torch;

/// Has torch enqueue what this thread starts on a stream, as long as it lives.
pub struct StreamGuard<'s> {
    functions: &'s CudaFunctions,
    raw: *mut RawGuard,
}

impl Torch {
    /// Has what this thread starts go to `stream`, on its GPU.
    ///
    /// # Errors
    /// `Unavailable` if this torch is a build for CPUs; `Internal` with torch's own words.
    pub fn on_stream<'s>(&'s self, stream: &'s StreamHandle) -> Result<StreamGuard<'s>, Error> {
        let functions = self.cuda()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the stream is live, and outlives the guard; the result is writable.
        let status =
            unsafe { (functions.create_guard)(stream.raw(), stream.device(), &raw mut raw) };
        self.check(status, "cannot use the instance's stream")?;
        Ok(StreamGuard { functions, raw })
    }
}

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; deleting reports no error that one could act on.
        unsafe { (self.functions.delete_guard)(self.raw) };
    }
}
