//! Crossing between C and Rust: errors out and in, panics stopped, handles and strings converted.
//!
//! Everything here runs on whatever thread calls across the boundary; nothing blocks.

use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use conch_abi as abi;
use conch_engine::{Code, Error};

/// Runs the body of an exported function: its error becomes a `TRITONSERVER_Error` that the caller owns, and so does its panic.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Error>) -> *mut abi::TRITONSERVER_Error {
    // A panic leaves objects of one request or one plug-in half-changed, which their owner learns from the error.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(error)) => ErrorHandle::give(error),
        Err(panic) => {
            let what = panic
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("unknown panic");
            ErrorHandle::give(Error::internal(format!("internal error: {what}")))
        }
    }
}

/// As [`guard`] for functions that return a plain value.
pub(crate) fn guard_value<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// Ties an opaque C type to the Rust type behind its pointers.
///
/// # Safety
/// Every non-null `*mut Self` that this crate hands out points to a `Self::Target`.
pub(crate) unsafe trait Handle {
    type Target;
    /// What an error calls it.
    const NAME: &'static str;
}

/// Declares handle types: C type, Rust type, name in errors.
macro_rules! handles {
    ($($c_type:ident => $target:ty, $name:literal;)*) => {$(
        // SAFETY: the only pointers of this C type come from `into_handle` or `as_handle` on the target type.
        unsafe impl $crate::boundary::Handle for conch_abi::$c_type {
            type Target = $target;
            const NAME: &'static str = $name;
        }
    )*};
}
pub(crate) use handles;

fn null(name: &str) -> Error {
    Error::invalid(format!("{name} was nullptr"))
}

/// The object behind `handle`.
///
/// # Safety
/// `handle` is null or came from this crate, is live during `'a`, and nobody holds a mutable reference to its object.
pub(crate) unsafe fn borrow<'a, H: Handle>(handle: *const H) -> Result<&'a H::Target, Error> {
    let object =
        NonNull::new(handle.cast_mut().cast::<H::Target>()).ok_or_else(|| null(H::NAME))?;
    // SAFETY: non-null by the check above; live and not mutably borrowed by this function's contract.
    Ok(unsafe { object.as_ref() })
}

/// The object behind `handle`, to change it.
///
/// # Safety
/// `handle` is null or came from this crate, is live during `'a`, and this is the only reference to its object.
pub(crate) unsafe fn borrow_mut<'a, H: Handle>(handle: *mut H) -> Result<&'a mut H::Target, Error> {
    let mut object = NonNull::new(handle.cast::<H::Target>()).ok_or_else(|| null(H::NAME))?;
    // SAFETY: non-null by the check above; live and unaliased by this function's contract.
    Ok(unsafe { object.as_mut() })
}

/// Hands an object to the foreign side, which owns it until [`take`].
pub(crate) fn into_handle<H: Handle>(object: Box<H::Target>) -> *mut H {
    Box::into_raw(object).cast()
}

/// Lends an object to the foreign side.
pub(crate) fn as_handle<H: Handle>(object: &H::Target) -> *mut H {
    ptr::from_ref(object).cast_mut().cast()
}

/// Takes an object back from the foreign side.
///
/// # Safety
/// `handle` is null or came from [`into_handle`] and is not used again.
pub(crate) unsafe fn take<H: Handle>(handle: *mut H) -> Result<Box<H::Target>, Error> {
    let object = NonNull::new(handle.cast::<H::Target>()).ok_or_else(|| null(H::NAME))?;
    // SAFETY: it came from `Box::into_raw` and ownership returns, both by this function's contract.
    Ok(unsafe { Box::from_raw(object.as_ptr()) })
}

/// Stores a result where the caller asked for it.
///
/// # Safety
/// `target` is null or writable.
pub(crate) unsafe fn write<T>(target: *mut T, value: T) -> Result<(), Error> {
    if target.is_null() {
        return Err(Error::invalid("output argument was nullptr"));
    }
    // SAFETY: non-null by the check above, writable by this function's contract. The previous value is plain data.
    unsafe { target.write(value) };
    Ok(())
}

/// Stores a result if the caller wants it.
///
/// # Safety
/// `target` is null or writable.
pub(crate) unsafe fn write_optional<T>(target: *mut T, value: T) {
    if !target.is_null() {
        // SAFETY: non-null by the check above, writable by this function's contract.
        unsafe { target.write(value) };
    }
}

/// A C string as text; bytes that are not UTF-8 are refused.
///
/// # Safety
/// `text` is null or NUL-terminated and unchanged during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: NUL-terminated and unchanged by this function's contract.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes
        .to_str()
        .map_err(|_| Error::invalid(format!("{name} is not valid UTF-8")))
}

