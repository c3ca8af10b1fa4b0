//! Traces of requests, and of the calls that a backend makes on behalf of one.
//!
//! The trace of a request is the server's and lives as long as the request. A child trace is ours
//! until a call hands it to the server, which frees it when the called model released its request.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use conch_abi as abi;

use crate::Error;
use crate::clock::monotonic_ns;
use crate::symbol::ServerFunction;

type RawTrace = *mut abi::TRITONSERVER_InferenceTrace;
type ReadContext =
    unsafe extern "C" fn(RawTrace, *mut *const c_char) -> *mut abi::TRITONSERVER_Error;
type SpawnChild = unsafe extern "C" fn(RawTrace, *mut RawTrace) -> *mut abi::TRITONSERVER_Error;

// SAFETY: the type is that of the header.
static READ_CONTEXT: ServerFunction<ReadContext> =
    unsafe { ServerFunction::new(c"TRITONSERVER_InferenceTraceContext") };
// SAFETY: the type is that of the header.
static SPAWN_CHILD: ServerFunction<SpawnChild> =
    unsafe { ServerFunction::new(c"TRITONSERVER_InferenceTraceSpawnChildTrace") };

/// The trace of a request that is traced. Any thread may use it while the request is live.
#[derive(Clone, Copy, Debug)]
pub struct RequestTrace<'b> {
    raw: NonNull<abi::TRITONSERVER_InferenceTrace>,
    request: PhantomData<&'b ()>,
}

// SAFETY: the server lets any thread report to a trace, read it and make children of it, several at
// once.
unsafe impl Send for RequestTrace<'_> {}
// SAFETY: as above.
unsafe impl Sync for RequestTrace<'_> {}

impl RequestTrace<'_> {
    /// None for null.
    ///
    /// # Safety
    /// `raw` is null or a trace that is live during the wrapper's life.
    pub(crate) unsafe fn new(raw: RawTrace) -> Option<Self> {
        NonNull::new(raw).map(|raw| RequestTrace {
            raw,
            request: PhantomData,
        })
    }

    /// Adds an activity of the backend's own, as of now.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn report_activity(self, name: &CStr) -> Result<(), Error> {
        self.report_activity_at(name, monotonic_ns())
    }

    /// Adds an activity of the backend's own, as of `at_ns` on the clock of
    /// [`clock`](crate::clock).
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn report_activity_at(self, name: &CStr, at_ns: u64) -> Result<(), Error> {
        // SAFETY: the trace is live, and the name is copied.
        unsafe {
            Error::check(abi::TRITONSERVER_InferenceTraceReportActivity(
                self.raw.as_ptr(),
                at_ns,
                name.as_ptr(),
            ))
        }
    }

    /// The context of the client's own tracing: for OpenTelemetry a JSON object of the headers that
    /// propagate it. Empty if there is none, and in an older server, which cannot tell.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn context(self) -> Result<String, Error> {
        let Some(read) = READ_CONTEXT.find() else {
            return Ok(String::new());
        };
        let mut context: *const c_char = ptr::null();
        // SAFETY: the trace is live, the result writable.
        unsafe { Error::check(read(self.raw.as_ptr(), &raw mut context))? };
        if context.is_null() {
            return Ok(String::new());
        }
        // SAFETY: NUL-terminated, and there until the trace is given another context, which is its
        // maker's to do.
        let context = unsafe { CStr::from_ptr(context) };
        Ok(context.to_string_lossy().into_owned())
    }

    /// A trace for a request that is made on behalf of this one.
    ///
    /// # Errors
    /// `Unsupported` in an older server, otherwise whatever the server reports.
    pub(crate) fn spawn_child(self) -> Result<ChildTrace, Error> {
        let spawn = SPAWN_CHILD.require()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the trace is live, the result writable; the child is owned by the wrapper.
        unsafe { Error::check(spawn(self.raw.as_ptr(), &raw mut raw))? };
        NonNull::new(raw)
            .map(ChildTrace)
            .ok_or_else(|| Error::internal("server gave a null child trace"))
    }
}

/// The trace of a request, for threads that make calls on its behalf while it is being executed.
/// Once the execution is over it is of no effect.
#[derive(Clone, Debug)]
pub struct TraceParent {
    /// None after the execution.
    raw: Arc<Mutex<Option<RawParent>>>,
}

#[derive(Clone, Copy, Debug)]
struct RawParent(NonNull<abi::TRITONSERVER_InferenceTrace>);

// SAFETY: as of `RequestTrace`.
unsafe impl Send for RawParent {}

impl TraceParent {
    /// # Safety
    /// The request is live until [`end`](Self::end) was called.
    pub(crate) unsafe fn new(trace: RequestTrace<'_>) -> TraceParent {
        TraceParent {
            raw: Arc::new(Mutex::new(Some(RawParent(trace.raw)))),
        }
    }

    /// Waits for whoever makes a child at this moment; later ones get none.
    pub(crate) fn end(&self) {
        *self.raw.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// # Errors
    /// As [`RequestTrace::spawn_child`].
    pub(crate) fn spawn_child(&self) -> Result<Option<ChildTrace>, Error> {
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(RawParent(raw)) = *raw else {
            return Ok(None);
        };
        let parent = RequestTrace {
            raw,
            request: PhantomData,
        };
        // The lock keeps the trace live: its request is released only after `end`.
        parent.spawn_child().map(Some)
    }
}

/// A trace that no request carries yet.
#[derive(Debug)]
pub(crate) struct ChildTrace(NonNull<abi::TRITONSERVER_InferenceTrace>);

// SAFETY: the server lets any thread use a trace.
unsafe impl Send for ChildTrace {}
// SAFETY: a shared one is of no use.
unsafe impl Sync for ChildTrace {}

impl ChildTrace {
    /// The trace, for a request that carries it from now on.
    pub(crate) fn into_raw(self) -> RawTrace {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }
}

impl Drop for ChildTrace {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody afterwards.
        let deleted =
            unsafe { Error::check(abi::TRITONSERVER_InferenceTraceDelete(self.0.as_ptr())) };
        if let Err(error) = deleted {
            crate::error!("failed to delete a trace: {error}");
        }
    }
}
