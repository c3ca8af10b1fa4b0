//! A response in an embedder's hands: what `TRITONSERVER_InferenceResponse*` points to. Used by one
//! thread at a time.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use conch_engine::{Error, ModelVersion, Output, Response};

use super::placement::PlacedBuffer;
use crate::boundary::{HandleTag, c_string, handles};
use crate::host::BackendParameter;
use crate::objects::BufferPlace;

handles! {
    TRITONSERVER_InferenceResponse => InferenceResponse, "response", tagged;
}

/// The target of `TRITONSERVER_InferenceResponse*`.
#[repr(C)]
pub(crate) struct InferenceResponse {
    tag: HandleTag<conch_abi::TRITONSERVER_InferenceResponse>,
    model: Arc<ModelVersion>,
    model_name: OnceLock<CString>,
    id: CString,
    outcome: Result<Response, Error>,
    output_names: OnceLock<Vec<CString>>,
    parameters: OnceLock<Vec<BackendParameter>>,
}

impl InferenceResponse {
    pub(super) fn new(
        model: Arc<ModelVersion>,
        id: CString,
        outcome: Result<Response, Error>,
    ) -> InferenceResponse {
        InferenceResponse {
            tag: HandleTag::new(),
            model,
            model_name: OnceLock::new(),
            id,
            outcome,
            output_names: OnceLock::new(),
            parameters: OnceLock::new(),
        }
    }

    pub(crate) fn error(&self) -> Result<(), Error> {
        self.outcome.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    pub(crate) fn model(&self) -> &Arc<ModelVersion> {
        &self.model
    }

    pub(crate) fn model_name(&self) -> *const c_char {
        self.model_name
            .get_or_init(|| c_string(&self.model.name))
            .as_ptr()
    }

    pub(crate) fn id(&self) -> *const c_char {
        self.id.as_ptr()
    }

    pub(crate) fn parameters(&self) -> &[BackendParameter] {
        self.parameters.get_or_init(|| {
            let made = self.outcome.as_ref().map(|response| &*response.parameters);
            made.unwrap_or_default()
                .iter()
                .map(BackendParameter::of)
                .collect()
        })
    }

    pub(crate) fn outputs(&self) -> &[Output] {
        self.outcome
            .as_ref()
            .map_or(&[], |response| &*response.outputs)
    }

    /// # Errors
    /// INVALID_ARG past the last.
    pub(crate) fn output(&self, index: u32) -> Result<(usize, &Output), Error> {
        let outputs = self.outputs();
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        match outputs.get(place) {
            Some(output) => Ok((place, output)),
            None => Err(Error::invalid(format!(
                "out of bounds index {index}: response has {} outputs",
                outputs.len()
            ))),
        }
    }

    /// The name of an output that there is.
    pub(crate) fn output_name(&self, place: usize) -> *const c_char {
        let names = self.output_names.get_or_init(|| {
            let names = self.outputs().iter().map(|output| c_string(&output.name));
            names.collect()
        });
        names.get(place).map_or(ptr::null(), |name| name.as_ptr())
    }
}

/// Where the bytes of an output lie: address, attributes, and what the allocator keeps with them.
pub(crate) fn location(output: &Output) -> (*const c_void, BufferPlace, *mut c_void) {
    match PlacedBuffer::of(&output.data) {
        Some(placed) => (
            placed.buffer().cast_const(),
            placed.place_of_buffer(),
            placed.buffer_userp(),
        ),
        None if output.data.is_empty() => (ptr::null(), BufferPlace::default(), ptr::null_mut()),
        None => (
            output.data.as_ptr().cast(),
            BufferPlace::of_view(&output.data),
            ptr::null_mut(),
        ),
    }
}
