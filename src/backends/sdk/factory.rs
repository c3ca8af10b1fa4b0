//! Response factories: answers that outlive the execution of their request.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use conch_abi as abi;

use crate::response::Outgoing;
use crate::{Code, Error};

/// The right to answer one request, from any thread and for as long as it takes: any number of
/// responses, in any order, then the end.
///
/// The server finalises an instance only when all its factories are gone: threads that hold one
/// must come to their end by themselves, or be told to when the [`Instance`](crate::Instance) is
/// dropped. Dropped before [`finish`](Self::finish) (by a panic, for example), a factory ends its
/// request with an error.
pub struct ResponseFactory {
    raw: NonNull<abi::TRITONBACKEND_ResponseFactory>,
    factories: Arc<Factories>,
    is_finished: bool,
}

// SAFETY: the server lets any thread use a factory.
unsafe impl Send for ResponseFactory {}
// SAFETY: making a response and asking for cancellation, all that a shared factory can do, only
// read it; the server counts responses atomically.
unsafe impl Sync for ResponseFactory {}

impl ResponseFactory {
    /// # Safety
    /// `request` is live; `factories` are those of the instance that executes it.
    pub(crate) unsafe fn new(
        request: *mut abi::TRITONBACKEND_Request,
        factories: &Arc<Factories>,
    ) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the request is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_ResponseFactoryNew(&raw mut raw, request))?;
        }
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::internal("server gave a null response factory"))?;
        factories.add();
        Ok(ResponseFactory {
            raw,
            factories: Arc::clone(factories),
            is_finished: false,
        })
    }

    /// Begins a response. Several may be in the making, and be sent in any order.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn respond(&self) -> Result<FactoryResponse<'_>, Error> {
        let mut response = ptr::null_mut();
        // SAFETY: the factory is live, the result writable; the new response is owned by the
        // wrapper.
        let outgoing = unsafe {
            Error::check(abi::TRITONBACKEND_ResponseNewFromFactory(
                &raw mut response,
                self.raw.as_ptr(),
            ))?;
            Outgoing::new(response)?
        };
        Ok(FactoryResponse {
            outgoing,
            factory: PhantomData,
        })
    }

    /// Whether the client gave up; what is left to do for it need not be done.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn is_cancelled(&self) -> Result<bool, Error> {
        let mut is_cancelled = false;
        // SAFETY: the factory is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_ResponseFactoryIsCancelled(
                self.raw.as_ptr(),
                &raw mut is_cancelled,
            ))?;
        }
        Ok(is_cancelled)
    }

    /// Ends the request's answers, without a further response.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn finish(mut self) -> Result<(), Error> {
        self.is_finished = true;
        // SAFETY: the factory is live.
        unsafe {
            Error::check(abi::TRITONBACKEND_ResponseFactorySendFlags(
                self.raw.as_ptr(),
                abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            ))
        }
    }

    /// Ends the request's answers with a last response, made by `make`. If that fails, its error is
    /// the last response.
    ///
    /// # Errors
    /// What `make` returned, else whatever the server reports.
    pub fn finish_with(
        mut self,
        make: impl FnOnce(&mut Outgoing) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut response = self.respond()?;
        let made = make(&mut response);
        let FactoryResponse { outgoing, .. } = response;
        self.is_finished = true;
        match made {
            Ok(()) => outgoing.send(true),
            Err(error) => {
                outgoing.fail(error.clone(), true);
                Err(error)
            }
        }
    }

    /// Gives the factory up without an answer: the request is answered otherwise.
    pub fn discard(mut self) {
        self.is_finished = true;
    }

    /// Ends the request's answers with an error.
    pub fn fail(mut self, error: Error) {
        self.end_with(error);
    }

    /// Counts one response, or what would have been one, in the model's statistics, under the
    /// number of reports made before it.
    ///
    /// # Errors
    /// Whatever the server reports, such as `InvalidArgument` for times that are not in order.
    pub fn report(&self, times: &ResponseTimes, error: Option<&Error>) -> Result<(), Error> {
        let statistics = Statistics::new()?;
        let raw = statistics.0.as_ptr();
        // SAFETY: statistics and factory are live; so is the instance, as its Finalize waits for
        // this factory.
        unsafe {
            Error::check(
                abi::TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
                    raw,
                    self.factories.instance,
                ),
            )?;
            Error::check(
                abi::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
                    raw,
                    self.raw.as_ptr(),
                ),
            )?;
            Error::check(
                abi::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
                    raw,
                    times.start_ns,
                ),
            )?;
            if let Some(output_start_ns) = times.output_start_ns {
                Error::check(
                    abi::TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
                        raw,
                        output_start_ns,
                    ),
                )?;
            }
            Error::check(
                abi::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(raw, times.end_ns),
            )?;
        }
        let error = error.map_or(ptr::null_mut(), |error| error.clone().into_raw());
        // SAFETY: the statistics are live, and so is the error, which stays ours, until it is
        // deleted.
        unsafe {
            let mut reported = Error::check(
                abi::TRITONBACKEND_ModelInstanceResponseStatisticsSetError(raw, error),
            );
            if reported.is_ok() {
                reported = Error::check(abi::TRITONBACKEND_ModelInstanceReportResponseStatistics(
                    raw,
                ));
            }
            if !error.is_null() {
                abi::TRITONSERVER_ErrorDelete(error);
            }
            reported
        }
    }

    fn end_with(&mut self, error: Error) {
        self.is_finished = true;
        match self.respond() {
            Ok(response) => response.outgoing.fail(error, true),
            Err(refused) => crate::error!("cannot answer a request with '{error}': {refused}"),
        }
    }
}

