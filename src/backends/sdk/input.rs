//! Inputs of requests.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use conch_abi as abi;
use conch_memory::MemoryPlace;

use crate::device::{MemorySource, place_of, raw_kind};
use crate::slot::Slot;
use crate::{DataType, Error, TensorBytes};

/// One input tensor of a request.
#[derive(Clone, Copy)]
pub struct Input<'b> {
    raw: NonNull<abi::TRITONBACKEND_Input>,
    name: &'b CStr,
    data_type: DataType,
    shape: &'b [i64],
    byte_count: u64,
    buffer_count: u32,
    request: PhantomData<&'b Slot>,
}

impl<'b> Input<'b> {
    /// # Safety
    /// `raw` is an input of a request that is live during `'b`.
    pub(crate) unsafe fn new(raw: *mut abi::TRITONBACKEND_Input) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("server gave a null input"))?;
        let mut name: *const c_char = ptr::null();
        let mut data_type = 0;
        let mut shape: *const i64 = ptr::null();
        let mut dims_count = 0u32;
        let mut byte_count = 0;
        let mut buffer_count = 0;
        // SAFETY: the input is live, the results writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_InputProperties(
                raw.as_ptr(),
                &raw mut name,
                &raw mut data_type,
                &raw mut shape,
                &raw mut dims_count,
                &raw mut byte_count,
                &raw mut buffer_count,
            ))?;
        }
        let data_type = DataType::from_raw(data_type).ok_or_else(|| {
            Error::unsupported(format!("input with the unknown data type {data_type}"))
        })?;
        let shape = if dims_count == 0 || shape.is_null() {
            &[]
        } else {
            // SAFETY: the server's array of that many dimensions, which lives as long as the
            // request.
            unsafe { std::slice::from_raw_parts(shape, dims_count as usize) }
        };
        Ok(Input {
            raw,
            // SAFETY: NUL-terminated, lives as long as the request.
            name: unsafe { borrow(name) },
            data_type,
            shape,
            byte_count,
            buffer_count,
            request: PhantomData,
        })
    }

    pub fn name(&self) -> &'b CStr {
        self.name
    }

    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// With the batch dimension, where the model batches.
    pub fn shape(&self) -> &'b [i64] {
        self.shape
    }

    /// Bytes over all buffers.
    pub fn byte_count(&self) -> usize {
        // A tensor lies in memory, so its size fits.
        usize::try_from(self.byte_count).unwrap_or(usize::MAX)
    }

    /// Pieces in which the data lies; none for a tensor without elements.
    pub fn buffer_count(&self) -> u32 {
        self.buffer_count
    }

    /// One piece of the data, in main memory.
    ///
    /// # Errors
    /// `Unsupported` if the piece lies in GPU memory; otherwise whatever the server reports.
    pub fn buffer(&self, index: u32) -> Result<TensorBytes<'b>, Error> {
        let piece = self.piece(index, MemoryPlace::CPU)?;
        if piece.memory_type == abi::TRITONSERVER_MEMORY_GPU {
            return Err(Error::unsupported(format!(
                "input '{}' is in GPU memory, which this backend cannot read",
                self.name.to_string_lossy()
            )));
        }
        if piece.byte_count == 0 {
            return Ok(TensorBytes::default());
        }
        // SAFETY: the server's buffer of that many bytes in main memory, readable while the request
        // is live.
        Ok(unsafe { TensorBytes::new(piece.base.cast(), piece.byte_count) })
    }

    /// One piece of the data, where it lies. The server may have it in several places, and gives it
    /// in `preferred` if it can without a copy.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn memory(&self, index: u32, preferred: MemoryPlace) -> Result<MemorySource<'b>, Error> {
        let piece = self.piece(index, preferred)?;
        let place = place_of(piece.memory_type, piece.memory_type_id)?;
        // SAFETY: the server's buffer of that many bytes in that memory, readable while the request
        // is live.
        Ok(unsafe { MemorySource::new(piece.base, piece.byte_count, place) })
    }

    fn piece(&self, index: u32, preferred: MemoryPlace) -> Result<InputPiece, Error> {
        let mut base: *const c_void = ptr::null();
        let mut byte_count = 0u64;
        let mut memory_type = raw_kind(preferred.kind);
        let mut memory_type_id = preferred.id;
        // SAFETY: the input is live, the results writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_InputBuffer(
                self.raw.as_ptr(),
                index,
                &raw mut base,
                &raw mut byte_count,
                &raw mut memory_type,
                &raw mut memory_type_id,
            ))?;
        }
        let byte_count = usize::try_from(byte_count)
            .map_err(|_| Error::internal("input buffer larger than memory"))?;
        Ok(InputPiece {
            base,
            byte_count: if base.is_null() { 0 } else { byte_count },
            memory_type,
            memory_type_id,
        })
    }

    /// All of the data without a copy, if it lies in one piece.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer).
    pub fn contiguous(&self) -> Result<Option<TensorBytes<'b>>, Error> {
        match self.buffer_count {
            0 => Ok(Some(TensorBytes::default())),
            1 => self.buffer(0).map(Some),
            _ => Ok(None),
        }
    }

    /// A copy of all of the data, in one piece.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer).
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        if let Some(bytes) = self.contiguous()? {
            return Ok(bytes.to_vec());
        }
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(self.byte_count())
            .map_err(|_| Error::out_of_memory(self.byte_count()))?;
        self.for_each_buffer(|piece| {
            bytes.extend_from_slice(&piece.to_vec());
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Hands each piece of the data to `visit`, in order.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer), or what `visit` returns.
    pub fn for_each_buffer(
        &self,
        mut visit: impl FnMut(TensorBytes<'b>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for index in 0..self.buffer_count {
            visit(self.buffer(index)?)?;
        }
        Ok(())
    }
}

/// One piece of an input, as the server gave it.
struct InputPiece {
    base: *const c_void,
    byte_count: usize,
    memory_type: abi::TRITONSERVER_MemoryType,
    memory_type_id: i64,
}

/// # Safety
/// `text` is null or a NUL-terminated string that lives during `'b`.
pub(crate) unsafe fn borrow<'b>(text: *const c_char) -> &'b CStr {
    if text.is_null() {
        c""
    } else {
        // SAFETY: by this function's contract.
        unsafe { CStr::from_ptr(text) }
    }
}
