//! Panics stop at the C boundary: they must not unwind into the server.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use conch_abi as abi;

use crate::{Code, Error};

/// Runs the body of a function that the server calls. Returns null, or the error for the server.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Error>) -> *mut abi::TRITONSERVER_Error {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(error)) => error.into_raw(),
        Err(panic) => panic_error(&*panic).into_raw(),
    }
}

/// A panic as an error. Some of the requests may have their answers, so that the server does not
/// learn that the others failed together.
pub(crate) fn caught<R>(call: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let error = panic_error(&*panic);
        crate::log!(crate::log::Level::Error, "{}", error.message());
        Err(error)
    })
}

/// The error that a panic becomes.
fn panic_error(panic: &(dyn Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of unknown cause");
    Error::new(Code::Internal, format!("panic in the backend: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors_with_their_message() {
        let caught = catch_unwind(|| panic!("plain")).unwrap_err();
        assert_eq!(
            panic_error(&*caught).message(),
            "panic in the backend: plain"
        );
        let caught = catch_unwind(|| panic!("{} {}", "with", 2)).unwrap_err();
        assert!(panic_error(&*caught).message().ends_with("with 2"));
    }
}
