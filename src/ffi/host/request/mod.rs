//! A request on loan to a backend: what `TRITONBACKEND_Request*` points to.
//!
//! A loan outlives the call that made it for as long as the backend, a response or a factory refers
//! to it. Parties and what they hold:
//!
//! - the backend, from Execute until RequestRelease: one `Arc` by way of the raw handle, and with
//!   it the request itself;
//! - each response and each response factory: a [`ResponseSender`], with which answers leave even
//!   after the request was released;
//! - the instance, while Execute runs: one `Arc`, so that a handle released meanwhile is never
//!   dangling. If it is the last one when Execute returns, the loan is used again for the next
//!   request, so a steady state allocates nothing here.
//!
//! A handle that the backend never releases keeps its loan for good: a leak, nothing worse.
//!
//! When answers leave: a one-to-one model's is kept until the request is released (then it departs
//! with its batch), unless a foreign thread sends it: then it leaves at once, as does every
//! response of a decoupled model and every response to an embedder, who counts them himself.

mod input;
mod sender;
mod texts;

use std::cell::UnsafeCell;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use conch_abi as abi;
use conch_engine::clock::monotonic_ns;
use conch_engine::flow_control::payment::Payment;
use conch_engine::model::stats::FailureReason;
use conch_engine::request::request_log;
use conch_engine::request::request_log::RequestState;
use conch_engine::request::trace::{Trace, TraceActivity};
use conch_engine::{
    CorrelationId, Credits, Delivery, Error, OwnedRequest, PendingResponses, Request,
    RequestContext, RequestHandle, RequestObserver, Response, cancel, reschedule,
};

use super::answer::BackendResponse;
use super::execution;
use super::facts::ModelFacts;
use super::state::{self, BackendState};
use crate::boundary::{HandleTag, as_handle, c_string, handles};
use crate::embed::{EmbeddedRequest, TraceHandle, handle_of};

pub(crate) use input::BackendInput;
pub(crate) use sender::ResponseSender;
use texts::CStrings;
pub(crate) use texts::{BackendParameter, BackendParameterValue};

handles! {
    TRITONBACKEND_Request => BackendRequest, "request", tagged;
}

/// A request on loan, or an empty shell between two loans.
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
    reply: Mutex<ResponseState>,
    /// What the backend sees of a trace that is the server's own.
    trace: OnceLock<Box<TraceHandle>>,
    sender_count: AtomicU32,
    response_index: AtomicU64,
}

// SAFETY: `live` is reached under the C contract (see the field); the raw pointers in `inputs`
// point into the request, which lives in its claim at a stable address until released, and to
// strings of this loan or the model's facts.
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

/// How far the answer has come.
#[derive(Default)]
struct ResponseState {
    is_released: bool,
    /// It was released to be run again: the answer comes through a later loan.
    is_rescheduled: bool,
    /// The final answer was sent by the backend or given for it: nothing more may follow.
    is_final: bool,
    /// What a one-to-one model sent, until it may leave.
    stored: Option<Result<Response, Error>>,
    response_count: u64,
    is_reported: bool,
    /// Memory of an earlier response, for the next one.
    spare: Option<Box<BackendResponse>>,
}

