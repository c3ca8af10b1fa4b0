//! Traces of the C API: what `TRITONSERVER_InferenceTrace*` points to.
//!
//! A trace belongs to whoever made it until `ServerInferAsync` takes it, and again from its release
//! callback on.

use std::any::Any;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use conch_abi as abi;
use conch_engine::ModelVersion;
use conch_engine::request::trace::{Trace, TraceActivity, TraceSink, TracedTensor, next_id};
use conch_log as log;

use super::callbacks::{
    conch_guard_activity, conch_guard_tensor_activity, conch_guard_trace_release, log_failure,
    on_exception,
};
use crate::boundary::{HandleTag, as_handle, c_string, handles, into_handle, take};
use crate::objects::BufferPlace;

handles! {
    TRITONSERVER_InferenceTrace => TraceHandle, "trace", tagged;
}

/// The functions of a trace's maker.
#[derive(Clone, Copy)]
pub(crate) struct TraceFunctions {
    pub(crate) activity: abi::TRITONSERVER_InferenceTraceActivityFn_t,
    pub(crate) tensor_activity: abi::TRITONSERVER_InferenceTraceTensorActivityFn_t,
    pub(crate) release: abi::TRITONSERVER_InferenceTraceReleaseFn_t,
    pub(crate) userp: *mut c_void,
}

// SAFETY: the functions may be called from any thread; the pointer is passed back, never followed.
unsafe impl Send for TraceFunctions {}
// SAFETY: as above.
unsafe impl Sync for TraceFunctions {}

/// The target of `TRITONSERVER_InferenceTrace*`.
#[repr(C)]
pub(crate) struct TraceHandle {
    tag: HandleTag<abi::TRITONSERVER_InferenceTrace>,
    level: u32,
    pub(crate) id: u64,
    pub(crate) parent_id: u64,
    functions: TraceFunctions,
    subject: Mutex<EmbeddedTraceSubject>,
    /// What it stands for, if the request is traced by the server itself: then `functions` are
    /// none.
    inner: OnceLock<Trace>,
    /// Whose child it is, until it is known what it is about.
    origin: Option<Trace>,
}

/// What the trace is about. Addresses of the texts are handed out: they hold until the text is set
/// again.
#[derive(Default)]
pub(crate) struct EmbeddedTraceSubject {
    pub(crate) model_name: CString,
    pub(crate) model_version: i64,
    pub(crate) request_id: CString,
    pub(crate) context: CString,
}

impl TraceHandle {
    pub(crate) fn new(level: u32, parent_id: u64, functions: TraceFunctions) -> TraceHandle {
        let deprecated = abi::TRITONSERVER_TRACE_LEVEL_MIN | abi::TRITONSERVER_TRACE_LEVEL_MAX;
        let level = if level & deprecated == 0 {
            level
        } else {
            (level & !deprecated) | abi::TRITONSERVER_TRACE_LEVEL_TIMESTAMPS
        };
        TraceHandle {
            tag: HandleTag::new(),
            level,
            id: next_id(),
            parent_id,
            functions,
            subject: Mutex::default(),
            inner: OnceLock::new(),
            origin: None,
        }
    }

    /// What a backend gets to see of a trace that is the server's own.
    pub(crate) fn of_server(trace: &Trace) -> TraceHandle {
        let mut level = abi::TRITONSERVER_TRACE_LEVEL_TIMESTAMPS;
        if trace.sink().wants_tensors() {
            level |= abi::TRITONSERVER_TRACE_LEVEL_TENSORS;
        }
        let functions = TraceFunctions {
            activity: None,
            tensor_activity: None,
            release: None,
            userp: std::ptr::null_mut(),
        };
        let handle = TraceHandle {
            id: trace.sink().id(),
            inner: OnceLock::from(trace.clone()),
            ..TraceHandle::new(level, 0, functions)
        };
        handle.note_context(trace);
        handle
    }

