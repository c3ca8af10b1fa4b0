//! Responses of other models.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{self, NonNull};
use std::slice;

use conch_abi as abi;

use super::memory::{Allocation, TensorMemory};
use crate::input::borrow;
use crate::parameter::{Parameter, ParameterValue};
use crate::{DataType, Error};

/// A response of a called model. It is the holder's; memory of outputs is given back with the last
/// reference to it.
#[derive(Clone, Debug)]
pub struct ServerResponse {
    pub model_name: String,
    pub model_version: i64,
    /// The id of the request.
    pub id: CString,
    pub parameters: Vec<(CString, ParameterValue)>,
    pub outputs: Vec<ServerOutput>,
}

impl ServerResponse {
    /// An output by its name.
    pub fn output(&self, name: &CStr) -> Option<&ServerOutput> {
        self.outputs.iter().find(|output| *output.name == *name)
    }
}

/// One output of a response.
#[derive(Clone, Debug)]
pub struct ServerOutput {
    pub name: CString,
    pub data_type: DataType,
    pub shape: Vec<i64>,
    /// As many bytes as the output has.
    pub memory: TensorMemory,
}

/// The server's object of a response. Deleted on drop.
pub(super) struct ResponseHandle(NonNull<abi::TRITONSERVER_InferenceResponse>);

impl ResponseHandle {
    /// None for null.
    ///
    /// # Safety
    /// `raw` is null or a response that is ours.
    pub(super) unsafe fn new(raw: *mut abi::TRITONSERVER_InferenceResponse) -> Option<Self> {
        NonNull::new(raw).map(ResponseHandle)
    }

    /// Takes out what the response says, and deletes it.
    ///
    /// # Errors
    /// The error that it stands for; otherwise whatever the server reports.
    pub(super) fn into_response(self) -> Result<ServerResponse, Error> {
        // SAFETY: the response is live; the error stays its own.
        let error = unsafe {
            let error = abi::TRITONSERVER_InferenceResponseError(self.0.as_ptr());
            (!error.is_null()).then(|| Error::copy(error))
        };
        if let Some(error) = error {
            return Err(error);
        }
        let (model_name, model_version) = self.model()?;
        Ok(ServerResponse {
            model_name,
            model_version,
            id: self.id()?,
            parameters: self.parameters()?,
            outputs: self.outputs()?,
        })
    }

    fn model(&self) -> Result<(String, i64), Error> {
        let mut name: *const c_char = ptr::null();
        let mut version = 0;
        // SAFETY: the response is live, the results writable; the name is NUL-terminated and lives
        // as long as the response.
        unsafe {
            Error::check(abi::TRITONSERVER_InferenceResponseModel(
                self.0.as_ptr(),
                &raw mut name,
                &raw mut version,
            ))?;
            Ok((borrow(name).to_string_lossy().into_owned(), version))
        }
    }

    fn id(&self) -> Result<CString, Error> {
        let mut id: *const c_char = ptr::null();
        // SAFETY: as above.
        unsafe {
            Error::check(abi::TRITONSERVER_InferenceResponseId(
                self.0.as_ptr(),
                &raw mut id,
            ))?;
            Ok(borrow(id).to_owned())
        }
    }

    fn parameters(&self) -> Result<Vec<(CString, ParameterValue)>, Error> {
        let mut count = 0;
        // SAFETY: the response is live, the result writable.
        unsafe {
            Error::check(abi::TRITONSERVER_InferenceResponseParameterCount(
                self.0.as_ptr(),
                &raw mut count,
            ))?;
        }
        (0..count).map(|index| self.parameter(index)).collect()
    }

    fn parameter(&self, index: u32) -> Result<(CString, ParameterValue), Error> {
        let mut name: *const c_char = ptr::null();
        let mut kind = 0;
        let mut value: *const c_void = ptr::null();
        // SAFETY: the response is live, the results writable; name and value live as long as the
        // response, and the value is of its kind.
        unsafe {
            Error::check(abi::TRITONSERVER_InferenceResponseParameter(
                self.0.as_ptr(),
                index,
                &raw mut name,
                &raw mut kind,
                &raw mut value,
            ))?;
            let value = Parameter::read(kind, value)?;
            Ok((borrow(name).to_owned(), value.into()))
        }
    }