impl Drop for ResponseFactory {
    fn drop(&mut self) {
        if !self.is_finished {
            self.end_with(Error::new(
                Code::Internal,
                "the backend gave up before the last response",
            ));
        }
        // SAFETY: live, ours, and not used again.
        let deleted =
            unsafe { Error::check(abi::TRITONBACKEND_ResponseFactoryDelete(self.raw.as_ptr())) };
        if let Err(error) = deleted {
            crate::error!("failed to delete a response factory: {error}");
        }
        self.factories.remove();
    }
}

/// A response made by a factory; there may be more to come after it. Dropped unsent, it is thrown
/// away. Its outputs and parameters are those of [`Outgoing`].
pub struct FactoryResponse<'f> {
    outgoing: Outgoing,
    factory: PhantomData<&'f ResponseFactory>,
}

impl FactoryResponse<'_> {
    /// Sends the response.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn send(self) -> Result<(), Error> {
        self.outgoing.send(false)
    }

    /// Sends an error in its place, which need not be the end.
    pub fn fail(self, error: Error) {
        self.outgoing.fail(error, false);
    }
}

impl Deref for FactoryResponse<'_> {
    type Target = Outgoing;

    fn deref(&self) -> &Outgoing {
        &self.outgoing
    }
}

impl DerefMut for FactoryResponse<'_> {
    fn deref_mut(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }
}

/// When the work for a response happened, in ns of
/// [`clock::monotonic_ns`](crate::clock::monotonic_ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseTimes {
    pub start_ns: u64,
    /// When the result began to be written; none if there is none.
    pub output_start_ns: Option<u64>,
    pub end_ns: u64,
}

/// The factories of an instance that are not dropped yet.
pub(crate) struct Factories {
    instance: *mut abi::TRITONBACKEND_ModelInstance,
    state: Mutex<FactoriesState>,
    is_none: Condvar,
}

#[derive(Default)]
struct FactoriesState {
    count: usize,
    /// The instance ends and waits; a wake-up is a system call.
    is_awaited: bool,
}

// SAFETY: the instance is only passed to functions that any thread may call while it is live, by
// the contract of `new`.
unsafe impl Send for Factories {}
// SAFETY: as above.
unsafe impl Sync for Factories {}

impl Factories {
    /// # Safety
    /// `instance` stays live until [`wait_until_none`](Self::wait_until_none) returned.
    pub(crate) unsafe fn new(instance: *mut abi::TRITONBACKEND_ModelInstance) -> Arc<Self> {
        Arc::new(Factories {
            instance,
            state: Mutex::default(),
            is_none: Condvar::new(),
        })
    }

    pub(crate) fn add(&self) {
        self.lock().count += 1;
    }

    pub(crate) fn remove(&self) {
        let mut state = self.lock();
        state.count -= 1;
        if state.count == 0 && state.is_awaited {
            self.is_none.notify_all();
        }
    }

    pub(crate) fn wait_until_none(&self) {
        let mut state = self.lock();
        state.is_awaited = true;
        while state.count > 0 {
            let woken = self.is_none.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, FactoriesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A report that is being filled in.
struct Statistics(NonNull<abi::TRITONBACKEND_ModelInstanceResponseStatistics>);

impl Statistics {
    fn new() -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the result is writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceResponseStatisticsNew(
                &raw mut raw,
            ))?;
        }
        NonNull::new(raw)
            .map(Statistics)
            .ok_or_else(|| Error::internal("server gave null response statistics"))
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // SAFETY: live, ours, and not used again.
        let deleted = unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
                self.0.as_ptr(),
            ))
        };
        if let Err(error) = deleted {
            crate::error!("failed to delete response statistics: {error}");
        }
    }
}