    /// A trace of what is done on behalf of this one's request.
    pub(crate) fn spawn(&self) -> TraceHandle {
        TraceHandle {
            origin: self.inner.get().cloned(),
            ..TraceHandle::new(self.level, self.id, self.functions)
        }
    }

    /// Says what a trace is about that was not when it was made.
    pub(crate) fn begin(&self, model: &Arc<ModelVersion>, request_id: &CStr) {
        {
            let mut subject = self.subject();
            subject.model_name = c_string(&model.name);
            subject.model_version = model.version;
            subject.request_id = request_id.to_owned();
        }
        if let Some(origin) = &self.origin
            && let Some(inner) =
                origin
                    .sink()
                    .spawn(&model.name, model.version, &request_id.to_string_lossy())
        {
            // A trace that was used before goes on as what it was.
            if self.inner.set(inner.clone()).is_ok() {
                self.note_context(&inner);
            }
        }
    }

    /// Keeps what carries `trace` on, for backends to read.
    fn note_context(&self, trace: &Trace) {
        if let Some(context) = trace.sink().context() {
            self.subject().context = c_string(&context);
        }
    }

    /// Whether it is the trace of a backend's request, which is not the backend's to give away.
    fn is_lent(&self) -> bool {
        self.origin.is_none() && self.inner.get().is_some()
    }

    pub(crate) fn subject(&self) -> MutexGuard<'_, EmbeddedTraceSubject> {
        self.subject.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_times(&self) -> bool {
        self.level & abi::TRITONSERVER_TRACE_LEVEL_TIMESTAMPS != 0
    }

    fn report(&self, activity: u32, timestamp_ns: u64) {
        if !self.has_times() || self.functions.activity.is_none() {
            return;
        }
        // SAFETY: the maker's own function with its own pointer, and this trace's handle.
        unsafe {
            let error = conch_guard_activity(
                on_exception,
                self.functions.activity,
                as_handle(self),
                activity,
                timestamp_ns,
                self.functions.userp,
            );
            log_failure(error, "a trace callback failed");
        }
    }

    /// An activity with a name of its own, which joins the context: a JSON object of names by time,
    /// as upstream keeps them.
    pub(crate) fn report_custom(&self, timestamp_ns: u64, name: &CStr) {
        if let Some(inner) = self.inner.get() {
            inner.sink().reported(&name.to_string_lossy(), timestamp_ns);
            return;
        }
        if !self.has_times() {
            return;
        }
        let mut subject = self.subject();
        let context = subject.context.to_string_lossy();
        let mut object = if context.is_empty() {
            serde_json::Map::new()
        } else {
            serde_json::from_str(&context).unwrap_or_else(|cause| {
                log::error!("Error parsing trace context: {cause}");
                serde_json::Map::new()
            })
        };
        object.insert(
            timestamp_ns.to_string(),
            name.to_string_lossy().into_owned().into(),
        );
        subject.context = c_string(&serde_json::Value::Object(object).to_string());
        drop(subject);
        self.report(abi::TRITONSERVER_TRACE_CUSTOM_ACTIVITY, timestamp_ns);
    }
}

/// A trace that a request carries; goes back to its maker on drop.
pub(super) struct CarriedTrace {
    handle: *mut abi::TRITONSERVER_InferenceTrace,
    /// The request was refused, and the trace stayed with its maker.
    is_returned: AtomicBool,
}

// SAFETY: the handle is only used through shared references, whose target is `Sync`, until it is
// given back once.
unsafe impl Send for CarriedTrace {}
// SAFETY: as above.
unsafe impl Sync for CarriedTrace {}

impl CarriedTrace {
    /// Takes a trace over, or none.
    ///
    /// # Safety
    /// `handle` is null or a live trace that belongs to nobody else.
    pub(super) unsafe fn carry(
        handle: *mut abi::TRITONSERVER_InferenceTrace,
    ) -> Option<Arc<CarriedTrace>> {
        if handle.is_null() {
            return None;
        }
        let carried = Arc::new(CarriedTrace {
            handle,
            is_returned: AtomicBool::new(false),
        });
        if carried.trace().is_lent() {
            carried.return_to_maker();
            return None;
        }
        Some(carried)
    }

