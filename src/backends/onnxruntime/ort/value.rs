//! Tensors as ONNX Runtime sees them.

use std::borrow::Cow;
use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Contents, Feed, OutputData};
use sdk::{
    Buffer, DataType, Error, MemorySource, MemoryTarget, TensorBytes, element_count, shape_text,
};

use super::gpu_memory::GpuMemoryInfo;
use super::runtime::Runtime;
use super::table::{OrtMemoryInfo, OrtValue};

/// A tensor owned by this wrapper. Its data is ONNX Runtime's, or borrowed memory during `'m`.
pub struct Value<'m> {
    runtime: Arc<Runtime>,
    raw: NonNull<OrtValue>,
    /// The GPU that its data lies on; none: main memory.
    device: Option<i32>,
    memory: PhantomData<&'m [u8]>,
}

// SAFETY: a tensor may be read and released on any thread, by one at a time; borrowed memory may be
// used from any, as references to bytes.
unsafe impl Send for Value<'_> {}

impl<'m> Value<'m> {
    /// A tensor over a feed's bytes; strings are copied, since ONNX Runtime keeps them as C++
    /// strings.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes do not fit the shape; `Internal` with ONNX Runtime's own
    /// words.
    pub(super) fn borrow(runtime: &Arc<Runtime>, feed: &Feed<'m>) -> Result<Self, Error> {
        if feed.data_type == DataType::Bytes {
            return Self::strings(runtime, feed);
        }
        let bytes = feed.host()?;
        // ONNX Runtime only reads the memory of inputs, though its type says otherwise.
        let data = bytes.as_ptr().cast_mut().cast::<c_void>();
        let (data_type, shape, place) = (feed.data_type, feed.shape, runtime.memory_info);
        // SAFETY: the memory lives during `'m`.
        unsafe { Self::with_data(runtime, place, data_type, shape, data, bytes.len()) }
    }

    /// A tensor over a feed's bytes on a GPU.
    ///
    /// # Errors
    /// As [`borrow`](Self::borrow).
    pub(super) fn borrow_on_device(
        memory: &GpuMemoryInfo,
        feed: &Feed<'m>,
        bytes: MemorySource<'m>,
    ) -> Result<Self, Error> {
        let data = device_pointer(bytes.address());
        let (runtime, data_type, shape) = (&memory.runtime, feed.data_type, feed.shape);
        // SAFETY: the memory lives during `'m`.
        unsafe { Self::with_data(runtime, memory.raw, data_type, shape, data, bytes.len()) }
    }

    /// A tensor over memory for an output, on a GPU.
    ///
    /// # Errors
    /// As [`borrow`](Self::borrow).
    pub(super) fn over_on_device(
        memory: &GpuMemoryInfo,
        data_type: DataType,
        shape: &[i64],
        target: &'m mut MemoryTarget<'_>,
    ) -> Result<Self, Error> {
        let data = device_pointer(target.address());
        let runtime = &memory.runtime;
        // SAFETY: the memory lives and is the session's to write during `'m`.
        unsafe { Self::with_data(runtime, memory.raw, data_type, shape, data, target.len()) }
    }

    /// A tensor over memory for an output.
    ///
    /// # Errors
    /// As [`borrow`](Self::borrow).
    pub(super) fn over(
        runtime: &Arc<Runtime>,
        data_type: DataType,
        shape: &[i64],
        memory: &'m mut Buffer<'_>,
    ) -> Result<Self, Error> {
        // SAFETY: the memory lives and is writable during `'m`.
        unsafe {
            Self::with_data(
                runtime,
                runtime.memory_info,
                data_type,
                shape,
                memory.as_mut_ptr().cast(),
                memory.len(),
            )
        }
    }

