//! A response of a request that was not sent yet.

use std::mem;
use std::ptr::NonNull;

use conch_abi as abi;

use crate::Error;

/// A response that was begun. Dropped, it is thrown away.
pub(crate) struct OwnedResponse(NonNull<abi::TRITONBACKEND_Response>);

// SAFETY: the server lets any thread use a response, one at a time.
unsafe impl Send for OwnedResponse {}

impl OwnedResponse {
    /// # Safety
    /// `raw` is null or a fresh response, which the wrapper owns from now on.
    pub(crate) unsafe fn new(raw: *mut abi::TRITONBACKEND_Response) -> Result<Self, Error> {
        NonNull::new(raw)
            .map(OwnedResponse)
            .ok_or_else(|| Error::internal("server gave a null response"))
    }

    pub(crate) fn as_ptr(&self) -> *mut abi::TRITONBACKEND_Response {
        self.0.as_ptr()
    }

    /// The response, which is the caller's from now on.
    pub(crate) fn into_raw(self) -> *mut abi::TRITONBACKEND_Response {
        let raw = self.0.as_ptr();
        mem::forget(self);
        raw
    }
}

impl Drop for OwnedResponse {
    fn drop(&mut self) {
        // SAFETY: live, ours, and never sent.
        let deleted = unsafe { Error::check(abi::TRITONBACKEND_ResponseDelete(self.as_ptr())) };
        if let Err(error) = deleted {
            crate::error!("failed to delete a response: {error}");
        }
    }
}
