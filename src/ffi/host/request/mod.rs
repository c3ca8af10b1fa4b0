//! A request that a backend holds: what `TRITONBACKEND_Request*` points to.
//!
//! A backend request outlives the call that made it for as long as the backend, a response or a
//! factory refers to it. Parties and what they hold:
//!
//! - the backend, from Execute until RequestRelease: one `Arc` by way of the raw handle, and with
//!   it the request itself;
//! - each response and each response factory: a [`ResponseSender`], with which answers leave even
//!   after the request was released;
//! - the instance, while Execute runs: one `Arc`, so that a handle released meanwhile is never
//!   dangling. If it is the last one when Execute returns, the object is used again for the next
//!   request, so a steady state allocates nothing here.
//!
//! A handle that the backend never releases keeps its object for good: a leak, nothing worse.
//!
//! When answers leave: a one-to-one model's is kept until the request is released (then it departs
//! with its batch), unless a foreign thread sends it: then it leaves at once, as does every
//! response of a decoupled model and every response to an embedder, who counts them himself.

mod input;
mod lifecycle;
mod release;
mod response;
mod send;
mod sender;
mod texts;

use std::cell::UnsafeCell;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use conch_abi as abi;
use conch_engine::clock::monotonic_ns;
use conch_engine::request::trace::{Trace, TraceActivity};
use conch_engine::{
    CorrelationId, Error, OwnedRequest, Request, RequestContext, RequestHandle, RequestObserver,
    Response,
};

use super::facts::ModelFacts;
use super::state::{self, BackendState};
use crate::boundary::{HandleTag, as_handle, c_string, handles};
use crate::embed::{EmbeddedRequest, TraceHandle, handle_of};

pub(crate) use input::BackendInput;
use lifecycle::{LifecycleError, RequestLifecycle};
pub(crate) use response::{BackendResponse, ResponseFactory};
pub(crate) use sender::ResponseSender;
use texts::CStrings;
pub(crate) use texts::{BackendParameter, BackendParameterValue};

handles! {
    TRITONBACKEND_Request => BackendRequest, "request", tagged;
}

/// A request that a backend holds, or an empty shell between two requests.
#[derive(Default)]
#[repr(C)]
pub(crate) struct BackendRequest {
    tag: HandleTag<abi::TRITONBACKEND_Request>,
    /// The request. Read by the backend's calls, taken by the release (or the failed Execute); both
    /// are kept apart by the C contract.
    live: UnsafeCell<Option<OwnedRequest>>,
    source: Option<RequestSource>,
    inputs: Vec<BackendInput>,
    /// Names that are not the model's own.
    other_names: Vec<CString>,
    texts: CStrings,
    /// The states that the backend began, whose addresses it holds.
    states: Mutex<Vec<Arc<BackendState>>>,
    /// Uncontended for one-to-one models, whose calls all come from the core: a few locks per
    /// request.
    progress: Mutex<RequestProgress>,
    /// What the backend sees of a trace that is the server's own.
    trace: OnceLock<Box<TraceHandle>>,
    response_index: AtomicU64,
}

// SAFETY: `live` is reached under the C contract (see the field); the raw pointers in `inputs`
// point into the request, which lives in its claim at a stable address until released, and to
// strings of this backend request or the model's facts.
unsafe impl Send for BackendRequest {}
// SAFETY: as above.
unsafe impl Sync for BackendRequest {}

/// Where the request came from.
struct RequestSource {
    handle: RequestHandle,
    facts: Arc<ModelFacts>,
    /// Which instance executes it; see `host::execution`.
    instance: u64,
    /// Who asked, if not a shard.
    observer: Option<Arc<dyn RequestObserver>>,
}

/// How far the backend has come with the request.
#[derive(Default)]
struct RequestProgress {
    lifecycle: RequestLifecycle,
    /// What a one-to-one model sent, until it may leave.
    stored: Option<Result<Response, Error>>,
    response_count: u64,
    /// The backend reported the request's statistics, or the failure was counted for it.
    is_reported: bool,
    /// Memory of an earlier response, for the next one.
    spare: Option<Box<BackendResponse>>,
}