    /// # Safety
    /// `raw` is a tensor with memory of its own that the caller gives away.
    pub(super) unsafe fn own(runtime: &Arc<Runtime>, raw: NonNull<OrtValue>) -> Value<'static> {
        Value {
            runtime: Arc::clone(runtime),
            raw,
            device: None,
            memory: PhantomData,
        }
    }

    /// The same, whose data lies on a GPU.
    pub(super) fn on_device(mut self, device: i32) -> Self {
        self.device = Some(device);
        self
    }

    pub(super) fn as_ptr(&self) -> *mut OrtValue {
        self.raw.as_ptr()
    }

    /// Element type and shape.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words; `Unsupported` if Triton has no such element type.
    fn shape(&self) -> Result<(DataType, Vec<i64>), Error> {
        let table = &self.runtime.table;
        let mut info = ptr::null_mut();
        // SAFETY: the value is live, the result writable; the information is ours and released
        // after it was read.
        let (element, shape) = unsafe {
            table.check((table.tensor_info)(self.as_ptr(), &raw mut info))?;
            let read = table.shape_of(info);
            (table.release_tensor_info)(info);
            read?
        };
        let data_type = data_type_from_onnx(element).ok_or_else(|| {
            Error::unsupported(format!("output with the ONNX element type {element}"))
        })?;
        Ok((data_type, shape))
    }

    /// Type, shape and bytes of an output, where it lies.
    ///
    /// # Errors
    /// `Internal` with ONNX Runtime's own words; `Unsupported` if Triton has no such element type.
    pub fn contents(&self) -> Result<Contents<'_>, Error> {
        let (data_type, shape) = self.shape()?;
        let data = if data_type == DataType::Bytes {
            self.string_bytes(&shape)?.into()
        } else {
            let byte_count = data_type.byte_count(&shape).ok_or_else(without_size)?;
            self.bytes(byte_count)?
        };
        Ok(Contents {
            data_type,
            shape,
            data,
        })
    }

    /// The bytes of a tensor that has so many of them, and no strings.
    fn bytes(&self, byte_count: usize) -> Result<OutputData<'_>, Error> {
        let table = &self.runtime.table;
        let mut data: *mut c_void = ptr::null_mut();
        if byte_count > 0 {
            // SAFETY: the value is live and holds no strings, the result is writable.
            unsafe { table.check((table.tensor_data)(self.as_ptr(), &raw mut data))? };
            if data.is_null() {
                return Err(Error::internal("ONNX Runtime gave an output without data"));
            }
        }
        Ok(match self.device {
            // SAFETY: memory of that GPU with so many bytes, which lives as long as the value.
            Some(device) => OutputData::Device(unsafe {
                MemorySource::on_device(data.addr() as u64, byte_count, device)
            }),
            None if byte_count == 0 => OutputData::Host(Cow::Borrowed(&[])),
            // SAFETY: main memory with so many bytes, which lives as long as the value.
            None => unsafe { slice::from_raw_parts(data.cast::<u8>(), byte_count) }.into(),
        })
    }

    /// The elements of a string tensor, each behind its length, as on Triton's wire.
    fn string_bytes(&self, shape: &[i64]) -> Result<Vec<u8>, Error> {
        let count = element_count(shape).ok_or_else(without_size)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let table = &self.runtime.table;
        let mut total = 0;
        // SAFETY: the value is live, the result writable.
        unsafe {
            table.check((table.string_tensor_bytes)(self.as_ptr(), &raw mut total))?;
        }
        let mut content = zeros::<u8>(total)?;
        let mut offsets = zeros::<usize>(count)?;
        // SAFETY: the value is live, the arrays have the lengths given.
        unsafe {
            table.check((table.string_tensor_content)(
                self.as_ptr(),
                content.as_mut_ptr().cast(),
                content.len(),
                offsets.as_mut_ptr(),
                offsets.len(),
            ))?;
        }
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(total + 4 * count)
            .map_err(|_| Error::out_of_memory(total))?;
        for (index, &start) in offsets.iter().enumerate() {
            let end = offsets.get(index + 1).copied().unwrap_or(total);
            let element = content
                .get(start..end)
                .ok_or_else(|| Error::internal("ONNX Runtime gave bad string offsets"))?;
            let length = u32::try_from(element.len())
                .map_err(|_| Error::unsupported("a string of 4 GiB or more in an output"))?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(element);
        }
        Ok(bytes)
    }

    /// # Safety
    /// `data` has `byte_count` bytes in the memory that `place` describes, which live during `'m`,
    /// writable if the tensor is an output.
    unsafe fn with_data(
        runtime: &Arc<Runtime>,
        place: NonNull<OrtMemoryInfo>,
        data_type: DataType,
        shape: &[i64],
        data: *mut c_void,
        byte_count: usize,
    ) -> Result<Self, Error> {
        if data_type.byte_count(shape) != Some(byte_count) {
            return Err(Error::invalid(format!(
                "{byte_count} bytes do not make a {} tensor of shape {}",
                data_type.name(),
                shape_text(shape)
            )));
        }
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the size fits type and shape by the check; the shape is copied; the result is
        // writable.
        unsafe {
            table.check((table.create_tensor_with_data)(
                place.as_ptr(),
                data,
                byte_count,
                shape.as_ptr(),
                shape.len(),
                data_type_to_onnx(data_type),
                &raw mut raw,
            ))?;
        }
        Self::wrap(runtime, raw)
    }

    fn strings(runtime: &Arc<Runtime>, feed: &Feed<'_>) -> Result<Self, Error> {
        let count = element_count(feed.shape)
            .ok_or_else(|| Error::invalid("a string tensor with an impossible shape"))?;
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the allocator is ONNX Runtime's; the shape is copied; the result is writable.
        unsafe {
            table.check((table.create_tensor)(
                runtime.allocator.as_ptr(),
                feed.shape.as_ptr(),
                feed.shape.len(),
                data_type_to_onnx(DataType::Bytes),
                &raw mut raw,
            ))?;
        }
        let value = Self::wrap(runtime, raw)?;
        let mut rest = feed.host()?;
        for index in 0..count {
            let element = split_string(&mut rest).ok_or_else(|| {
                Error::invalid(format!(
                    "unexpected number of string elements {index} for inference input '{}', \
                     expecting {count}",
                    feed.name.to_string_lossy()
                ))
            })?;
            let mut buffer: *mut c_char = ptr::null_mut();
            // SAFETY: the value is a string tensor with that element; the buffer has as many bytes
            // as asked for, written at once.
            unsafe {
                table.check((table.resized_string_element)(
                    value.as_ptr(),
                    index,
                    element.len(),
                    &raw mut buffer,
                ))?;
                if !element.is_empty() {
                    element.copy_to_address(buffer.cast());
                }
            }
        }
        if !rest.is_empty() {
            return Err(Error::invalid(format!(
                "unexpected additional data for inference input '{}': more than {count} string \
                 elements",
                feed.name.to_string_lossy()
            )));
        }
        Ok(value)
    }

    fn wrap(runtime: &Arc<Runtime>, raw: *mut OrtValue) -> Result<Self, Error> {
        Ok(Value {
            runtime: Arc::clone(runtime),
            raw: NonNull::new(raw).ok_or_else(|| Error::internal("ONNX Runtime gave no tensor"))?,
            device: None,
            memory: PhantomData,
        })
    }
}

