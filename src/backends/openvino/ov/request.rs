//! An inference request: the inputs, outputs and scratch memory of one run at a time.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::{Error, Interrupt};

use super::runtime::Runtime;
use super::table::OvInferRequest;
use super::tensor::Tensor;

/// An inference request of a compiled model.
pub struct InferRequest {
    runtime: Arc<Runtime>,
    raw: NonNull<OvInferRequest>,
}

// SAFETY: a request may be used from any thread, one at a time, but for cancellation.
unsafe impl Send for InferRequest {}
// SAFETY: shared, it can be cancelled, which OpenVINO allows while it runs, and asked for its
// outputs. What changes it needs it alone.
unsafe impl Sync for InferRequest {}

impl InferRequest {
    /// # Safety
    /// `raw` is null or a request that the caller gives away.
    pub(super) unsafe fn own(
        runtime: &Arc<Runtime>,
        raw: *mut OvInferRequest,
    ) -> Result<Self, Error> {
        Ok(InferRequest {
            runtime: Arc::clone(runtime),
            raw: NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO gave no request"))?,
        })
    }

    /// The library that it is a request of.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Runs the model on `inputs`, all of them in the model's order, and waits for the end.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn run(&self, inputs: &[Tensor<'_>]) -> Result<(), Error> {
        let functions = &self.runtime.functions;
        for (index, tensor) in inputs.iter().enumerate() {
            // SAFETY: request and tensor are live. The request keeps the tensor, and reads its
            // memory only in runs, before which all inputs are set anew: while `inputs` live.
            let status = unsafe {
                (functions.infer_request_set_input)(self.raw.as_ptr(), index, tensor.as_ptr())
            };
            self.runtime.check(status, "setting tensor data")?;
        }
        // On this thread: started otherwise, a run is handed to a thread of OpenVINO's, and its end
        // to another one.
        // SAFETY: the request is live and does not run.
        let status = unsafe { (functions.infer_request_infer)(self.raw.as_ptr()) };
        self.runtime.check(status, "running inference")
    }

    /// The tensor that the last run made.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn output(&self, index: usize) -> Result<Tensor<'static>, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the request is live, the result writable.
        let status = unsafe {
            (self.runtime.functions.infer_request_get_output)(
                self.raw.as_ptr(),
                index,
                &raw mut raw,
            )
        };
        self.runtime.check(status, "reading output tensor")?;
        // SAFETY: made for us; its memory is OpenVINO's.
        unsafe { Tensor::own(&self.runtime, raw) }
    }
}

impl Interrupt for InferRequest {
    fn interrupt(&self) {
        // SAFETY: the request is live; one that does not run is left as it is.
        let status = unsafe { (self.runtime.functions.infer_request_cancel)(self.raw.as_ptr()) };
        if let Err(error) = self.runtime.check(status, "cancelling a request") {
            conch_backend_sdk::verbose!("{error}");
        }
    }

    /// The next run begins without a cancellation.
    fn reset(&self) {}
}

impl Drop for InferRequest {
    fn drop(&mut self) {
        // SAFETY: ours, and no run is going on.
        unsafe { (self.runtime.functions.infer_request_free)(self.raw.as_ptr()) };
    }
}