    fn outputs(&self) -> Result<Vec<ServerOutput>, Error> {
        let mut count = 0;
        // SAFETY: the response is live, the result writable.
        unsafe {
            Error::check(abi::TRITONSERVER_InferenceResponseOutputCount(
                self.0.as_ptr(),
                &raw mut count,
            ))?;
        }
        (0..count).map(|index| self.output(index)).collect()
    }

    fn output(&self, index: u32) -> Result<ServerOutput, Error> {
        let mut name: *const c_char = ptr::null();
        let mut data_type = 0;
        let mut shape: *const i64 = ptr::null();
        let mut dim_count = 0;
        let mut base: *const c_void = ptr::null();
        let mut byte_count = 0;
        let (mut memory_type, mut memory_type_id) = (0, 0);
        let mut userp = ptr::null_mut();
        // SAFETY: the response is live, the results writable.
        unsafe {
            Error::check(abi::TRITONSERVER_InferenceResponseOutput(
                self.0.as_ptr(),
                index,
                &raw mut name,
                &raw mut data_type,
                &raw mut shape,
                &raw mut dim_count,
                &raw mut base,
                &raw mut byte_count,
                &raw mut memory_type,
                &raw mut memory_type_id,
                &raw mut userp,
            ))?;
        }
        // SAFETY: NUL-terminated, lives as long as the response.
        let name = unsafe { borrow(name) }.to_owned();
        // SAFETY: what our allocator attached to the output, or null, until the response is
        // deleted.
        let memory = unsafe { Allocation::read(userp) };
        let rank = usize::try_from(dim_count).unwrap_or(0);
        let shape = if rank == 0 || shape.is_null() {
            Vec::new()
        } else {
            // SAFETY: the server's array of that many dimensions, which lives as long as the
            // response.
            unsafe { slice::from_raw_parts(shape, rank) }.to_vec()
        };
        let data_type = DataType::from_raw(data_type).ok_or_else(|| {
            Error::unsupported(format!("output with the unknown data type {data_type}"))
        })?;
        Ok(ServerOutput {
            memory: placed(memory, base, byte_count, &name)?,
            name,
            data_type,
            shape,
        })
    }
}

/// The memory that was given for an output, as far as it is filled.
fn placed(
    memory: Option<TensorMemory>,
    base: *const c_void,
    byte_count: usize,
    name: &CStr,
) -> Result<TensorMemory, Error> {
    if byte_count == 0 {
        return Ok(TensorMemory::empty());
    }
    memory
        .filter(|memory| memory.address().cast_const().cast() == base)
        .and_then(|memory| memory.first(byte_count))
        .ok_or_else(|| {
            Error::internal(format!(
                "output '{}' lies elsewhere than in the memory given for it",
                name.to_string_lossy()
            ))
        })
}

impl Drop for ResponseHandle {
    fn drop(&mut self) {
        // SAFETY: ours, and used by nobody afterwards; outputs that were taken out have references
        // of their own to their memory.
        let deleted =
            unsafe { Error::check(abi::TRITONSERVER_InferenceResponseDelete(self.0.as_ptr())) };
        if let Err(error) = deleted {
            crate::error!("failed to delete a response: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_lie_in_the_memory_given_for_them() {
        let memory = TensorMemory::from(b"abcdef".to_vec());
        let base = memory.address().cast_const().cast::<c_void>();
        let elsewhere = base.wrapping_byte_add(1);
        let check = |memory: Option<&TensorMemory>, base, count| {
            placed(memory.cloned(), base, count, c"OUT")
                .map(|memory| memory.bytes().unwrap().to_vec())
                .map_err(|error| error.message().to_owned())
        };
        let refused = Err("output 'OUT' lies elsewhere than in the memory given for it".to_owned());
        for (memory, base, count, expected) in [
            (Some(&memory), base, 6, Ok(b"abcdef".to_vec())),
            (Some(&memory), base, 2, Ok(b"ab".to_vec())),
            (None, base, 0, Ok(Vec::new())),
            (Some(&memory), base, 7, refused.clone()),
            (Some(&memory), elsewhere, 2, refused.clone()),
            (None, base, 2, refused.clone()),
        ] {
            assert_eq!(check(memory, base, count), expected);
        }
    }
}
