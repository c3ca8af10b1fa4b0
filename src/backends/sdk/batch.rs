//! The requests of one execution: who was answered, and what the statistics say.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;

use crate::clock::monotonic_ns;
use crate::factory::Factories;
use crate::slot::{Outcome, Slot};
use crate::{Error, Request};

/// Requests that one call executes together. Answer each through [`Request::respond`] or
/// [`Request::fail`], or later through [`Request::response_factory`]; the SDK reports the
/// statistics and releases them when [`Instance::execute`](crate::Instance::execute) returns.
///
/// If that returns an error (or panics) before any response was sent or factory made, the server
/// keeps all requests and answers each with the error. Afterwards the error goes to those not
/// answered yet.
pub struct Batch<'b> {
    instance: *mut abi::TRITONBACKEND_ModelInstance,
    requests: &'b [NonNull<abi::TRITONBACKEND_Request>],
    slots: &'b [Slot],
    max_batch_size: i64,
    is_decoupled: bool,
    exec_start_ns: u64,
    compute_start_ns: Cell<u64>,
    compute_end_ns: Cell<u64>,
    factories: &'b Arc<Factories>,
    exclusive: PhantomData<*mut ()>,
}

impl<'b> Batch<'b> {
    /// # Safety
    /// The instance is live and the requests are owned by this execution and used by this thread
    /// alone during `'b`; `slots` has as many entries, all fresh, or as an execution of the same
    /// requests left them that is open. `factories` are those of the instance.
    pub(crate) unsafe fn new(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        requests: &'b [NonNull<abi::TRITONBACKEND_Request>],
        slots: &'b [Slot],
        max_batch_size: i64,
        is_decoupled: bool,
        start: ExecutionStart,
        factories: &'b Arc<Factories>,
    ) -> Self {
        Batch {
            instance,
            requests,
            slots,
            max_batch_size,
            is_decoupled,
            exec_start_ns: start.exec_ns,
            compute_start_ns: Cell::new(start.compute_ns),
            compute_end_ns: Cell::new(0),
            factories,
            exclusive: PhantomData,
        }
    }