    pub(super) fn trace(&self) -> &TraceHandle {
        // SAFETY: a live trace until given back, which is when this is dropped.
        unsafe { &*self.handle.cast::<TraceHandle>() }
    }

    /// Leaves the trace to its maker without a call.
    pub(super) fn return_to_maker(&self) {
        self.is_returned.store(true, Ordering::Relaxed);
    }
}

impl Drop for CarriedTrace {
    fn drop(&mut self) {
        if *self.is_returned.get_mut() {
            return;
        }
        if self.trace().origin.is_some() {
            // SAFETY: made for a backend, which gave it to the request: nobody else has it.
            drop(unsafe { take::<abi::TRITONSERVER_InferenceTrace>(self.handle) });
            return;
        }
        let functions = self.trace().functions;
        // SAFETY: the maker's own function with its own pointer; the trace is the maker's again and
        // not used here.
        unsafe {
            let error = conch_guard_trace_release(
                on_exception,
                functions.release,
                self.handle,
                functions.userp,
            );
            log_failure(error, "a trace release callback failed");
        }
    }
}

impl TraceSink for CarriedTrace {
    fn reached(&self, activity: TraceActivity, timestamp_ns: u64) {
        match self.trace().inner.get() {
            Some(inner) => inner.reach(activity, timestamp_ns),
            None => self.trace().report(activity as u32, timestamp_ns),
        }
    }

    fn reported(&self, name: &str, timestamp_ns: u64) {
        self.trace().report_custom(timestamp_ns, &c_string(name));
    }

    fn id(&self) -> u64 {
        self.trace().id
    }

    fn spawn(&self, model: &Arc<str>, version: i64, request_id: &str) -> Option<Trace> {
        if let Some(inner) = self.trace().inner.get() {
            return inner.sink().spawn(model, version, request_id);
        }
        let child = self.trace().spawn();
        {
            let mut subject = child.subject();
            subject.model_name = c_string(model);
            subject.model_version = version;
            subject.request_id = c_string(request_id);
        }
        let handle = into_handle(Box::new(child));
        // SAFETY: made just now, for this carrier alone; its maker frees it when it is released.
        let carried = unsafe { CarriedTrace::carry(handle) }?;
        Some(Trace::new(carried))
    }

    fn wants_tensors(&self) -> bool {
        let trace = self.trace();
        if let Some(inner) = trace.inner.get() {
            return inner.sink().wants_tensors();
        }
        trace.level & abi::TRITONSERVER_TRACE_LEVEL_TENSORS != 0
            && trace.functions.tensor_activity.is_some()
    }

    fn showed(&self, activity: TraceActivity, tensor: &TracedTensor<'_>) {
        let trace = self.trace();
        if let Some(inner) = trace.inner.get() {
            inner.sink().showed(activity, tensor);
            return;
        }
        let name = c_string(tensor.name);
        let attributes = BufferPlace::of_view(tensor.data);
        // SAFETY: the maker's own function with its own pointer; name, shape and bytes outlive the
        // call.
        unsafe {
            let error = conch_guard_tensor_activity(
                on_exception,
                trace.functions.tensor_activity,
                self.handle,
                activity as u32,
                name.as_ptr(),
                tensor.data_type.number(),
                tensor.data.as_ptr().cast(),
                tensor.data.len(),
                tensor.shape.as_ptr(),
                // Ranks fit 64 bits.
                tensor.shape.len() as u64,
                attributes.memory_type,
                attributes.memory_type_id,
                trace.functions.userp,
            );
            log_failure(error, "a trace callback failed");
        }
    }
}

/// The C API's handle of a trace, if it came through the C API.
pub(crate) fn handle_of(trace: &Trace) -> Option<*mut abi::TRITONSERVER_InferenceTrace> {
    let sink: &dyn Any = &**trace.sink();
    sink.downcast_ref::<CarriedTrace>()
        .map(|carried| carried.handle)
}
