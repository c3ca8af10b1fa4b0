//! Custom parameters of requests and responses, and the server's parameter objects.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use conch_abi as abi;

use crate::Error;
use crate::error::c_string;

/// A custom parameter's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Parameter<'b> {
    Text(&'b CStr),
    Integer(i64),
    Boolean(bool),
    Number(f64),
}

impl<'b> Parameter<'b> {
    /// The value that the server shows as a kind and a pointer.
    ///
    /// # Errors
    /// `Unsupported` for a kind of value that this SDK does not know; `Internal` without a value.
    ///
    /// # Safety
    /// `value` is null, or points at a value of the kind that lives during `'b` (a text parameter
    /// is the NUL-terminated text itself).
    pub(crate) unsafe fn read(
        kind: abi::TRITONSERVER_ParameterType,
        value: *const c_void,
    ) -> Result<Self, Error> {
        if value.is_null() {
            return Err(Error::internal("parameter without a value"));
        }
        // SAFETY: non-null by the check; of its kind by this function's contract.
        unsafe {
            match kind {
                abi::TRITONSERVER_PARAMETER_STRING => {
                    Ok(Parameter::Text(CStr::from_ptr(value.cast())))
                }
                abi::TRITONSERVER_PARAMETER_INT => {
                    Ok(Parameter::Integer(value.cast::<i64>().read_unaligned()))
                }
                abi::TRITONSERVER_PARAMETER_BOOL => {
                    Ok(Parameter::Boolean(value.cast::<u8>().read() != 0))
                }
                abi::TRITONSERVER_PARAMETER_DOUBLE => {
                    Ok(Parameter::Number(value.cast::<f64>().read_unaligned()))
                }
                other => Err(Error::unsupported(format!(
                    "unknown type {other} of a parameter"
                ))),
            }
        }
    }
}

/// A custom parameter's value that belongs to its holder.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    Text(CString),
    Integer(i64),
    Boolean(bool),
    Number(f64),
}

impl ParameterValue {
    pub fn borrow(&self) -> Parameter<'_> {
        match self {
            ParameterValue::Text(text) => Parameter::Text(text),
            ParameterValue::Integer(value) => Parameter::Integer(*value),
            ParameterValue::Boolean(value) => Parameter::Boolean(*value),
            ParameterValue::Number(value) => Parameter::Number(*value),
        }
    }
}

impl From<Parameter<'_>> for ParameterValue {
    fn from(value: Parameter<'_>) -> Self {
        match value {
            Parameter::Text(text) => ParameterValue::Text(text.to_owned()),
            Parameter::Integer(value) => ParameterValue::Integer(value),
            Parameter::Boolean(value) => ParameterValue::Boolean(value),
            Parameter::Number(value) => ParameterValue::Number(value),
        }
    }
}

/// A parameter object of the server's: a label of a metric, or what a load is given. Freed on drop.
pub(crate) struct RawParameter<'b> {
    raw: NonNull<abi::TRITONSERVER_Parameter>,
    bytes: PhantomData<&'b [u8]>,
}

impl<'b> RawParameter<'b> {
    /// A text, which is copied.
    pub(crate) fn text(name: &str, value: &str) -> Result<RawParameter<'static>, Error> {
        let (name, value) = (c_string(name), c_string(value));
        // SAFETY: both texts are NUL-terminated and copied.
        let raw = unsafe {
            abi::TRITONSERVER_ParameterNew(
                name.as_ptr(),
                abi::TRITONSERVER_PARAMETER_STRING,
                value.as_ptr().cast::<c_void>(),
            )
        };
        // SAFETY: null or ours, with a value of its own.
        unsafe { RawParameter::new(raw) }
    }

    /// Bytes, which stay borrowed.
    pub(crate) fn bytes(name: &str, bytes: &'b [u8]) -> Result<Self, Error> {
        let name = c_string(name);
        // SAFETY: the name is NUL-terminated and copied; the bytes live as long as the parameter.
        let raw = unsafe {
            abi::TRITONSERVER_ParameterBytesNew(
                name.as_ptr(),
                bytes.as_ptr().cast::<c_void>(),
                bytes.len() as u64,
            )
        };
        // SAFETY: null or ours, borrowing the bytes.
        unsafe { RawParameter::new(raw) }
    }

    /// # Safety
    /// `raw` is null or a parameter that nobody else frees, of bytes that live during `'b`.
    unsafe fn new(raw: *mut abi::TRITONSERVER_Parameter) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null parameter"))?;
        Ok(RawParameter {
            raw,
            bytes: PhantomData,
        })
    }

    /// For arrays of parameters, which the server reads during a call.
    pub(crate) fn as_ptr(&self) -> *const abi::TRITONSERVER_Parameter {
        self.raw.as_ptr().cast_const()
    }
}

impl Drop for RawParameter<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody afterwards.
        unsafe { abi::TRITONSERVER_ParameterDelete(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn values_are_read_by_their_kind() {
        let (integer, boolean, number) = (-7_i64, true, 0.5_f64);
        let address = |value: &dyn std::any::Any| ptr::from_ref(value).cast::<c_void>();
        for (kind, value, expected) in [
            (
                abi::TRITONSERVER_PARAMETER_STRING,
                c"text".as_ptr().cast(),
                Parameter::Text(c"text"),
            ),
            (
                abi::TRITONSERVER_PARAMETER_INT,
                address(&integer),
                Parameter::Integer(-7),
            ),
            (
                abi::TRITONSERVER_PARAMETER_BOOL,
                address(&boolean),
                Parameter::Boolean(true),
            ),
            (
                abi::TRITONSERVER_PARAMETER_DOUBLE,
                address(&number),
                Parameter::Number(0.5),
            ),
        ] {
            // SAFETY: each value is of its kind and outlives the reads.
            let read = unsafe { Parameter::read(kind, value) };
            assert_eq!(read, Ok(expected));
            assert_eq!(ParameterValue::from(expected).borrow(), expected);
        }
        let bytes = abi::TRITONSERVER_PARAMETER_BYTES;
        for (kind, value, expected) in [
            (bytes, c"".as_ptr().cast(), "unknown type 4 of a parameter"),
            (0, ptr::null(), "parameter without a value"),
        ] {
            // SAFETY: null, or of a kind that is not read.
            let error = unsafe { Parameter::read(kind, value) }.unwrap_err();
            assert_eq!(error.message(), expected);
        }
    }
}