impl BackendRequest {
    /// Lends `live` to the backend of an instance. The backend request is a shell: new, or
    /// [`BackendRequest::reset`].
    pub(crate) fn lend(&mut self, live: OwnedRequest, facts: &Arc<ModelFacts>, instance: u64) {
        self.progress_mut().lifecycle.lend();
        if let Some(trace) = live.observer().and_then(|observer| observer.trace()) {
            let budget = live.handle().shared().features.budget.as_ref();
            trace.show_inputs(TraceActivity::TensorBackendInput, &live.inputs, budget);
        }
        self.fill(live, facts, instance);
    }

    /// Lets a batching strategy read `live` for the duration of one call; it may do nothing else
    /// with it.
    pub(crate) fn show(&mut self, live: OwnedRequest, facts: &Arc<ModelFacts>) {
        self.progress_mut().lifecycle.show();
        self.fill(live, facts, NO_INSTANCE);
    }

    fn fill(&mut self, live: OwnedRequest, facts: &Arc<ModelFacts>, instance: u64) {
        let handle = Arc::clone(live.handle());
        let observer = live.observer().cloned();
        let features = &handle.shared().features;
        let budget = features.budget.as_ref().unwrap_or(&facts.budget);
        let embedded = observer.as_deref().and_then(EmbeddedRequest::of);
        for input in &live.inputs {
            let name = match facts.input_name(&input.name) {
                Some(name) => name.as_ptr(),
                None => {
                    // The address of the name at its place: moving it afterwards would be a claim
                    // that nobody else reads it.
                    self.other_names.push(c_string(&input.name));
                    self.other_names
                        .last()
                        .map_or(ptr::null(), |name| name.as_ptr())
                }
            };
            let extra = embedded.and_then(|embedded| embedded.extra(&input.name));
            self.inputs
                .push(BackendInput::new(input, name, budget, extra));
        }
        *self.live.get_mut() = Some(live);
        self.source = Some(RequestSource {
            handle,
            facts: Arc::clone(facts),
            instance,
            observer,
        });
    }

    /// The request that was shown. The backend request is a shell again.
    pub(crate) fn take_back(&mut self) -> OwnedRequest {
        self.progress_mut().lifecycle.take_back();
        let live = self.live.get_mut().take();
        self.clear();
        live.expect("what is shown cannot be released")
    }

    /// Makes a shell again. Only the last holder can.
    pub(crate) fn reset(&mut self) {
        self.progress_mut().lifecycle.reset();
        self.clear();
    }

    fn clear(&mut self) {
        *self.live.get_mut() = None;
        self.source = None;
        self.inputs.clear();
        self.other_names.clear();
        self.texts = CStrings::default();
        self.states
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let progress = self.progress_mut();
        *progress = RequestProgress {
            spare: progress.spare.take(),
            ..RequestProgress::default()
        };
        self.trace = OnceLock::new();
        *self.response_index.get_mut() = 0;
    }

    fn source(&self) -> Result<&RequestSource, Error> {
        self.source
            .as_ref()
            .ok_or_else(|| LifecycleError::Empty.into())
    }

    pub(crate) fn facts(&self) -> Result<&Arc<ModelFacts>, Error> {
        Ok(&self.source()?.facts)
    }

    pub(crate) fn origin(&self) -> Result<&RequestContext, Error> {
        Ok(self.source()?.handle.shared())
    }

    /// The embedder's inference, if an embedder asked.
    pub(crate) fn embedded(&self) -> Option<&EmbeddedRequest> {
        self.source
            .as_ref()?
            .observer
            .as_deref()
            .and_then(EmbeddedRequest::of)
    }

    /// Where the request's stations are reported, until it is released.
    pub(crate) fn trace(&self) -> Option<Trace> {
        self.source.as_ref()?.observer.as_ref()?.trace()
    }

    /// The trace of the request for its backend; null if it is not traced. It lives as long as the
    /// request.
    pub(crate) fn trace_handle(&self) -> *mut abi::TRITONSERVER_InferenceTrace {
        let Some(trace) = self.trace() else {
            return ptr::null_mut();
        };
        handle_of(&trace).unwrap_or_else(|| {
            let handle = || Box::new(TraceHandle::of_server(&trace));
            as_handle(&**self.trace.get_or_init(handle))
        })
    }

