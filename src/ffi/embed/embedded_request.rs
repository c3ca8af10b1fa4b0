//! One inference that an embedder asked for: where its responses go, and who learns of its end.
//!
//! It lives from `ServerInferAsync` until the last response is delivered and the request released.
//! The request object of the embedder is not touched meanwhile: it may be gone, or used again, from
//! the release callback on.

use std::any::Any;
use std::collections::VecDeque;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_abi as abi;
use conch_engine::request::trace::Trace;
use conch_engine::{Completion, Delivery, ModelVersion, RequestObserver};
use conch_log as log;
use conch_memory::ByteView;
use smallvec::SmallVec;

use super::callbacks::EmbedderCallback;
use super::placement::RequestAllocator;
use super::response::InferenceResponse;
use crate::boundary::into_handle;
use crate::objects::BufferAttributes;

/// What the engine's observer of an embedder's request needs of it.
pub(crate) struct EmbeddedRequest {
    pub(super) request: RequestAddress,
    pub(super) release: EmbedderCallback<abi::TRITONSERVER_InferenceRequest>,
    pub(super) respond: EmbedderCallback<abi::TRITONSERVER_InferenceResponse>,
    pub(super) allocator: RequestAllocator,
    pub(super) id: CString,
    pub(super) model: Arc<ModelVersion>,
    /// Until the request is released.
    pub(super) trace: Mutex<Option<Trace>>,
    /// What inputs have for single host policies, and attributes beyond type and size: nearly
    /// always empty.
    pub(super) extras: Vec<InputExtra>,
    pub(super) outbox: Mutex<DeliveryOutbox>,
    /// The request is the embedder's again.
    pub(super) is_released: AtomicBool,
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
    pub(crate) policies: Vec<(Box<str>, SmallVec<[ByteView; 1]>)>,
    /// Of the common buffers, if given with the data.
    pub(crate) attributes: Option<Box<[BufferAttributes]>>,
}

/// Deliveries on their way. They are handed over one after another by whichever thread finds no
/// other doing it.
#[derive(Default)]
pub(super) struct DeliveryOutbox {
    waiting: VecDeque<Delivery>,
    is_draining: bool,
}

impl EmbeddedRequest {
    /// The embedder's inference behind an observer, if it is one.
    pub(crate) fn of(observer: &dyn RequestObserver) -> Option<&EmbeddedRequest> {
        let any: &dyn Any = observer;
        any.downcast_ref()
    }

    pub(crate) fn allocator(&self) -> &RequestAllocator {
        &self.allocator
    }

    pub(super) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    pub(crate) fn extra(&self, input: &str) -> Option<&InputExtra> {
        self.extras.iter().find(|extra| &*extra.input == input)
    }

    fn outbox(&self) -> MutexGuard<'_, DeliveryOutbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_response(&self, delivery: Delivery) {
        let flags = if delivery.is_final() {
            abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL
        } else {
            0
        };
        let response = match delivery.into_outcome() {
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
        // SAFETY: a response of this request or null, as the callback expects; it belongs to the
        // callback now.
        unsafe {
            self.respond
                .call(response, flags, "a response callback failed");
        }
    }
}

impl Completion for EmbeddedRequest {
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
            // A panic of ours must not keep what follows.
            let handed = catch_unwind(AssertUnwindSafe(|| self.send_response(delivery)));
            if handed.is_err() {
                log::error!("handing over a response panicked");
            }
            outbox = self.outbox();
        }
        outbox.is_draining = false;
    }
}