    /// Requests in the batch; at least one.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The requests, in the order in which the scheduler chose them.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request<'_>> {
        self.requests.iter().zip(self.slots).map(|(&raw, slot)| {
            // SAFETY: live and owned by this execution, by the contract of `new`; the wrapper
            // cannot outlive the batch.
            unsafe { Request::new(raw, slot, self.factories) }
        })
    }

    pub fn max_batch_size(&self) -> i64 {
        self.max_batch_size
    }

    /// Whether several responses per request are allowed.
    pub fn is_decoupled(&self) -> bool {
        self.is_decoupled
    }

    /// Rows of a request: the first dimension of its first input if the model batches, else 1.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn rows_of(&self, request: Request<'_>) -> Result<usize, Error> {
        if self.max_batch_size <= 0 {
            return Ok(1);
        }
        let input = request.input_at(0)?;
        let rows = input.shape().first().copied().unwrap_or(1);
        usize::try_from(rows).map_err(|_| Error::internal("negative batch dimension"))
    }

    /// What an execution that is left open goes on with.
    pub(crate) fn open(self) -> OpenBatch {
        OpenBatch {
            requests: self.requests.to_vec(),
            start: self.start(),
        }
    }

    /// Marks the end of input gathering and the start of computation.
    pub fn begin_compute(&self) {
        self.compute_start_ns.set(monotonic_ns());
    }

    /// Marks the end of computation and the start of output scattering.
    pub fn end_compute(&self) {
        self.compute_end_ns.set(monotonic_ns());
    }

    /// When computation started and ended, on the clock of [`clock`](crate::clock): of a batch
    /// whose work ran on a device, as its events tell.
    pub fn set_compute_times(&self, start_ns: u64, end_ns: u64) {
        self.compute_start_ns.set(start_ns);
        self.compute_end_ns.set(end_ns);
    }

    /// As far as its times are known.
    pub(crate) fn start(&self) -> ExecutionStart {
        ExecutionStart {
            exec_ns: self.exec_start_ns,
            compute_ns: self.compute_start_ns.get(),
        }
    }

    /// Answers what is unanswered, reports statistics and releases every request; or gives
    /// everything back to the server, as the returned error object tells it.
    pub(crate) fn finish(self, result: Result<(), Error>) -> *mut abi::TRITONSERVER_Error {
        let is_untouched = self
            .slots
            .iter()
            .all(|slot| slot.outcome.get() == Outcome::Open && !slot.has_partial.get());
        match result {
            Err(error) if is_untouched => {
                self.end_traces();
                error.into_raw()
            }
            result => {
                self.finish_detached(result);
                ptr::null_mut()
            }
        }
    }

    /// Answers what is unanswered, reports statistics and releases every request.
    pub(crate) fn finish_detached(self, result: Result<(), Error>) {
        self.end_traces();
        self.answer_rest(result.err());

        let exec_end_ns = monotonic_ns();
        let stamps = Stamps::ordered(
            self.exec_start_ns,
            self.compute_start_ns.get(),
            self.compute_end_ns.get(),
            exec_end_ns,
        );
        self.report_statistics(&stamps);
        self.release_requests();
    }

    /// The requests may be released from here on, after which nothing is traced of them.
    fn end_traces(&self) {
        for parent in self.slots.iter().filter_map(|slot| slot.trace_parent.get()) {
            parent.end();
        }
    }

    /// Reports the statistics of the requests and of the execution.
    fn report_statistics(&self, stamps: &Stamps) {
        let mut rows = 0u64;
        let mut has_success = false;
        for request in self.requests() {
            // What a factory sends later is counted by its own reports; the execution did its part.
            let is_success = matches!(
                request.slot.outcome.get(),
                Outcome::Sent | Outcome::HandedOver | Outcome::Again
            );
            has_success |= is_success;
            rows = rows.saturating_add(self.rows_of(request).map_or(1, |rows| rows as u64));
            report("request statistics", || {
                // SAFETY: instance and request are live: the request is released only afterwards.
                unsafe {
                    Error::check(abi::TRITONBACKEND_ModelInstanceReportStatistics(
                        self.instance,
                        request.raw(),
                        is_success,
                        stamps.exec_start_ns,
                        stamps.compute_start_ns,
                        stamps.compute_end_ns,
                        stamps.exec_end_ns,
                    ))
                }
            });
        }
        // As upstream's backends do, an execution in which everything failed is not counted as one.
        // Reported before the releases, so that a client that has its answer finds the execution
        // counted.
        if has_success {
            report("batch statistics", || {
                // SAFETY: the instance is live until Execute returns.
                unsafe {
                    Error::check(abi::TRITONBACKEND_ModelInstanceReportBatchStatistics(
                        self.instance,
                        rows,
                        stamps.exec_start_ns,
                        stamps.compute_start_ns,
                        stamps.compute_end_ns,
                        stamps.exec_end_ns,
                    ))
                }
            });
        }
    }

    /// Gives all requests back.
    fn release_requests(self) {
        for (&request, slot) in self.requests.iter().zip(self.slots) {
            let release = |flags| {
                // SAFETY: owned by this execution, released once (a release that fails is none),
                // and not used afterwards: `self` ends here.
                unsafe { Error::check(abi::TRITONBACKEND_RequestRelease(request.as_ptr(), flags)) }
            };
            if slot.outcome.get() == Outcome::Again {
                match release(abi::TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) {
                    Ok(()) => continue,
                    Err(refused) => {
                        slot.outcome.set(Outcome::Open);
                        // SAFETY: the request was not released, and is answered here for good.
                        let request = unsafe { Request::new(request, slot, self.factories) };
                        request.fail(refused);
                    }
                }
            }
            report("release", || release(abi::TRITONSERVER_REQUEST_RELEASE_ALL));
        }
    }

    fn answer_rest(&self, error: Option<Error>) {
        for request in self.requests() {
            drop(request.slot.kept.take());
            if request.slot.outcome.get() != Outcome::Open {
                continue;
            }
            match &error {
                Some(error) => request.fail(error.clone()),
                None if self.is_decoupled => {
                    request.slot.outcome.set(Outcome::Sent);
                    report("final flag", || send_final_flag(request));
                }
                None => request.fail(Error::internal("the backend gave no response")),
            }
        }
    }
}

