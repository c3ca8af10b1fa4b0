//! The server, as a model of it uses it.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;

use super::calls::{Call, ServerCall};
use super::delivery::ServerDelivery;
use super::request::ServerRequest;
use super::sending::send;
use super::usage::{Usage, UseGuard};
use crate::Error;
use crate::library::keep_loaded;

/// The server that loaded a model. Clones are cheap; any thread may use them, several at once. When
/// the model ends, every function returns an error, and calls in flight are cancelled.
#[derive(Clone)]
pub struct Server {
    raw: ServerAddress,
    usage: Arc<Usage>,
}

#[derive(Clone, Copy)]
struct ServerAddress(NonNull<abi::TRITONSERVER_Server>);

// SAFETY: all threads may call the server's functions.
unsafe impl Send for ServerAddress {}
// SAFETY: as above.
unsafe impl Sync for ServerAddress {}

impl Server {
    /// Sends `request` and returns; `receive` gets each response once, then the end. Failures come
    /// the same way, also those to send: as the last delivery, an error.
    ///
    /// `receive` is called for one delivery after the other, in order, on threads of the server or
    /// of the called model, which it delays, or on this thread, before `infer` returns: hold no
    /// lock that it takes. It is dropped after the last delivery. If it panics, it is not called
    /// again, and the call is cancelled. The [`ServerCall`] that it gets is the one that `infer`
    /// returns.
    ///
    /// A model that waits in its execution for the responses of another one occupies its instance
    /// meanwhile; one that calls itself so may wait for ever.
    pub fn infer(
        &self,
        mut request: ServerRequest,
        receive: impl FnMut(&ServerCall, ServerDelivery) + Send + 'static,
    ) -> ServerCall {
        let memory = std::mem::replace(&mut request.output_memory, Arc::new(super::HostMemory));
        let call = Call::begin(&self.usage, memory, receive);
        let handle = call.handle();
        keep_loaded();
        let sent = self.enter().and_then(|server| {
            // SAFETY: the server is live as long as it is in use.
            unsafe { send(server.raw, &call, request) }
        });
        if let Err(error) = sent {
            call.deliver(ServerDelivery::failure(error));
        }
        handle
    }

    /// # Errors
    /// `Unavailable` if the model has ended.
    pub(super) fn enter(&self) -> Result<ServerUse, Error> {
        Ok(ServerUse {
            _guard: self.usage.enter()?,
            raw: self.raw.0,
        })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Server").finish_non_exhaustive()
    }
}

/// The server's address, which is valid as long as this lives: the end of the model waits for it.
pub(super) struct ServerUse {
    pub(super) raw: NonNull<abi::TRITONSERVER_Server>,
    _guard: UseGuard,
}

/// Bounds the use of the server to the life of a model: dropping it ends its [`Server`].
pub(crate) struct ServerScope(Server);

impl ServerScope {
    /// # Errors
    /// Whatever the server reports.
    ///
    /// # Safety
    /// `model` is live until the scope is dropped.
    pub(crate) unsafe fn of(model: NonNull<abi::TRITONBACKEND_Model>) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the model is live, the result writable; the server outlives its models.
        unsafe { Error::check(abi::TRITONBACKEND_ModelServer(model.as_ptr(), &raw mut raw))? };
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("model without a server"))?;
        Ok(ServerScope(Server {
            raw: ServerAddress(raw),
            usage: Arc::default(),
        }))
    }

    pub(crate) fn server(&self) -> Server {
        self.0.clone()
    }
}

impl Drop for ServerScope {
    fn drop(&mut self) {
        let usage = &self.0.usage;
        let left = usage.close(|| Call::cancel_all(usage));
        if left > 0 {
            crate::warning!("{left} calls of a model that has ended do not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_hold_goes_from_thread_to_thread() {
        fn check<T: Send>() {}
        fn check_shared<T: Send + Sync>() {}
        check_shared::<Server>();
        check_shared::<ServerCall>();
        check_shared::<super::super::TensorMemory>();
        check::<ServerRequest>();
        check::<ServerDelivery>();
    }
}