impl RequestObserver for EmbeddedRequest {
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
        // Whoever learns of it by the callback may send the request again.
        self.is_released.store(true, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::ptr;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use conch_engine::Error;

    use super::*;
    use crate::boundary::{borrow, take};

    /// What the callback saw, and what it is to do.
    #[derive(Default)]
    struct Seen {
        messages: Mutex<Vec<String>>,
        finals: AtomicU64,
        is_inside: AtomicBool,
        embedded: Mutex<Option<Arc<EmbeddedRequest>>>,
    }

    unsafe extern "C" fn note(
        response: *mut abi::TRITONSERVER_InferenceResponse,
        flags: u32,
        userp: *mut c_void,
    ) {
        // SAFETY: the test passes a live `Seen`.
        let seen = unsafe { &*userp.cast::<Seen>() };
        assert!(!seen.is_inside.swap(true, Ordering::SeqCst), "two at once");
        if response.is_null() {
            seen.messages.lock().unwrap().push(String::new());
        } else {
            // SAFETY: the callback owns the response.
            let message = unsafe {
                let message = borrow(response).unwrap().error().unwrap_err().message;
                drop(take(response));
                message
            };
            seen.messages.lock().unwrap().push(message.into_owned());
        }
        // From within, one more arrives: it waits for this call to end.
        if let Some(embedded) = seen.embedded.lock().unwrap().take() {
            embedded.deliver(delivery("from within", false));
            embedded.wake();
        }
        seen.finals.fetch_add(
            u64::from(flags & abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL),
            Ordering::SeqCst,
        );
        seen.is_inside.store(false, Ordering::SeqCst);
    }

    unsafe extern "C" fn released(
        _: *mut abi::TRITONSERVER_InferenceRequest,
        flags: u32,
        userp: *mut c_void,
    ) {
        assert_eq!(flags, abi::TRITONSERVER_REQUEST_RELEASE_ALL);
        // SAFETY: the test passes a live `Seen`.
        let seen = unsafe { &*userp.cast::<Seen>() };
        seen.messages.lock().unwrap().push("released".to_owned());
    }

    fn delivery(message: &str, is_final: bool) -> Delivery {
        let outcome = (!message.is_empty()).then(|| Err(Error::internal(message.to_owned())));
        Delivery::new(0, outcome, is_final)
    }

    fn embedded(seen: &Seen) -> Arc<EmbeddedRequest> {
        let mut message =
            conch_config::parse_text("config.pbtxt", "name: 'm' backend: 'b'").unwrap();
        conch_config::normalize(&mut message);
        let config = Arc::new(conch_config::ResolvedConfig::from_partial(message).unwrap());
        let functions = Arc::default();
        let userp = ptr::from_ref(seen).cast_mut().cast();
        Arc::new(EmbeddedRequest {
            request: RequestAddress(ptr::null_mut()),
            release: EmbedderCallback::new(released, userp),
            respond: EmbedderCallback::new(note, userp),
            allocator: RequestAllocator::new(ptr::null_mut(), functions, ptr::null_mut()),
            id: CString::default(),
            model: conch_engine::testing::version("m", 1, &config),
            trace: Mutex::default(),
            extras: Vec::new(),
            outbox: Mutex::default(),
            is_released: AtomicBool::new(false),
        })
    }

    #[test]
    fn responses_of_many_threads_come_one_by_one_in_order() {
        const THREADS: usize = 4;
        const EACH: usize = 500;
        let seen = Seen::default();
        let embedded = embedded(&seen);
        let sent = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (embedded, sent) = (&embedded, &sent);
                scope.spawn(move || {
                    for index in 0..EACH {
                        // As a backend request does: delivered under its lock, woken outside.
                        let message = format!("{thread}.{index}");
                        let mut order = sent.lock().unwrap();
                        embedded.deliver(delivery(&message, false));
                        order.push(message);
                        drop(order);
                        embedded.wake();
                    }
                });
            }
        });
        assert_eq!(
            *seen.messages.lock().unwrap(),
            *sent.lock().unwrap(),
            "all were handed over when the last sender was done"
        );
    }

    #[test]
    fn what_a_callback_causes_waits_for_its_end() {
        let seen = Seen::default();
        let embedded = embedded(&seen);
        *seen.embedded.lock().unwrap() = Some(Arc::clone(&embedded));
        embedded.deliver(delivery("first", false));
        embedded.deliver(delivery("", true));
        embedded.wake();
        assert_eq!(
            *seen.messages.lock().unwrap(),
            ["first", "", "from within"],
            "in order of their delivery"
        );
        assert_eq!(seen.finals.load(Ordering::SeqCst), 1);
        RequestObserver::released(&*embedded);
        assert_eq!(
            seen.messages.lock().unwrap().last().map(String::as_str),
            Some("released")
        );
    }
}
