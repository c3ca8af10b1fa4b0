//! One inference that an embedder asked for: where its responses go, and who learns of its end.
//!
//! It lives from `ServerInferAsync` until the last response is delivered and the request released. The request object of the embedder
//! is not touched meanwhile: it may be gone, or used again, from the release callback on.

use std::any::Any;
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_abi as abi;
use conch_engine::trace::Trace;
use conch_engine::{Asker, Completion, Delivery, ModelVersion};
use conch_memory::View;
use smallvec::SmallVec;

use super::callbacks::Callback;
use super::placement::Allocator;
use super::response::InferenceResponse;
use crate::boundary::into_handle;
use crate::objects::BufferAttributes;

/// See the module.
pub(crate) struct Asked {
    pub(super) request: RequestAddress,
    pub(super) release: Callback<abi::TRITONSERVER_InferenceRequest>,
    pub(super) respond: Callback<abi::TRITONSERVER_InferenceResponse>,
    pub(super) allocator: Allocator,
    pub(super) id: CString,
    pub(super) model: Arc<ModelVersion>,
    /// Until the request is released.
    pub(super) trace: Mutex<Option<Trace>>,
    /// What inputs have for single host policies, and attributes beyond type and size: nearly always empty.
    pub(super) extras: Vec<InputExtra>,
    pub(super) outbox: Mutex<Outbox>,
}

/// The handle that goes back to the embedder.
pub(super) struct RequestAddress(pub(super) *mut abi::TRITONSERVER_InferenceRequest);

// SAFETY: handed back, never followed.
unsafe impl Send for RequestAddress {}
// SAFETY: as above.
unsafe impl Sync for RequestAddress {}

/// What one input has beside its data.
pub(crate) struct InputExtra {
    pub(crate) input: Box<str>,
    /// Its buffers for instances under a host policy, instead of the common ones.
    pub(crate) policies: Vec<(Box<str>, SmallVec<[View; 1]>)>,
    /// Of the common buffers, if given with the data.
    pub(crate) attributes: Option<Box<[BufferAttributes]>>,
}

/// Deliveries on their way. They are handed over one after another by whichever thread finds no other doing it.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Delivery>,
    is_draining: bool,
}

impl Asked {
    /// The embedder's inference behind an asker, if it is one.
    pub(crate) fn of(asker: &dyn Asker) -> Option<&Asked> {
        let any: &dyn Any = asker;
        any.downcast_ref()
    }

    pub(crate) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub(crate) fn extra(&self, input: &str) -> Option<&InputExtra> {
        self.extras.iter().find(|extra| &*extra.input == input)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_over(&self, delivery: Delivery) {
        let flags = if delivery.is_final {
            abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL
        } else {
            0
        };
        let response = match delivery.outcome {
            None => std::ptr::null_mut(),
            Some(outcome) => {
                let outcome = outcome.and_then(|mut response| {
                    self.allocator.adopt(&mut response.outputs)?;
                    Ok(response)
                });
                into_handle(Box::new(InferenceResponse::new(
                    Arc::clone(&self.model),
                    self.id.clone(),
                    outcome,
                )))
            }
        };
        // SAFETY: a response of this request or null, as the callback expects; it belongs to the callback now.
        unsafe {
            self.respond
                .call(response, flags, "a response callback failed");
        }
    }
}

impl Completion for Asked {
    fn deliver(&self, delivery: Delivery) {
        self.outbox().waiting.push_back(delivery);
    }

    fn wake(&self) {
        let mut outbox = self.outbox();
        if outbox.is_draining {
            return;
        }
        outbox.is_draining = true;
        while let Some(delivery) = outbox.waiting.pop_front() {
            drop(outbox);
            self.hand_over(delivery);
            outbox = self.outbox();
        }
        outbox.is_draining = false;
    }
}

impl Asker for Asked {
    fn has_more_inputs(&self) -> bool {
        self.extras.iter().any(|extra| !extra.policies.is_empty())
    }

    fn trace(&self) -> Option<Trace> {
        self.trace
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn released(&self) {
        // The trace ends first, so that it is whole when the embedder learns of the end.
        let trace = self
            .trace
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(trace);
        // SAFETY: the request that the embedder gave, which is its own again.
        unsafe {
            self.release.call(
                self.request.0,
                abi::TRITONSERVER_REQUEST_RELEASE_ALL,
                "a request release callback failed",
            );
        }
    }
}
