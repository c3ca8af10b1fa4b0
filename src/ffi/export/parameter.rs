//! Named values: those that callers make, and those of a request or a response that they read.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use conch_abi as abi;
use conch_engine::Error;

use crate::boundary::{delete, guard_value, into_handle, write};
use crate::host::{BackendParameter, BackendParameterValue};
use crate::objects::{NamedParameter, NamedValue};

/// Where a caller wants a parameter's name, its type and the address of its value.
type ParameterTargets = (
    *mut *const c_char,
    *mut abi::TRITONSERVER_ParameterType,
    *mut *const c_void,
);

/// Hands out the parameter at `index`; `owner` is what has `parameters`. The addresses hold as long
/// as they do.
///
/// # Errors
/// INVALID_ARG past the last, and for a target that is null.
///
/// # Safety
/// Each target is null or writable.
pub(super) unsafe fn write_parameter(
    parameters: &[BackendParameter],
    owner: &str,
    index: u32,
    (name, kind, value): ParameterTargets,
) -> Result<(), Error> {
    let place = usize::try_from(index).unwrap_or(usize::MAX);
    let Some(parameter) = parameters.get(place) else {
        let count = parameters.len();
        return Err(Error::invalid(format!(
            "out of bounds index {index}: {owner} has {count} parameters"
        )));
    };
    let kind_of_value = match parameter.value {
        BackendParameterValue::Text(_) => abi::TRITONSERVER_PARAMETER_STRING,
        BackendParameterValue::Int(_) => abi::TRITONSERVER_PARAMETER_INT,
        BackendParameterValue::Bool(_) => abi::TRITONSERVER_PARAMETER_BOOL,
        BackendParameterValue::Double(_) => abi::TRITONSERVER_PARAMETER_DOUBLE,
    };
    // SAFETY: by this function's contract.
    unsafe {
        write(name, parameter.name.as_ptr())?;
        write(kind, kind_of_value)?;
        write(value, parameter.value.address())
    }
}

/// # Safety
/// `name` ends with NUL; `value` points to what `kind` says: characters that end with NUL, an
/// `int64_t`, a `bool`, a `double`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterNew(
    name: *const c_char,
    kind: abi::TRITONSERVER_ParameterType,
    value: *const c_void,
) -> *mut abi::TRITONSERVER_Parameter {
    guard_value(ptr::null_mut(), || {
        if name.is_null() || value.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: non-null, and of the type that `kind` says by this function's contract.
        let value = unsafe {
            match kind {
                abi::TRITONSERVER_PARAMETER_STRING => {
                    NamedValue::Text(CStr::from_ptr(value.cast()).to_owned())
                }
                abi::TRITONSERVER_PARAMETER_INT => {
                    NamedValue::Int(value.cast::<i64>().read_unaligned())
                }
                abi::TRITONSERVER_PARAMETER_BOOL => {
                    NamedValue::Bool(value.cast::<u8>().read() != 0)
                }
                abi::TRITONSERVER_PARAMETER_DOUBLE => {
                    NamedValue::Double(value.cast::<f64>().read_unaligned())
                }
                _ => return ptr::null_mut(),
            }
        };
        // SAFETY: non-null, and ends with NUL by this function's contract.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        into_handle(Box::new(NamedParameter::new(name, value)))
    })
}

/// # Safety
/// `name` ends with NUL; `byte_ptr` has `size` readable bytes for as long as the parameter lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterBytesNew(
    name: *const c_char,
    byte_ptr: *const c_void,
    size: u64,
) -> *mut abi::TRITONSERVER_Parameter {
    guard_value(ptr::null_mut(), || {
        if name.is_null() || (byte_ptr.is_null() && size > 0) {
            return ptr::null_mut();
        }
        // SAFETY: non-null, and ends with NUL by this function's contract.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        into_handle(Box::new(NamedParameter::new(
            name,
            NamedValue::Bytes(byte_ptr, size),
        )))
    })
}

/// # Safety
/// `parameter` is null or owned by the caller, who does not use it again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ParameterDelete(parameter: *mut abi::TRITONSERVER_Parameter) {
    guard_value((), || {
        // SAFETY: by this function's contract. There is no way to tell an error.
        let _ = unsafe { delete(parameter) };
    });
}
