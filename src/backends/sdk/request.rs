//! Requests of a batch.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;

use crate::correlation::CorrelationId;
use crate::factory::{Factories, ResponseFactory};
use crate::input::{Input, borrow};
use crate::parameter::Parameter;
use crate::response::Response;
use crate::slot::{Outcome, Slot};
use crate::trace::{RequestTrace, TraceParent};
use crate::{Code, DataType, Error, State};

/// One request of the batch being executed. It can be used until Execute returns; the SDK releases
/// it then.
#[derive(Clone, Copy)]
pub struct Request<'b> {
    raw: NonNull<abi::TRITONBACKEND_Request>,
    pub(crate) slot: &'b Slot,
    factories: &'b Arc<Factories>,
}

impl<'b> Request<'b> {
    /// # Safety
    /// `raw` is a request that this execution owns during `'b`, used by this thread alone.
    pub(crate) unsafe fn new(
        raw: NonNull<abi::TRITONBACKEND_Request>,
        slot: &'b Slot,
        factories: &'b Arc<Factories>,
    ) -> Self {
        Request {
            raw,
            slot,
            factories,
        }
    }

    pub(crate) fn raw(self) -> *mut abi::TRITONBACKEND_Request {
        self.raw.as_ptr()
    }

    /// The client's id; empty if it gave none.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn id(self) -> Result<&'b CStr, Error> {
        let mut id: *const c_char = ptr::null();
        // SAFETY: the request is live; the returned text is NUL-terminated and lives as long as the
        // request.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestId(self.raw(), &raw mut id))?;
            Ok(borrow(id))
        }
    }

    /// The response that [`Response::keep`] kept, if there is one.
    pub fn take_kept(self) -> Option<Response<'b>> {
        Response::resume(self.slot)
    }

    /// Whether the client gave up. Work for such a request may stop and be answered with a
    /// CANCELLED error.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn is_cancelled(self) -> Result<bool, Error> {
        let mut is_cancelled = false;
        // SAFETY: the request is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestIsCancelled(
                self.raw(),
                &raw mut is_cancelled,
            ))?;
        }
        Ok(is_cancelled)
    }

    /// Sequence flags of the request, a mask of `TRITONSERVER_REQUEST_FLAG_*`.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn flags(self) -> Result<u32, Error> {
        let mut flags = 0;
        // SAFETY: the request is live, the result writable.
        unsafe { Error::check(abi::TRITONBACKEND_RequestFlags(self.raw(), &raw mut flags))? };
        Ok(flags)
    }

    /// The numeric correlation id of the request's sequence.
    ///
    /// # Errors
    /// `InvalidArgument` if the id is text.
    pub fn correlation_id(self) -> Result<u64, Error> {
        let mut id = 0;
        // SAFETY: the request is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestCorrelationId(
                self.raw(),
                &raw mut id,
            ))?;
        }
        Ok(id)
    }

    /// The correlation id of the request's sequence, number or text.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn correlation(self) -> Result<CorrelationId<'b>, Error> {
        match self.correlation_id() {
            Ok(number) => return Ok(CorrelationId::Number(number)),
            Err(error) if error.code() != Code::InvalidArgument => return Err(error),
            Err(_) => {}
        }
        let mut id: *const c_char = ptr::null();
        // SAFETY: the request is live, the result writable; the text is NUL-terminated and lives as
        // long as the request.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestCorrelationIdString(
                self.raw(),
                &raw mut id,
            ))?;
            Ok(CorrelationId::Text(borrow(id)))
        }
    }

    /// How long the client lets the request wait in a queue, in microseconds; 0 for no limit of its
    /// own.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn timeout_us(self) -> Result<u64, Error> {
        let mut timeout_us = 0;
        // SAFETY: the request is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
                self.raw(),
                &raw mut timeout_us,
            ))?;
        }
        Ok(timeout_us)
    }

    /// # Errors
    /// Whatever the server reports.
    pub fn parameter_count(self) -> Result<u32, Error> {
        let mut count = 0;
        // SAFETY: the request is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestParameterCount(
                self.raw(),
                &raw mut count,
            ))?;
        }
        Ok(count)
    }

    /// Name and value of a custom parameter, by index.
    ///
    /// # Errors
    /// Whatever the server reports, or `Unsupported` for a kind of value that this SDK does not
    /// know.
    pub fn parameter(self, index: u32) -> Result<(&'b CStr, Parameter<'b>), Error> {
        let mut key: *const c_char = ptr::null();
        let mut kind = 0;
        let mut value: *const c_void = ptr::null();
        // SAFETY: the request is live, the results writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestParameter(
                self.raw(),
                index,
                &raw mut key,
                &raw mut kind,
                &raw mut value,
            ))?;
        }
        // SAFETY: the server points at a value of the kind it names, which lives as long as the
        // request, and so does the name.
        unsafe { Ok((borrow(key), Parameter::read(kind, value)?)) }
    }

    /// The value of a custom parameter, by name.
    ///
    /// # Errors
    /// As [`parameter`](Self::parameter).
    pub fn find_parameter(self, name: &CStr) -> Result<Option<Parameter<'b>>, Error> {
        for index in 0..self.parameter_count()? {
            let (key, value) = self.parameter(index)?;
            if key == name {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// # Errors
    /// Whatever the server reports.
    pub fn input_count(self) -> Result<u32, Error> {
        let mut count = 0;
        // SAFETY: the request is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestInputCount(
                self.raw(),
                &raw mut count,
            ))?;
        }
        Ok(count)
    }

    /// An input of the request by index, in no particular order.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn input_at(self, index: u32) -> Result<Input<'b>, Error> {
        let mut input = ptr::null_mut();
        // SAFETY: the request is live, the result writable; the input lives as long as the request.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestInputByIndex(
                self.raw(),
                index,
                &raw mut input,
            ))?;
            Input::new(input)
        }
    }

    /// An input of the request by name.
    ///
    /// # Errors
    /// `InvalidArgument` (in the server's words) if the request has no such input.
    pub fn input(self, name: &CStr) -> Result<Input<'b>, Error> {
        let mut input = ptr::null_mut();
        // SAFETY: as above; the name is NUL-terminated.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestInput(
                self.raw(),
                name.as_ptr(),
                &raw mut input,
            ))?;
            Input::new(input)
        }
    }

    /// How many outputs the client wants; the others need not be made.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn output_count(self) -> Result<u32, Error> {
        let mut count = 0;
        // SAFETY: the request is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestOutputCount(
                self.raw(),
                &raw mut count,
            ))?;
        }
        Ok(count)
    }

    /// The name of a wanted output.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn output_name(self, index: u32) -> Result<&'b CStr, Error> {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the request is live; the name is NUL-terminated and lives as long as the request.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestOutputName(
                self.raw(),
                index,
                &raw mut name,
            ))?;
            Ok(borrow(name))
        }
    }

    /// The request's trace, if it is traced.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn trace(self) -> Result<Option<RequestTrace<'b>>, Error> {
        let mut trace = ptr::null_mut();
        // SAFETY: the request is live, the result writable; the trace lives as long as the request.
        unsafe {
            Error::check(abi::TRITONBACKEND_RequestTrace(self.raw(), &raw mut trace))?;
            Ok(RequestTrace::new(trace))
        }
    }

    /// Whether it is traced.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn is_traced(self) -> Result<bool, Error> {
        Ok(self.trace()?.is_some())
    }

    /// The context of the client's own tracing: see [`RequestTrace::context`]. Empty if the request
    /// is not traced.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn trace_context(self) -> Result<String, Error> {
        match self.trace()? {
            Some(trace) => trace.context(),
            None => Ok(String::new()),
        }
    }

    /// The same for other threads, which may use it while the request is being executed.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn trace_parent(self) -> Result<Option<TraceParent>, Error> {
        let Some(trace) = self.trace()? else {
            return Ok(None);
        };
        // SAFETY: the batch ends what its slots have before it releases the requests.
        let new = || unsafe { TraceParent::new(trace) };
        Ok(Some(self.slot.trace_parent.get_or_init(new).clone()))
    }

    /// Adds an activity of the backend's own to the request's trace, as of now. Nothing happens if
    /// it is not traced.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn report_activity(self, name: &CStr) -> Result<(), Error> {
        match self.trace()? {
            Some(trace) => trace.report_activity(name),
            None => Ok(()),
        }
    }

    /// As [`report_activity`](Self::report_activity), as of `at_ns` on the clock of
    /// [`clock`](crate::clock).
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn report_activity_at(self, name: &CStr, at_ns: u64) -> Result<(), Error> {
        match self.trace()? {
            Some(trace) => trace.report_activity_at(name, at_ns),
            None => Ok(()),
        }
    }

    /// Whether the client wants this output.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn wants(self, output: &CStr) -> Result<bool, Error> {
        for index in 0..self.output_count()? {
            if self.output_name(index)? == output {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Begins a response. A one-to-one model makes exactly one; dropping it unsent leaves the
    /// request unanswered, and the SDK then answers with an error.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn respond(self) -> Result<Response<'b>, Error> {
        let mut response = ptr::null_mut();
        // SAFETY: the request is live, the result writable; the new response is owned by the
        // wrapper.
        unsafe {
            Error::check(abi::TRITONBACKEND_ResponseNew(
                &raw mut response,
                self.raw(),
            ))?;
            Response::new(response, self.slot)
        }
    }

    /// Leaves the answers to a factory, which may send them from any thread, also after
    /// [`Instance::execute`](crate::Instance::execute) returned and the request is released: copy
    /// what is needed of its inputs. The SDK answers nothing for this request any more.
    ///
    /// # Errors
    /// `Internal` if the request was answered or has a factory already; otherwise whatever the
    /// server reports.
    pub fn response_factory(self) -> Result<ResponseFactory, Error> {
        if self.slot.outcome.get() != Outcome::Open {
            return Err(Error::internal(
                "a response factory for a request that was answered",
            ));
        }
        // SAFETY: the request is live.
        let factory = unsafe { ResponseFactory::new(self.raw(), self.factories)? };
        self.slot.outcome.set(Outcome::HandedOver);
        Ok(factory)
    }

    /// A factory beside the direct answer, for backends that learn only during the execution which
    /// of the two answers. Until [`hand_over`](Self::hand_over) the request counts as not answered;
    /// [`ResponseFactory::discard`] the factory before it is answered here.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn spare_factory(self) -> Result<ResponseFactory, Error> {
        // SAFETY: the request is live.
        unsafe { ResponseFactory::new(self.raw(), self.factories) }
    }

    /// Leaves the answers to the spare factory, which has sent some, or will. A request already
    /// answered for good stays as it is.
    pub fn hand_over(self) {
        if self.slot.outcome.get() == Outcome::Open {
            self.slot.outcome.set(Outcome::HandedOver);
        }
    }

    /// Has the request executed once more, when its execution is over: for models with iterative
    /// sequences. Responses with more to come may be sent meanwhile by a decoupled model.
    ///
    /// # Errors
    /// `Internal` if the request was answered or has a factory. That its model is not configured
    /// for this is found when the execution ends; the request is then answered with the server's
    /// error.
    pub fn run_again(self) -> Result<(), Error> {
        if self.slot.outcome.get() != Outcome::Open {
            return Err(Error::internal(
                "a request that was answered cannot be executed again",
            ));
        }
        self.slot.outcome.set(Outcome::Again);
        Ok(())
    }

    /// Answers with an error. A request already answered for good stays as it is.
    pub fn fail(self, error: Error) {
        if self.slot.outcome.get() != Outcome::Open {
            crate::error!("error after the final response: {error}");
            return;
        }
        match self.respond() {
            Ok(response) => response.fail(error),
            // No response can be made at all; the client sees whatever the server does with a
            // request released unanswered.
            Err(refused) => {
                self.slot.outcome.set(Outcome::Failed);
                crate::error!("cannot answer a request with '{error}': {refused}");
            }
        }
    }

    /// Begins the next value of an implicit state of the request's sequence.
    ///
    /// # Errors
    /// `InvalidArgument` (in the server's words) if the model has no such state.
    pub fn state(
        self,
        name: &CStr,
        data_type: DataType,
        shape: &[i64],
    ) -> Result<State<'b>, Error> {
        // SAFETY: the request is live during `'b` by the contract of `new`.
        unsafe { State::new(self.raw(), name, data_type, shape) }
    }
}