/// A C string as text for messages: null is empty, and foreign encodings are replaced instead of refused.
///
/// # Safety
/// `text` is null or NUL-terminated.
pub(crate) unsafe fn lossy_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: NUL-terminated by this function's contract.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// `count` values at `values`, which may be null only if there are none.
///
/// # Safety
/// `values` is null or points to `count` readable values, unchanged during `'a`.
pub(crate) unsafe fn slice<'a, T>(
    values: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Error> {
    match (NonNull::new(values.cast_mut()), count) {
        (_, 0) => Ok(&[]),
        (None, _) => Err(null(name)),
        // SAFETY: non-null, and long enough by this function's contract.
        (Some(values), _) => Ok(unsafe { std::slice::from_raw_parts(values.as_ptr(), count) }),
    }
}

/// Text for C: it ends at its first NUL, where C would stop reading.
pub(crate) fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(text.get(..end).unwrap_or_default()).expect("cut before the first NUL")
}

/// The object behind a `TRITONSERVER_Error`.
pub(crate) struct ErrorHandle {
    pub(crate) code: u32,
    pub(crate) message: CString,
}

handles! {
    TRITONSERVER_Error => ErrorHandle, "error";
}

impl ErrorHandle {
    pub(crate) fn give(error: Error) -> *mut abi::TRITONSERVER_Error {
        into_handle(Box::new(ErrorHandle {
            code: error.code as u32,
            message: c_string(&error.message),
        }))
    }

    pub(crate) fn to_error(&self) -> Error {
        Error::new(
            code_of(self.code),
            self.message.to_string_lossy().into_owned(),
        )
    }
}

fn code_of(number: u32) -> Code {
    match number {
        abi::TRITONSERVER_ERROR_INTERNAL => Code::Internal,
        abi::TRITONSERVER_ERROR_NOT_FOUND => Code::NotFound,
        abi::TRITONSERVER_ERROR_INVALID_ARG => Code::InvalidArg,
        abi::TRITONSERVER_ERROR_UNAVAILABLE => Code::Unavailable,
        abi::TRITONSERVER_ERROR_UNSUPPORTED => Code::Unsupported,
        abi::TRITONSERVER_ERROR_ALREADY_EXISTS => Code::AlreadyExists,
        abi::TRITONSERVER_ERROR_CANCELLED => Code::Cancelled,
        _ => Code::Unknown,
    }
}

/// What a plug-in returned: success, or its error, which is deleted here.
///
/// # Safety
/// `error` is null or an owned `TRITONSERVER_Error` that is not used again.
pub(crate) unsafe fn accept(error: *mut abi::TRITONSERVER_Error) -> Result<(), Error> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: owned and not used again by this function's contract.
    Err(unsafe { take(error) }?.to_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_become_error_objects() {
        type Case = (
            &'static str,
            fn() -> Result<(), Error>,
            Option<(Code, &'static str)>,
        );
        let cases: [Case; 4] = [
            ("success", || Ok(()), None),
            (
                "error",
                || Err(Error::not_found("no such thing")),
                Some((Code::NotFound, "no such thing")),
            ),
            (
                "text panic",
                || panic!("broken"),
                Some((Code::Internal, "internal error: broken")),
            ),
            (
                "NUL",
                || Err(Error::internal("a\0b")),
                Some((Code::Internal, "a")),
            ),
        ];
        for (name, body, expected) in cases {
            // SAFETY: the error just made is owned here.
            let result = unsafe { accept(guard(body)) };
            let expected = expected.map(|(code, message)| Error::new(code, message));
            assert_eq!(result.err(), expected, "{name}");
        }
    }

    #[test]
    fn null_is_an_error_everywhere() {
        let message = |error: Error| error.message.into_owned();
        // SAFETY: null is allowed by every contract.
        unsafe {
            assert_eq!(
                borrow::<abi::TRITONSERVER_Error>(ptr::null())
                    .err()
                    .map(message)
                    .unwrap(),
                "error was nullptr"
            );
            assert!(take::<abi::TRITONSERVER_Error>(ptr::null_mut()).is_err());
            assert!(write(ptr::null_mut::<u32>(), 1).is_err());
            assert!(text(ptr::null(), "name").is_err());
            assert!(slice::<i64>(ptr::null(), 1, "shape").is_err());
            assert_eq!(
                slice::<i64>(ptr::null(), 0, "shape").unwrap(),
                &[] as &[i64]
            );
            assert_eq!(lossy_text(ptr::null()), "");
        }
    }
}