    /// Whether the client asked to cancel, or is gone.
    pub(crate) fn is_cancelled(&self) -> Result<bool, Error> {
        Ok(self.source()?.handle.is_cancelled())
    }

    /// The request, until released.
    ///
    /// # Safety
    /// Nobody releases the request during `'a`.
    pub(crate) unsafe fn request<'a>(&self) -> Result<&'a Request, Error> {
        // SAFETY: only the release writes, which this function's contract excludes. The request
        // lives in its claim, so `'a` does not depend on the backend request.
        let live = unsafe { &*self.live.get() };
        let request: *const Request = &**live.as_ref().ok_or(LifecycleError::Released)?;
        // SAFETY: valid until released, which does not happen during `'a`.
        Ok(unsafe { &*request })
    }

    pub(crate) fn inputs(&self) -> &[BackendInput] {
        &self.inputs
    }

    pub(crate) fn id(&self) -> Result<*const c_char, Error> {
        let origin = self.origin()?;
        Ok(self.texts.id.get_or_init(|| c_string(&origin.id)).as_ptr())
    }

    /// The correlation id, if it is text.
    ///
    /// # Safety
    /// As [`BackendRequest::request`], for the duration of the call.
    pub(crate) unsafe fn correlation_text(&self) -> Result<Option<*const c_char>, Error> {
        // SAFETY: by this function's contract.
        match unsafe { &self.request()?.correlation_id } {
            CorrelationId::Text(text) => Ok(Some(
                self.texts
                    .correlation_id
                    .get_or_init(|| c_string(text))
                    .as_ptr(),
            )),
            CorrelationId::Unsigned(_) => Ok(None),
        }
    }

    /// The custom parameters.
    ///
    /// # Safety
    /// As [`BackendRequest::request`], for the duration of the call.
    pub(crate) unsafe fn parameters(&self) -> Result<&[BackendParameter], Error> {
        // SAFETY: by this function's contract.
        let request = unsafe { self.request()? };
        let source = || {
            request
                .parameters
                .iter()
                .map(BackendParameter::of)
                .collect()
        };
        Ok(self.texts.parameters.get_or_init(source))
    }

    /// Begins the next value of a state of the request's sequence. The handle is the backend's to
    /// use until it releases the request.
    ///
    /// # Errors
    /// INVALID_ARG without such a state.
    ///
    /// # Safety
    /// As [`BackendRequest::request`], for the duration of the call.
    pub(crate) unsafe fn state(
        &self,
        name: &str,
        data_type: u32,
        shape: &[i64],
    ) -> Result<*mut abi::TRITONBACKEND_State, Error> {
        self.progress().lifecycle.check_owned()?;
        // SAFETY: by this function's contract.
        let Some(states) = (unsafe { &self.request()?.states }) else {
            return Err(Error::invalid(format!(
                "unable to add state '{name}'. State configuration is missing for model '{}'.",
                self.origin()?.model.name
            )));
        };
        let number = state::lock(states).begin(name, data_type, shape)?;
        let mut source = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let known = source.iter().find(|state| state.number() == number);
        let state = known.cloned().unwrap_or_else(|| {
            let state = Arc::new(BackendState::new(states, number));
            source.push(Arc::clone(&state));
            state
        });
        Ok(as_handle(&*state))
    }

    /// Counts the next response of this request, from 0.
    pub(crate) fn next_response_index(&self) -> u64 {
        self.response_index.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that the backend reported the request's statistics.
    pub(crate) fn mark_reported(&self) {
        self.progress().is_reported = true;
    }

    /// Tells the log what the backend does wrong.
    fn log_misuse(&self, what: &str) {
        if let Some(RequestSource { handle, facts, .. }) = &self.source {
            let model = &handle.shared().model;
            facts.log_limiter.tell(
                monotonic_ns(),
                format_args!(
                    "backend '{}' {what} (model '{}', version {})",
                    facts.backend, model.name, model.version
                ),
            );
        }
    }

    fn progress(&self) -> MutexGuard<'_, RequestProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress_mut(&mut self) -> &mut RequestProgress {
        let progress = self.progress.get_mut();
        progress.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands for the instance of a request that is shown and not executed; instances are numbered from
/// 1.
const NO_INSTANCE: u64 = 0;
