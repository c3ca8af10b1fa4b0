//! The server's object of a request that this side made.

use std::ptr::NonNull;

use conch_abi as abi;

use crate::Error;

/// A request object, deleted on drop: before it is sent, or after the server released it.
pub(super) struct RequestHandle(NonNull<abi::TRITONSERVER_InferenceRequest>);

// SAFETY: one thread prepares and sends the request; what any thread may do with a shared handle is
// to cancel it, which the server allows at any time until it is deleted.
unsafe impl Send for RequestHandle {}
// SAFETY: as above.
unsafe impl Sync for RequestHandle {}

impl RequestHandle {
    /// # Safety
    /// `raw` is null or a request that nobody else deletes.
    pub(super) unsafe fn new(raw: *mut abi::TRITONSERVER_InferenceRequest) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("server gave a null request"))?;
        Ok(RequestHandle(raw))
    }

    pub(super) fn as_ptr(&self) -> *mut abi::TRITONSERVER_InferenceRequest {
        self.0.as_ptr()
    }

    /// Asks the server to end the request early.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub(super) fn cancel(&self) -> Result<(), Error> {
        // SAFETY: live, as it is deleted on drop only.
        unsafe { Error::check(abi::TRITONSERVER_InferenceRequestCancel(self.0.as_ptr())) }
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        // SAFETY: ours, as it was never sent or has been released, and used by nobody afterwards.
        let deleted =
            unsafe { Error::check(abi::TRITONSERVER_InferenceRequestDelete(self.0.as_ptr())) };
        if let Err(error) = deleted {
            crate::error!("failed to delete a request: {error}");
        }
    }
}
