//! What the server calls for a request: responses, and its release.
//!
//! Any thread of the server may do so, before `InferAsync` returned too. Panics of the caller's
//! code are caught where it is called; those of ours end here, in the log.

use std::ffi::c_void;

use conch_abi as abi;

use super::calls::{Call, CallNumber};
use super::delivery::ServerDelivery;
use super::response::ResponseHandle;
use crate::Error;
use crate::guard::guard;

/// A response, or the end without one.
///
/// # Safety
/// As of `TRITONSERVER_InferenceResponseCompleteFn_t`; `userp` is the number of a call.
pub(super) unsafe extern "C" fn responded(
    response: *mut abi::TRITONSERVER_InferenceResponse,
    flags: u32,
    userp: *mut c_void,
) {
    contain(|| {
        // SAFETY: null or a response that is ours from now on.
        let response = unsafe { ResponseHandle::new(response) };
        let is_final = flags & abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL != 0;
        let Some(call) = Call::find(CallNumber::from_pointer(userp)) else {
            return Err(Error::internal("a response to a call that is over"));
        };
        let response = response.map(ResponseHandle::into_response);
        if response.is_some() || is_final {
            call.deliver(ServerDelivery {
                response,
                is_final,
                is_unsent: false,
            });
        }
        Ok(())
    });
}

/// The server has done with the request, though responses may still come.
///
/// # Safety
/// As of `TRITONSERVER_InferenceRequestReleaseFn_t`; `userp` is the number of a call.
pub(super) unsafe extern "C" fn released(
    _: *mut abi::TRITONSERVER_InferenceRequest,
    flags: u32,
    userp: *mut c_void,
) {
    contain(|| {
        if flags & abi::TRITONSERVER_REQUEST_RELEASE_ALL == 0 {
            return Ok(());
        }
        let Some(call) = Call::find(CallNumber::from_pointer(userp)) else {
            return Err(Error::internal(
                "the release of a request of a call that is over",
            ));
        };
        call.release();
        Ok(())
    });
}

/// Runs the body of a function that cannot report an error.
fn contain(body: impl FnOnce() -> Result<(), Error>) {
    let raw = guard(body);
    // SAFETY: null or an error that is ours.
    if let Err(error) = unsafe { Error::check(raw) } {
        crate::error!("in a callback of the server: {error}");
    }
}
