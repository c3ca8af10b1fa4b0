//! A response that waits with its request until the batch is finished.

use std::mem;
use std::ptr::NonNull;

use conch_abi as abi;

use crate::Error;

/// A response that was begun and not sent. Dropped, it is thrown away.
pub(crate) struct KeptResponse(NonNull<abi::TRITONBACKEND_Response>);

// SAFETY: the server lets any thread use a response, one at a time.
unsafe impl Send for KeptResponse {}

impl KeptResponse {
    /// # Safety
    /// `raw` is a live response, which the wrapper owns from now on.
    pub(crate) unsafe fn new(raw: NonNull<abi::TRITONBACKEND_Response>) -> KeptResponse {
        KeptResponse(raw)
    }

    /// The response, which is the caller's from now on.
    pub(crate) fn into_raw(self) -> NonNull<abi::TRITONBACKEND_Response> {
        let raw = self.0;
        mem::forget(self);
        raw
    }
}

impl Drop for KeptResponse {
    fn drop(&mut self) {
        // SAFETY: live, ours, and never sent.
        let deleted = unsafe { Error::check(abi::TRITONBACKEND_ResponseDelete(self.0.as_ptr())) };
        if let Err(error) = deleted {
            crate::error!("failed to delete a response: {error}");
        }
    }
}