impl BackendRequest {
    /// Lends `live` out. The loan is a shell: new, or [`BackendRequest::reset`].
    pub(crate) fn lend(&mut self, live: OwnedRequest, facts: &Arc<ModelFacts>, instance: u64) {
        let handle = Arc::clone(live.handle());
        let observer = live.observer().cloned();
        let asked = observer.as_deref().and_then(EmbeddedRequest::of);
        if instance != SHOWN
            && let Some(trace) = observer.as_ref().and_then(|observer| observer.trace())
        {
            trace.show_inputs(TraceActivity::TensorBackendInput, &live.inputs);
        }
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
            let extra = asked.and_then(|asked| asked.extra(&input.name));
            self.inputs.push(BackendInput::new(input, name, extra));
        }
        *self.live.get_mut() = Some(live);
        self.source = Some(RequestSource {
            handle,
            facts: Arc::clone(facts),
            instance,
            observer,
        });
    }

    /// Lets a batching strategy read `live` for the duration of one call; it may do nothing else
    /// with it.
    pub(crate) fn show(&mut self, live: OwnedRequest, facts: &Arc<ModelFacts>) {
        self.lend(live, facts, SHOWN);
    }

    /// The request that was shown. The loan is a shell again.
    pub(crate) fn take_back(&mut self) -> OwnedRequest {
        let live = self.live.get_mut().take();
        self.reset();
        live.expect("what is shown cannot be released")
    }

    /// Refuses what only the backend that executes the request may do.
    ///
    /// # Errors
    /// INVALID_ARG while the request is only shown.
    pub(crate) fn check_owned(&self) -> Result<(), Error> {
        if self.source()?.instance == SHOWN {
            return Err(Error::invalid(
                "the request is not executing: a batching strategy may only read it",
            ));
        }
        Ok(())
    }

    /// Makes a shell again. Only the last holder can.
    pub(crate) fn reset(&mut self) {
        *self.live.get_mut() = None;
        self.source = None;
        self.inputs.clear();
        self.other_names.clear();
        self.texts = CStrings::default();
        self.states
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        let reply = self.reply.get_mut().unwrap_or_else(PoisonError::into_inner);
        *reply = ResponseState {
            spare: reply.spare.take(),
            ..ResponseState::default()
        };
        self.trace = OnceLock::new();
        *self.sender_count.get_mut() = 0;
        *self.response_index.get_mut() = 0;
    }

    fn source(&self) -> Result<&RequestSource, Error> {
        self.source.as_ref().ok_or_else(released)
    }

    pub(crate) fn facts(&self) -> Result<&Arc<ModelFacts>, Error> {
        Ok(&self.source()?.facts)
    }

    pub(crate) fn origin(&self) -> Result<&RequestContext, Error> {
        Ok(self.source()?.handle.shared())
    }

    /// The embedder who asked.
    pub(crate) fn asked(&self) -> Option<&EmbeddedRequest> {
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
    /// loan.
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
        // lives in its claim, so `'a` does not depend on the loan.
        let live = unsafe { &*self.live.get() };
        let request: *const Request = &**live.as_ref().ok_or_else(released)?;
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
        self.check_owned()?;
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

    /// Memory of an earlier response, if there is any.
    pub(crate) fn take_spare(&self) -> Option<Box<BackendResponse>> {
        self.reply().spare.take()
    }

    /// Notes that the backend reported the request's statistics.
    pub(crate) fn mark_reported(&self) {
        self.reply().is_reported = true;
    }

    /// The backend gives the request back. The caller drops the backend's `Arc` afterwards.
    ///
    /// # Errors
    /// INVALID_ARG if it did so before.
    pub(crate) fn release(&self) -> Result<(), Error> {
        self.check_owned()?;
        let mut reply = self.reply();
        if std::mem::replace(&mut reply.is_released, true) {
            drop(reply);
            self.complain("released a request twice");
            return Err(released());
        }
        // SAFETY: the backend gave up its use of the request with this call, and only the first
        // release gets here.
        let live = unsafe { (*self.live.get()).take() };
        let outcome = if reply.is_final {
            reply.stored.take()
        } else if self.sender_count.load(Ordering::Relaxed) == 0 {
            Some(Err(self.give_up(&mut reply, live.as_ref())))
        } else {
            // A response or a factory is still out: the answer comes through it.
            None
        };
        self.conclude(&reply);
        drop(reply);
        self.note_release(live.as_ref());
        // First the place in the model's queue and the inputs, then the answer: a client that
        // reacts to it finds them free.
        drop(live);
        if let Some(outcome) = outcome {
            self.leave(Some(outcome), true)?;
        }
        Ok(())
    }

    /// The backend gives the request back to be run again. One that nobody sent is over instead: it
    /// warms an instance up, or fills a row. The caller drops the backend's `Arc` afterwards.
    ///
    /// # Errors
    /// INVALID_ARG if it gave it back before, or sent its final response.
    pub(crate) fn reschedule(&self) -> Result<(), Error> {
        self.check_owned()?;
        let mut reply = self.reply();
        if reply.is_released {
            drop(reply);
            self.complain("released a request twice");
            return Err(released());
        }
        // SAFETY: as in `release`; it is put back if it stays with the backend.
        let live = unsafe { &mut *self.live.get() };
        if reply.is_final || live.is_none() {
            return Err(Error::invalid(
                "a request that has its final response cannot be rescheduled",
            ));
        }
        reply.is_released = true;
        reply.is_rescheduled = true;
        let live = live.take();
        drop(reply);
        if live.is_none_or(reschedule) {
            return Ok(());
        }
        let is_over = std::mem::replace(&mut self.reply().is_final, true);
        if is_over {
            return Ok(());
        }
        self.leave(None, true)
    }

    /// Answers with the error of a failed Execute, unless the backend gave the request back or
    /// answered it before it failed.
    pub(crate) fn recall(&self, error: &Error, pending: &mut PendingResponses) -> bool {
        let mut reply = self.reply();
        if std::mem::replace(&mut reply.is_released, true) {
            return false;
        }
        // SAFETY: ownership returned with the error, so the backend does not use the request any
        // more.
        let live = unsafe { (*self.live.get()).take() };
        // An answer that a foreign thread sent is gone already; one that is only stored gives way
        // to the error.
        let is_answered = reply.is_final && reply.stored.take().is_none();
        reply.is_final = true;
        let is_reported = std::mem::replace(&mut reply.is_reported, true);
        self.conclude(&reply);
        drop(reply);
        self.note_release(live.as_ref());
        if let (Ok(origin), Some(live)) = (self.origin(), &live) {
            if !is_reported {
                report_failure(origin, live);
            }
            if !is_answered {
                pending.push(origin, Some(Err(error.clone())), true);
            }
        }
        drop(live);
        true
    }

    /// Takes one answer from the backend: a response, an error, or flags alone.
    fn send(
        &self,
        outcome: Option<Result<Response, Error>>,
        is_final: bool,
        spare: Option<Box<BackendResponse>>,
    ) -> Result<(), Error> {
        let source = self.source()?;
        let leaves_at_once = source.facts.is_decoupled || source.observer.is_some();
        let credits = source.handle.shared().credits.as_ref();
        let mut paid = None;
        if let Some(credits) = credits
            && !is_final
            && let Some(outcome) = &outcome
        {
            // Before the lock, as it may wait.
            let bytes = cost_bytes(outcome);
            match credits.pay(bytes) {
                Payment::Made => paid = Some(bytes),
                Payment::Refused => {
                    // The backend can see it from now on; what it still sends is dropped.
                    cancel(&source.handle).deliver();
                    return Ok(());
                }
                Payment::Unwanted => return Ok(()),
            }
        }
        let outcome = match credits {
            Some(credits) if is_final && credits.is_overdrawn() => Some(Err(Credits::too_slow())),
            _ => outcome,
        };
        let mut reply = self.reply();
        if spare.is_some() {
            reply.spare = spare;
        }
        if reply.is_final {
            drop(reply);
            if let (Some(credits), Some(bytes)) = (credits, paid) {
                credits.refund(bytes);
            }
            self.complain("sent a response after the final one of its request");
            return Err(Error::invalid(
                "a response was sent after the final one of its request",
            ));
        }
        reply.is_final = is_final;
        self.conclude(&reply);
        reply.response_count += u64::from(outcome.is_some());
        if leaves_at_once {
            // Under the lock, so that responses of several threads arrive in the order in which
            // they were counted. The wake is not: it may lead to code of the receiver's.
            let origin = source.handle.shared();
            origin.completion.deliver(Delivery {
                slot: origin.slot,
                outcome,
                is_final,
            });
            drop(reply);
            origin.completion.wake();
            return Ok(());
        }
        let takes_first = source.handle.shared().takes_first;
        if outcome.is_some() && !(takes_first && reply.stored.is_some()) {
            reply.stored = outcome;
        }
        if !is_final {
            return Ok(());
        }
        if reply.response_count != 1 {
            self.complain("did not send exactly one response to a request");
        }
        if reply.response_count == 0 || (reply.response_count > 1 && !takes_first) {
            // Upstream's frontends say the same.
            reply.stored = Some(Err(Error::internal(format!(
                "expected a single response, got {}",
                reply.response_count
            ))));
        }
        let is_foreign = !execution::is_current(self.source()?.instance);
        if is_foreign || reply.is_released {
            let outcome = reply.stored.take();
            drop(reply);
            self.leave(outcome, true)?;
        }
        Ok(())
    }

    /// In the log.
    fn note_release(&self, live: Option<&OwnedRequest>) {
        if let (Ok(origin), Some(live)) = (self.origin(), live)
            && !live.is_null
        {
            request_log::note(&origin.id, RequestState::Executing, RequestState::Released);
        }
    }

    /// Ends the request's count among the live ones of its model, if it is over. Otherwise the last
    /// reference would; but there are backends that never delete a response factory.
    fn conclude(&self, reply: &ResponseState) {
        if reply.is_released
            && reply.is_final
            && self.sender_count.load(Ordering::Relaxed) > 0
            && let Ok(origin) = self.origin()
        {
            origin.model.free();
        }
    }

    /// Nobody is left who could answer.
    fn give_up(&self, reply: &mut ResponseState, live: Option<&OwnedRequest>) -> Error {
        reply.is_final = true;
        reply.stored = None;
        if let (Ok(origin), Some(live), false) = (self.origin(), live, reply.is_reported) {
            reply.is_reported = true;
            report_failure(origin, live);
        }
        self.complain("released a request without a final response");
        let backend = self
            .facts()
            .map(|facts| facts.backend.clone())
            .unwrap_or_default();
        Error::internal(format!(
            "backend '{backend}' released the request without a final response"
        ))
    }

    /// Sends an answer on its way: with the batch if this thread executes it, else at once.
    fn leave(&self, outcome: Option<Result<Response, Error>>, is_final: bool) -> Result<(), Error> {
        let source = self.source()?;
        let origin = source.handle.shared();
        if let Some(outcome) = execution::depart(source.instance, origin, outcome, is_final) {
            origin.completion.deliver(Delivery {
                slot: origin.slot,
                outcome,
                is_final,
            });
            origin.completion.wake();
        }
        Ok(())
    }

    /// Tells the log what the backend does wrong.
    fn complain(&self, what: &str) {
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

    fn reply(&self) -> MutexGuard<'_, ResponseState> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a response is paid for.
fn cost_bytes(outcome: &Result<Response, Error>) -> u64 {
    outcome.as_ref().map_or(0, Response::byte_size)
}

/// Stands for the instance of a request that is shown and not executed; instances are numbered from
/// 1.
const SHOWN: u64 = 0;

fn released() -> Error {
    Error::invalid("request was already released")
}

fn report_failure(origin: &RequestContext, request: &Request) {
    if request.is_null {
        return;
    }
    let duration_ns = monotonic_ns().saturating_sub(request.timestamps.request_start_ns);
    origin
        .model
        .statistics
        .report_failure(FailureReason::Backend, duration_ns);
}
