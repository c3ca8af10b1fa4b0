//! Tensors as OpenVINO sees them.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::{DataType, Error, TensorBytes, element_count, shape_text};

use super::runtime::Runtime;
use super::table::{OvTensor, Shape};

/// A tensor owned by this wrapper. Its memory is OpenVINO's, or borrowed during `'m`.
pub struct Tensor<'m> {
    runtime: Arc<Runtime>,
    raw: NonNull<OvTensor>,
    memory: PhantomData<&'m [u8]>,
}

// SAFETY: a tensor is a handle that any thread may use.
unsafe impl Send for Tensor<'_> {}

impl<'m> Tensor<'m> {
    /// A tensor over `bytes` for an input. OpenVINO only reads them.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes do not fit the shape or are not aligned; `Internal` with
    /// OpenVINO's own words.
    pub fn borrow(
        runtime: &Arc<Runtime>,
        data_type: DataType,
        shape: &[i64],
        bytes: TensorBytes<'m>,
    ) -> Result<Self, Error> {
        let misfit = || {
            Error::invalid(format!(
                "{} bytes do not make a {} tensor of shape {}",
                bytes.len(),
                data_type.name(),
                shape_text(shape)
            ))
        };
        let element_bytes = data_type.element_bytes().ok_or_else(misfit)?;
        let expected = element_count(shape).and_then(|count| count.checked_mul(element_bytes));
        if expected != Some(bytes.len()) || !bytes.is_aligned_to(element_bytes) {
            return Err(misfit());
        }
        let element = runtime.element_types.number(data_type).ok_or_else(misfit)?;
        let mut dims = shape.to_vec();
        let shape = Shape {
            rank: i64::try_from(dims.len()).map_err(|_| misfit())?,
            dims: dims.as_mut_ptr(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the shape is copied; the memory has the bytes that type and shape make, by the
        // check, is aligned, and lives during `'m`; it is only read, though its type says
        // otherwise; the result is writable.
        let status = unsafe {
            (runtime.functions.tensor_create_from_host_ptr)(
                element,
                shape,
                bytes.as_ptr().cast_mut().cast::<c_void>(),
                &raw mut raw,
            )
        };
        runtime.check(status, "making a tensor")?;
        // SAFETY: made for us.
        unsafe { Self::own(runtime, raw) }
    }

    /// # Safety
    /// `raw` is null or a tensor that the caller gives away, whose memory lives during `'m`.
    pub(super) unsafe fn own(runtime: &Arc<Runtime>, raw: *mut OvTensor) -> Result<Self, Error> {
        Ok(Tensor {
            runtime: Arc::clone(runtime),
            raw: NonNull::new(raw).ok_or_else(|| Error::internal("OpenVINO gave no tensor"))?,
            memory: PhantomData,
        })
    }

    pub(super) fn as_ptr(&self) -> *const OvTensor {
        self.raw.as_ptr()
    }

    /// Element type and shape.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words; `Unsupported` if Triton has no such element type.
    pub fn shape(&self) -> Result<(DataType, Vec<i64>), Error> {
        let functions = &self.runtime.functions;
        let mut element = 0;
        // SAFETY: the tensor is live, the result writable.
        let status =
            unsafe { (functions.tensor_get_element_type)(self.as_ptr(), &raw mut element) };
        self.runtime.check(status, "reading an element type")?;
        let data_type = self
            .runtime
            .element_types
            .data_type(element)
            .ok_or_else(|| {
                Error::unsupported(format!("output with OpenVINO's element type {element}"))
            })?;
        let mut shape = Shape {
            rank: 0,
            dims: ptr::null_mut(),
        };
        // SAFETY: the tensor is live, the result writable.
        let status = unsafe { (functions.tensor_get_shape)(self.as_ptr(), &raw mut shape) };
        self.runtime.check(status, "reading a shape")?;
        let rank = usize::try_from(shape.rank).unwrap_or(0);
        let dims = match shape.dims.is_null() {
            true => Vec::new(),
            // SAFETY: as many dimensions as the rank says, which live until they are freed.
            false => unsafe { std::slice::from_raw_parts(shape.dims, rank) }.to_vec(),
        };
        // SAFETY: made for us, and copied.
        unsafe { (functions.shape_free)(&raw mut shape) };
        Ok((data_type, dims))
    }

    /// Its bytes, in row order. No run may be going on that writes it: whoever runs a request lets
    /// it run only where no output of the run before is left.
    ///
    /// # Errors
    /// `Internal` with OpenVINO's own words.
    pub fn bytes(&self) -> Result<&[u8], Error> {
        let functions = &self.runtime.functions;
        let mut byte_count = 0;
        let mut data = ptr::null_mut();
        // SAFETY: the tensor is live, the results writable.
        let status =
            unsafe { (functions.tensor_get_byte_size)(self.as_ptr(), &raw mut byte_count) };
        self.runtime.check(status, "reading a tensor's size")?;
        if byte_count == 0 {
            return Ok(&[]);
        }
        // SAFETY: as above.
        let status = unsafe { (functions.tensor_data)(self.as_ptr(), &raw mut data) };
        self.runtime.check(status, "reading a tensor's data")?;
        if data.is_null() {
            return Err(Error::internal("OpenVINO gave an output without data"));
        }
        // SAFETY: the tensor's memory has that many bytes, and lives as long as it.
        Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), byte_count) })
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; borrowed memory is not freed by this.
        unsafe { (self.runtime.functions.tensor_free)(self.raw.as_ptr()) };
    }
}