impl Drop for Value<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; borrowed memory is not freed by this.
        unsafe { (self.runtime.table.release_value)(self.raw.as_ptr()) };
    }
}

/// An address on a GPU as the C API takes it. It is never dereferenced here.
fn device_pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0))
}

fn without_size() -> Error {
    Error::internal("an output without a size")
}

/// Takes one element off the front of a BYTES tensor.
fn split_string<'b>(rest: &mut TensorBytes<'b>) -> Option<TensorBytes<'b>> {
    // Read once: the bytes may change.
    let length = u32::from_le_bytes(rest.read(0)?);
    let (_, behind) = rest.split_at_checked(4)?;
    let (element, behind) = behind.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = behind;
    Some(element)
}

/// `ONNXTensorElementDataType` to Triton's data type.
pub(crate) fn data_type_from_onnx(element: c_int) -> Option<DataType> {
    DataType::ALL
        .into_iter()
        .find(|&data_type| data_type_to_onnx(data_type) == element)
}

/// Triton's data type to `ONNXTensorElementDataType`, whose numbers are also those of
/// `TensorProto.DataType` in model files.
pub(crate) fn data_type_to_onnx(data_type: DataType) -> c_int {
    match data_type {
        DataType::Fp32 => 1,
        DataType::Uint8 => 2,
        DataType::Int8 => 3,
        DataType::Uint16 => 4,
        DataType::Int16 => 5,
        DataType::Int32 => 6,
        DataType::Int64 => 7,
        DataType::Bytes => 8,
        DataType::Bool => 9,
        DataType::Fp16 => 10,
        DataType::Fp64 => 11,
        DataType::Uint32 => 12,
        DataType::Uint64 => 13,
        DataType::Bf16 => 16,
    }
}

/// So many zeros; how many is up to the model and its inputs.
fn zeros<T: Clone + Default>(count: usize) -> Result<Vec<T>, Error> {
    let mut zeros = Vec::new();
    zeros
        .try_reserve_exact(count)
        .map_err(|_| Error::out_of_memory(count.saturating_mul(size_of::<T>())))?;
    zeros.resize(count, T::default());
    Ok(zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_map_both_ways() {
        for data_type in DataType::ALL {
            assert_eq!(
                data_type_from_onnx(data_type_to_onnx(data_type)),
                Some(data_type)
            );
        }
        // Undefined, the complex types, and 8-bit floats.
        for element in [0, 14, 15, 17, 20, -1] {
            assert_eq!(data_type_from_onnx(element), None);
        }
    }

    #[test]
    fn takes_strings_off_the_front() {
        let mut rest = TensorBytes::from(b"\x02\0\0\0ab\0\0\0\0\x05\0\0\0abc");
        let mut next = || split_string(&mut rest).map(|element| element.to_vec());
        assert_eq!(next().as_deref(), Some(&b"ab"[..]));
        assert_eq!(next().as_deref(), Some(&b""[..]));
        assert_eq!(next(), None);
        assert!(split_string(&mut TensorBytes::from(b"\x01\0")).is_none());
    }
}
