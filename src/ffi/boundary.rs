//! Crossing between C and Rust: errors out and in, panics stopped, handles and strings converted.
//!
//! Everything here runs on whatever thread calls across the boundary; nothing blocks.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;
use conch_engine::{Code, Error};

/// Runs the body of an exported function: its error becomes a `TRITONSERVER_Error` that the caller
/// owns, and so does its panic.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Error>) -> *mut abi::TRITONSERVER_Error {
    // A panic leaves objects of one request or one plug-in half-changed, which their owner learns
    // from the error.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(error)) => ErrorHandle::from_error(error),
        Err(panic) => {
            let what = panic
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("unknown panic");
            ErrorHandle::from_error(Error::internal(format!("internal error: {what}")))
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
/// Every non-null `*mut Self` that this crate hands out points to a `Self::Target`; with a `TAG`,
/// that begins with a [`HandleTag`].
pub(crate) unsafe trait Handle {
    type Target;
    /// What an error calls it.
    const NAME: &'static str;
    /// What tells targets from other memory, where they carry it.
    const TAG: Option<u64>;
}

/// Declares handle types: C type, Rust type, name in errors. `tagged` ones have a [`HandleTag`] as
/// their first field, called `tag`, and are `repr(C)`: then a handle of another kind, and mostly
/// one that is gone, is an error instead of havoc.
macro_rules! handles {
    ($($c_type:ident => $target:ty, $name:literal $(, $tagged:ident)?;)*) => {$(
        // SAFETY: the only pointers of this C type come from `into_handle` or `as_handle` on the
        // target type. The constants below do not compile unless a tagged type begins with its tag.
        unsafe impl $crate::boundary::Handle for conch_abi::$c_type {
            type Target = $target;
            const NAME: &'static str = $name;
            const TAG: Option<u64> = $crate::boundary::handles!(@tag $c_type $($tagged)?);
        }
        $(const _: () = $crate::boundary::handles!(@check $tagged $c_type $target);)?
    )*};
    (@tag $c_type:ident tagged) => { Some($crate::boundary::tag_of(stringify!($c_type))) };
    (@tag $c_type:ident) => { None };
    (@check tagged $c_type:ident $target:ty) => {{
        let _: fn(&$target) -> &$crate::boundary::HandleTag<conch_abi::$c_type> =
            |target| &target.tag;
        assert!(std::mem::offset_of!($target, tag) == 0);
    }};
}
pub(crate) use handles;

/// The first field of an object behind a tagged handle.
pub(crate) struct HandleTag<H> {
    _value: u64,
    _handle: PhantomData<fn() -> H>,
}

impl<H: Handle> HandleTag<H> {
    pub(crate) const fn new() -> HandleTag<H> {
        HandleTag {
            _value: match H::TAG {
                Some(tag) => tag,
                None => 0,
            },
            _handle: PhantomData,
        }
    }
}

impl<H> HandleTag<H> {
    /// Of memory that is kept, but no object of any kind.
    pub(crate) const fn none() -> HandleTag<H> {
        HandleTag {
            _value: 0,
            _handle: PhantomData,
        }
    }
}

impl<H: Handle> Default for HandleTag<H> {
    fn default() -> HandleTag<H> {
        HandleTag::new()
    }
}

impl<H> Clone for HandleTag<H> {
    fn clone(&self) -> HandleTag<H> {
        *self
    }
}

impl<H> Copy for HandleTag<H> {}

/// A number that memory of other kinds hardly begins with: a hash (FNV-1a) of a handle's name.
pub(crate) const fn tag_of(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let (mut hash, mut index) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    hash
}

/// The object behind `handle`, unless it shows to be another one.
///
/// # Safety
/// `handle` is null or points to readable memory of this crate.
unsafe fn object<H: Handle>(handle: *const H) -> Result<NonNull<H::Target>, Error> {
    let object =
        NonNull::new(handle.cast_mut().cast::<H::Target>()).ok_or_else(|| null(H::NAME))?;
    if let Some(tag) = H::TAG {
        let first = object.cast::<u64>();
        // SAFETY: aligned, and readable by this function's contract. Volatile, so that it is read
        // even where the compiler can tell that a live object has its tag.
        if !first.is_aligned() || unsafe { first.read_volatile() } != tag {
            return Err(Error::invalid(format!(
                "{} is not a live handle of its kind",
                H::NAME
            )));
        }
    }
    Ok(object)
}

fn null(name: &str) -> Error {
    Error::invalid(format!("{name} was nullptr"))
}

/// The object behind `handle`.
///
/// # Safety
/// `handle` is null or came from this crate, is live during `'a`, and nobody holds a mutable
/// reference to its object.
pub(crate) unsafe fn borrow<'a, H: Handle>(handle: *const H) -> Result<&'a H::Target, Error> {
    // SAFETY: by this function's contract.
    let object = unsafe { object(handle) }?;
    // SAFETY: non-null by the check above; live and not mutably borrowed by this function's
    // contract.
    Ok(unsafe { object.as_ref() })
}

/// The object behind `handle`, to change it.
///
/// # Safety
/// `handle` is null or came from this crate, is live during `'a`, and this is the only reference to
/// its object.
pub(crate) unsafe fn borrow_mut<'a, H: Handle>(handle: *mut H) -> Result<&'a mut H::Target, Error> {
    // SAFETY: by this function's contract.
    let mut object = unsafe { object(handle.cast_const()) }?;
    // SAFETY: non-null by the check above; live and unaliased by this function's contract.
    Ok(unsafe { object.as_mut() })
}

/// Hands an object to the foreign side, which owns it until [`take`].
pub(crate) fn into_handle<H: Handle>(object: Box<H::Target>) -> *mut H {
    Box::into_raw(object).cast()
}

/// Hands an object over by an argument of the foreign side's; drops it if there is none.
///
/// # Safety
/// `target` is null or writable.
pub(crate) unsafe fn write_handle<H: Handle>(
    target: *mut *mut H,
    object: Box<H::Target>,
) -> Result<(), Error> {
    if target.is_null() {
        return Err(Error::invalid("output argument was nullptr"));
    }
    // SAFETY: non-null by the check above, writable by this function's contract.
    unsafe { target.write(into_handle(object)) };
    Ok(())
}

/// Lets go of a count of references that the foreign side holds. The handle itself is given back,
/// not a reference to its object: only it may reach the counts beside the object.
///
/// # Safety
/// `handle` came from `Arc::into_raw` and its count is the caller's, who does not use the handle
/// again.
pub(crate) unsafe fn release<H: Handle>(handle: *mut H) {
    // SAFETY: by this function's contract.
    drop(unsafe { Arc::from_raw(handle.cast::<H::Target>().cast_const()) });
}

/// Lends an object to the foreign side, which may only change what is atomic or locked in it.
pub(crate) fn as_handle<H: Handle>(object: &H::Target) -> *mut H {
    ptr::from_ref(object).cast_mut().cast()
}

/// Takes an object back from the foreign side.
///
/// # Safety
/// `handle` is null or came from [`into_handle`] and is not used again.
pub(crate) unsafe fn take<H: Handle>(handle: *mut H) -> Result<Box<H::Target>, Error> {
    // SAFETY: by this function's contract.
    let object = unsafe { object(handle.cast_const()) }?;
    // SAFETY: it came from `Box::into_raw` and ownership returns, both by this function's contract.
    Ok(unsafe { Box::from_raw(object.as_ptr()) })
}

/// Deletes an object that the foreign side owns. Deleting null is allowed, as in C++, and plug-ins
/// do it.
///
/// # Errors
/// INVALID_ARG if the handle is not one of its kind.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn delete<H: Handle>(handle: *mut H) -> Result<(), Error> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: by this function's contract.
    unsafe { take(handle) }.map(drop)
}

