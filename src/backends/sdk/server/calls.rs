//! Calls in flight.
//!
//! The C callbacks know a call by its number. A number that is not found belongs to a call that is
//! over, so that whatever a faulty model still does with one touches no memory of it.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use conch_memory::MemoryPlace;

use super::delivery::{DeliveryQueue, Panicked, ServerDelivery};
use super::memory::{OutputMemory, TensorMemory};
use super::request_handle::RequestHandle;
use super::usage::{CallGuard, Usage};
use crate::Error;

/// All calls of the library that are in flight. Locked for a look-up only.
static CALLS: LazyLock<RwLock<HashMap<CallNumber, Arc<Call>>>> = LazyLock::new(RwLock::default);

/// The pointer that the server gives back for a call: a number, never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallNumber(usize);

impl CallNumber {
    pub(super) fn from_pointer(userp: *mut c_void) -> Self {
        CallNumber(userp.addr())
    }

    pub(super) fn as_pointer(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0)
    }
}

/// One call: from `infer` until its last response came and its request was released.
pub(super) struct Call {
    number: CallNumber,
    stage: Mutex<CallStage>,
    deliveries: DeliveryQueue<ServerDelivery>,
    output_memory: Arc<dyn OutputMemory>,
    /// Last, so that whoever waits for it finds the rest gone.
    guard: CallGuard,
}

/// How far a call is.
#[derive(Default)]
struct CallStage {
    /// From its making until the call is over: a model that releases a request before it answers
    /// can still be told to give up.
    request: Option<Arc<RequestHandle>>,
    /// What the inputs lie in, until the server released the request.
    inputs: Vec<TensorMemory>,
    /// The server has the request.
    is_sent: bool,
    has_last_response: bool,
}

impl CallStage {
    fn is_over(&self) -> bool {
        self.has_last_response && !self.is_sent
    }
}

impl Call {
    /// A call of whose answers `receive` hears, in flight as of now.
    pub(super) fn begin(
        usage: &Arc<Usage>,
        output_memory: Arc<dyn OutputMemory>,
        mut receive: impl FnMut(&ServerCall, ServerDelivery) + Send + 'static,
    ) -> Arc<Call> {
        // Numbers do not come round again before the process ends; 0 would be the null pointer.
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = CallNumber(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        let call = Arc::new_cyclic(|call: &Weak<Call>| {
            let handle = ServerCall { call: call.clone() };
            Call {
                number,
                stage: Mutex::default(),
                deliveries: DeliveryQueue::new(Box::new(move |delivery| {
                    receive(&handle, delivery)
                })),
                output_memory,
                guard: usage.begin_call(),
            }
        });
        let mut calls = CALLS.write().unwrap_or_else(PoisonError::into_inner);
        calls.insert(number, Arc::clone(&call));
        drop(calls);
        call
    }

    /// None if it is over.
    pub(super) fn find(number: CallNumber) -> Option<Arc<Call>> {
        let calls = CALLS.read().unwrap_or_else(PoisonError::into_inner);
        calls.get(&number).cloned()
    }

    /// Cancels all calls through `usage`.
    pub(super) fn cancel_all(usage: &Arc<Usage>) {
        let calls = CALLS.read().unwrap_or_else(PoisonError::into_inner);
        let own = calls.values().filter(|call| call.guard.is_of(usage));
        let own: Vec<Arc<Call>> = own.cloned().collect();
        drop(calls);
        for call in own {
            call.cancel_or_log();
        }
    }

    pub(super) fn number(&self) -> CallNumber {
        self.number
    }

    pub(super) fn handle(self: &Arc<Self>) -> ServerCall {
        ServerCall {
            call: Arc::downgrade(self),
        }
    }

    /// Keeps what the server uses until it releases the request.
    pub(super) fn keep(&self, request: Arc<RequestHandle>, inputs: Vec<TensorMemory>) {
        let mut stage = self.stage();
        stage.request = Some(request);
        stage.inputs = inputs;
        stage.is_sent = true;
    }

    /// The server released the request, or did not take it.
    pub(super) fn release(&self) {
        let mut stage = self.stage();
        stage.is_sent = false;
        let inputs = std::mem::take(&mut stage.inputs);
        let is_over = stage.is_over();
        drop(stage);
        drop(inputs);
        if is_over {
            self.forget();
        }
    }

    /// Hands over what came. With the last delivery the responses are over.
    pub(super) fn deliver(&self, delivery: ServerDelivery) {
        let is_final = delivery.is_final;
        if is_final {
            let mut stage = self.stage();
            stage.has_last_response = true;
            let is_over = stage.is_over();
            drop(stage);
            if is_over {
                self.forget();
            }
        }
        if self.deliveries.push(delivery, is_final) == Err(Panicked) {
            crate::error!("a panic in what receives the responses of a call");
            self.cancel_or_log();
        }
    }

    pub(super) fn allocate(
        &self,
        name: &CStr,
        byte_count: usize,
        preferred: MemoryPlace,
    ) -> Result<TensorMemory, Error> {
        self.output_memory.allocate(name, byte_count, preferred)
    }

    pub(super) fn place(&self, preferred: MemoryPlace) -> MemoryPlace {
        self.output_memory.place(preferred)
    }

    /// # Errors
    /// Whatever the server reports.
    fn cancel(&self) -> Result<(), Error> {
        // A reference of its own: the call may be over meanwhile.
        let request = self.stage().request.clone();
        request.map_or(Ok(()), |request| request.cancel())
    }

    fn cancel_or_log(&self) {
        if let Err(error) = self.cancel() {
            crate::error!("failed to cancel a call: {error}");
        }
    }

    /// The call is over: the request is deleted as soon as nobody cancels it.
    fn forget(&self) {
        let request = self.stage().request.take();
        drop(request);
        let mut calls = CALLS.write().unwrap_or_else(PoisonError::into_inner);
        let call = calls.remove(&self.number);
        drop(calls);
        drop(call);
    }

    fn stage(&self) -> MutexGuard<'_, CallStage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call of [`Server::infer`](super::Server::infer). Dropping it changes nothing; clones are the
/// same call.
#[derive(Clone)]
pub struct ServerCall {
    call: Weak<Call>,
}

impl ServerCall {
    /// Asks the called model to give up: from any thread, at any time, also within the function
    /// that receives the responses. That one is still called to the end, as a rule with an error of
    /// the code `Cancelled`. Nothing happens if the call is over.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn cancel(&self) -> Result<(), Error> {
        self.call.upgrade().map_or(Ok(()), |call| call.cancel())
    }

    /// Whether more is to come: the last response, or the release of the request.
    pub fn is_in_flight(&self) -> bool {
        self.call.upgrade().is_some()
    }
}

impl fmt::Debug for ServerCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ServerCall")
            .field("is_in_flight", &self.is_in_flight())
            .finish()
    }
}
