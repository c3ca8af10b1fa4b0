//! Names, types and shapes of the tensors that a loaded model takes and makes.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use conch_backend_sdk::Error;
use conch_backend_sdk::engine::{Signature, TensorInfo};

use super::raw_session::RawSession;
use super::runtime::Runtime;
use super::table::{OrtAllocator, OrtSession, OrtTypeInfo, Status};
use super::value::data_type_from_onnx;

/// `ONNX_TYPE_TENSOR`.
const ONNX_TYPE_TENSOR: c_int = 1;

/// What the model takes and makes.
///
/// # Errors
/// `Internal` with ONNX Runtime's own words; `Unsupported` if an input or output is no tensor that
/// Triton knows.
pub(super) fn read_signature(session: &RawSession) -> Result<Signature, Error> {
    let table = &session.runtime.table;
    Ok(Signature {
        inputs: read_infos(
            session,
            table.input_count,
            table.input_name,
            table.input_type,
        )?,
        outputs: read_infos(
            session,
            table.output_count,
            table.output_name,
            table.output_type,
        )?,
        initializers: read_infos(
            session,
            table.initializer_count,
            table.initializer_name,
            table.initializer_type,
        )?,
    })
}

fn read_infos(
    session: &RawSession,
    count_of: unsafe extern "C" fn(*const OrtSession, *mut usize) -> Status,
    name_of: unsafe extern "C" fn(
        *const OrtSession,
        usize,
        *mut OrtAllocator,
        *mut *mut c_char,
    ) -> Status,
    type_of: unsafe extern "C" fn(*const OrtSession, usize, *mut *mut OrtTypeInfo) -> Status,
) -> Result<Vec<TensorInfo>, Error> {
    let table = &session.runtime.table;
    let mut count = 0;
    // SAFETY: the session is live, the result writable.
    unsafe { table.check(count_of(session.raw.as_ptr(), &raw mut count))? };
    (0..count)
        .map(|index| {
            let mut name = ptr::null_mut();
            let mut type_info = ptr::null_mut();
            // SAFETY: the session is live, the index in range, the results writable; the name
            // is allocated for us, NUL-terminated, and freed after it was copied; the type
            // information is owned by the wrapper.
            unsafe {
                table.check(name_of(
                    session.raw.as_ptr(),
                    index,
                    session.runtime.allocator.as_ptr(),
                    &raw mut name,
                ))?;
                let owned = CStr::from_ptr(name).to_owned();
                table.check((table.allocator_free)(
                    session.runtime.allocator.as_ptr(),
                    name.cast(),
                ))?;
                table.check(type_of(session.raw.as_ptr(), index, &raw mut type_info))?;
                let type_info = TypeInfo {
                    runtime: &session.runtime,
                    raw: type_info,
                };
                type_info.tensor(owned)
            }
        })
        .collect()
}

struct TypeInfo<'r> {
    runtime: &'r Runtime,
    raw: *mut OrtTypeInfo,
}

impl TypeInfo<'_> {
    fn tensor(&self, name: CString) -> Result<TensorInfo, Error> {
        let table = &self.runtime.table;
        let mut kind = 0;
        let mut tensor = ptr::null();
        // SAFETY: the type information is live, the results writable; the cast borrows from it.
        let (element, dims) = unsafe {
            table.check((table.onnx_type)(self.raw, &raw mut kind))?;
            if kind != ONNX_TYPE_TENSOR {
                return Err(Error::unsupported(format!(
                    "Unsupported ONNX Type '{}' for I/O '{}', expected 'ONNX_TYPE_TENSOR'.",
                    onnx_type_name(kind),
                    name.to_string_lossy()
                )));
            }
            table.check((table.cast_to_tensor_info)(self.raw, &raw mut tensor))?;
            self.runtime.table.shape_of(tensor)?
        };
        let data_type = data_type_from_onnx(element).ok_or_else(|| {
            Error::unsupported(format!(
                "unsupported ONNX element type {element} of I/O '{}'",
                name.to_string_lossy()
            ))
        })?;
        Ok(TensorInfo {
            name,
            data_type,
            // Unknown dimensions come as -1; older libraries also say 0 for some symbolic ones,
            // which no tensor of use has.
            dims: dims
                .iter()
                .map(|&dim| if dim > 0 { dim } else { -1 })
                .collect(),
        })
    }
}

impl Drop for TypeInfo<'_> {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { (self.runtime.table.release_type_info)(self.raw) };
    }
}

fn onnx_type_name(kind: c_int) -> &'static str {
    match kind {
        1 => "ONNX_TYPE_TENSOR",
        2 => "ONNX_TYPE_SEQUENCE",
        3 => "ONNX_TYPE_MAP",
        4 => "ONNX_TYPE_OPAQUE",
        5 => "ONNX_TYPE_SPARSETENSOR",
        6 => "ONNX_TYPE_OPTIONAL",
        _ => "ONNX_TYPE_UNKNOWN",
    }
}
