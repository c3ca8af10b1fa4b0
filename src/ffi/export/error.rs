//! Error objects.

use std::ffi::{CStr, c_char};
use std::ptr;

use conch_abi as abi;

use crate::boundary::{ErrorHandle, borrow, c_string, delete, guard_value, lossy_text};

/// # Safety
/// `msg` is null or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorNew(
    code: abi::TRITONSERVER_Error_Code,
    msg: *const c_char,
) -> *mut abi::TRITONSERVER_Error {
    guard_value(ptr::null_mut(), || {
        // SAFETY: by this function's contract.
        let message = c_string(&unsafe { lossy_text(msg) });
        ErrorHandle::raise(code, message)
    })
}

/// # Safety
/// `error` is null or owned by the caller, who does not use it again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorDelete(error: *mut abi::TRITONSERVER_Error) {
    guard_value((), || {
        // SAFETY: by this function's contract. There is no way to tell an error.
        let _ = unsafe { delete(error) };
    });
}

/// # Safety
/// `error` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorCode(
    error: *mut abi::TRITONSERVER_Error,
) -> abi::TRITONSERVER_Error_Code {
    guard_value(abi::TRITONSERVER_ERROR_UNKNOWN, || {
        // SAFETY: by this function's contract.
        unsafe { borrow(error) }.map_or(abi::TRITONSERVER_ERROR_UNKNOWN, |error| error.code)
    })
}

/// # Safety
/// `error` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorCodeString(
    error: *mut abi::TRITONSERVER_Error,
) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"Unknown",
        c"Internal",
        c"Not found",
        c"Invalid argument",
        c"Unavailable",
        c"Unsupported",
        c"Already exists",
        c"Cancelled",
    ];
    guard_value(ptr::null(), || {
        // SAFETY: by this function's contract.
        let code = unsafe { borrow(error) }
            .ok()
            .and_then(|error| usize::try_from(error.code).ok());
        code.and_then(|code| NAMES.get(code).copied())
            .unwrap_or(c"<invalid code>")
            .as_ptr()
    })
}

/// # Safety
/// `error` is null or live; the text lives as long as it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorMessage(
    error: *mut abi::TRITONSERVER_Error,
) -> *const c_char {
    guard_value(c"".as_ptr(), || {
        // SAFETY: by this function's contract.
        unsafe { borrow(error) }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
    })
}
