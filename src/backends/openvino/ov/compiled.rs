//! A model compiled for a device.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::Error;

use super::request::InferRequest;
use super::runtime::Runtime;
use super::table::OvCompiledModel;

/// A model compiled for a device, with the threads that run it.
pub struct CompiledModel {
    runtime: Arc<Runtime>,
    raw: NonNull<OvCompiledModel>,
}

// SAFETY: a compiled model may be used from any thread, by OpenVINO's documentation.
unsafe impl Send for CompiledModel {}

impl CompiledModel {
    /// # Safety
    /// `raw` is null or a compiled model that the caller gives away.
    pub(super) unsafe fn own(
        runtime: &Arc<Runtime>,
        raw: *mut OvCompiledModel,
    ) -> Result<Self, Error> {
        Ok(CompiledModel {
            runtime: Arc::clone(runtime),
            raw: NonNull::new(raw)
                .ok_or_else(|| Error::internal("OpenVINO gave no compiled model"))?,
        })
    }

    /// How many requests it runs best at a time, by OpenVINO's own estimate; 1 where it has none.
    pub fn optimal_requests(&self) -> usize {
        let mut value = ptr::null_mut();
        // SAFETY: the model is live, the key NUL-terminated, the result writable.
        let status = unsafe {
            (self.runtime.functions.compiled_model_get_property)(
                self.raw.as_ptr(),
                c"OPTIMAL_NUMBER_OF_INFER_REQUESTS".as_ptr(),
                &raw mut value,
            )
        };
        if status != 0 {
            return 1;
        }
        self.runtime.owned_text(value).trim().parse().unwrap_or(1)
    }

    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn create_request(&self) -> Result<InferRequest, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the model is live, the result writable.
        let status = unsafe {
            (self.runtime.functions.compiled_model_create_infer_request)(
                self.raw.as_ptr(),
                &raw mut raw,
            )
        };
        self.runtime
            .check(status, "creating infer request object")?;
        // SAFETY: made for us.
        unsafe { InferRequest::own(&self.runtime, raw) }
    }
}

impl Drop for CompiledModel {
    fn drop(&mut self) {
        // SAFETY: ours. Requests hold what they need of it.
        unsafe { (self.runtime.functions.compiled_model_free)(self.raw.as_ptr()) };
    }
}