/// The requests of an execution that is left open.
pub(crate) struct OpenBatch {
    pub(crate) requests: Vec<NonNull<abi::TRITONBACKEND_Request>>,
    pub(crate) start: ExecutionStart,
}

/// When an execution began, and when its computation did; 0: not yet.
#[derive(Clone, Copy)]
pub(crate) struct ExecutionStart {
    pub(crate) exec_ns: u64,
    pub(crate) compute_ns: u64,
}

/// Ends the responses of a decoupled request without a further one.
fn send_final_flag(request: Request<'_>) -> Result<(), Error> {
    let mut factory = ptr::null_mut();
    // SAFETY: the request is live; the factory is ours, used once and deleted.
    unsafe {
        Error::check(abi::TRITONBACKEND_ResponseFactoryNew(
            &raw mut factory,
            request.raw(),
        ))?;
        let sent = Error::check(abi::TRITONBACKEND_ResponseFactorySendFlags(
            factory,
            abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        ));
        sent.and(Error::check(abi::TRITONBACKEND_ResponseFactoryDelete(
            factory,
        )))
    }
}

/// Nobody is left to be told of a failure at the end of an execution, except the log.
fn report(what: &str, call: impl FnOnce() -> Result<(), Error>) {
    if let Err(error) = call() {
        crate::error!("failed {what}: {error}");
    }
}

/// Time stamps of an execution in the order that the server asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamps {
    exec_start_ns: u64,
    compute_start_ns: u64,
    compute_end_ns: u64,
    exec_end_ns: u64,
}

impl Stamps {
    /// Stamps never taken (0) collapse: without a start of computation all time before its end is
    /// computation, without an end the computation lasted as long as the execution.
    fn ordered(
        exec_start_ns: u64,
        compute_start_ns: u64,
        compute_end_ns: u64,
        exec_end_ns: u64,
    ) -> Self {
        let exec_end_ns = exec_end_ns.max(exec_start_ns);
        let compute_start_ns = compute_start_ns.clamp(exec_start_ns, exec_end_ns);
        let compute_end_ns = match compute_end_ns {
            0 => exec_end_ns,
            end => end.clamp(compute_start_ns, exec_end_ns),
        };
        Stamps {
            exec_start_ns,
            compute_start_ns,
            compute_end_ns,
            exec_end_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_come_in_order() {
        for (given, expected) in [
            ((10, 20, 30, 40), (10, 20, 30, 40)),
            // Never taken.
            ((10, 0, 0, 40), (10, 10, 40, 40)),
            ((10, 20, 0, 40), (10, 20, 40, 40)),
            ((10, 0, 30, 40), (10, 10, 30, 40)),
            // Taken in the wrong order.
            ((10, 30, 20, 40), (10, 30, 30, 40)),
            ((10, 20, 50, 40), (10, 20, 40, 40)),
            ((10, 5, 7, 3), (10, 10, 10, 10)),
        ] {
            let stamps = Stamps::ordered(given.0, given.1, given.2, given.3);
            let found = (
                stamps.exec_start_ns,
                stamps.compute_start_ns,
                stamps.compute_end_ns,
                stamps.exec_end_ns,
            );
            assert_eq!(found, expected, "{given:?}");
        }
    }
}