/// Stores a result where the caller asked for it.
///
/// # Safety
/// `target` is null or writable.
pub(crate) unsafe fn write<T>(target: *mut T, value: T) -> Result<(), Error> {
    if target.is_null() {
        return Err(Error::invalid("output argument was nullptr"));
    }
    // SAFETY: non-null by the check above, writable by this function's contract. The previous value
    // is plain data.
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

/// A C string as text for messages: null is empty, and foreign encodings are replaced instead of
/// refused.
///
/// # Safety
/// `text` is null or NUL-terminated.
pub(crate) unsafe fn lossy_text<'a>(text: *const c_char) -> Cow<'a, str> {
    if text.is_null() {
        return Cow::Borrowed("");
    }
    // SAFETY: NUL-terminated by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
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
#[repr(C)]
pub(crate) struct ErrorHandle {
    tag: HandleTag<abi::TRITONSERVER_Error>,
    pub(crate) code: u32,
    pub(crate) message: CString,
}

handles! {
    TRITONSERVER_Error => ErrorHandle, "error", tagged;
}

impl ErrorHandle {
    pub(crate) fn from_error(error: Error) -> *mut abi::TRITONSERVER_Error {
        let code = match error.code {
            // The C API has no word for it.
            Code::Exhausted | Code::OutOfMemory => Code::Unavailable,
            code => code,
        };
        ErrorHandle::raise(code as u32, c_string(&error.message))
    }

    pub(crate) fn raise(code: u32, message: CString) -> *mut abi::TRITONSERVER_Error {
        into_handle(Box::new(ErrorHandle {
            tag: HandleTag::default(),
            code,
            message,
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
    fn a_handle_of_another_kind_is_refused() {
        let error = ErrorHandle::from_error(Error::not_found("no such thing"));
        let refused = "message is not a live handle of its kind";
        // SAFETY: the error is live until it is taken, and its memory is readable at every address
        // asked for.
        unsafe {
            let wrong: *mut abi::TRITONSERVER_Message = error.cast();
            assert_eq!(borrow(wrong).err().unwrap().message, refused);
            assert_eq!(borrow_mut(wrong).err().unwrap().message, refused);
            assert_eq!(take(wrong).err().unwrap().message, refused);
            let odd: *mut abi::TRITONSERVER_Error = error.byte_add(1);
            assert!(borrow(odd).is_err(), "an address inside of an object");
            assert_eq!(take(error).unwrap().to_error().message, "no such thing");
        }
    }

    #[test]
    fn what_nobody_takes_is_dropped() {
        use crate::objects::JsonMessage;
        // SAFETY: null is allowed, the other target is writable, and what it gets is taken once.
        unsafe {
            let mut given: *mut abi::TRITONSERVER_Message = ptr::null_mut();
            let nowhere: *mut *mut abi::TRITONSERVER_Message = ptr::null_mut();
            assert!(write_handle(nowhere, Box::new(JsonMessage::new("{}"))).is_err());
            write_handle(&raw mut given, Box::new(JsonMessage::new("{}"))).unwrap();
            assert_eq!(take(given).unwrap().as_bytes(), b"{}");
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
