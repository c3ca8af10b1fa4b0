//! Named values.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use conch_abi as abi;

use crate::boundary::{delete, guard_value, into_handle};
use crate::objects::{Parameter, Value};

/// # Safety
/// `name` ends with NUL; `value` points to what `kind` says: characters that end with NUL, an `int64_t`, a `bool`, a `double`.
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
                    Value::Text(CStr::from_ptr(value.cast()).to_owned())
                }
                abi::TRITONSERVER_PARAMETER_INT => Value::Int(value.cast::<i64>().read_unaligned()),
                abi::TRITONSERVER_PARAMETER_BOOL => Value::Bool(value.cast::<u8>().read() != 0),
                abi::TRITONSERVER_PARAMETER_DOUBLE => {
                    Value::Double(value.cast::<f64>().read_unaligned())
                }
                _ => return ptr::null_mut(),
            }
        };
        // SAFETY: non-null, and ends with NUL by this function's contract.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        into_handle(Box::new(Parameter::new(name, value)))
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
        into_handle(Box::new(Parameter::new(name, Value::Bytes(byte_ptr, size))))
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
