//! Tensors of torch's.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Contents, Feed, OutputData};
use sdk::{DataType, Error, MemorySource, element_count, shape_text};

use super::library::RawTensor;
use super::torch::Torch;
use crate::tensors::SCALAR_TYPES;

/// `c10::DeviceType::CPU`.
const CPU: i32 = 0;
/// `c10::DeviceType::CUDA`.
const CUDA: i32 = 1;

/// A tensor owned by this wrapper.
pub struct Tensor {
    torch: Arc<Torch>,
    raw: NonNull<RawTensor>,
}

// SAFETY: tensors may be used from any thread, by one at a time.
unsafe impl Send for Tensor {}
// SAFETY: what is done by a shared reference only reads the tensor, which torch allows on several
// threads at once.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// A tensor with a feed's bytes, copied: models may write into their inputs, torch wants them
    /// aligned, and what a client changes meanwhile must not reach the model's arithmetic of
    /// indices. With `copies` of them, one behind the other along the first dimension.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes do not fit the shape or the type is none of torch's;
    /// `Internal` with torch's own words, out of memory among them.
    pub fn copies_of(torch: &Arc<Torch>, feed: &Feed<'_>, copies: usize) -> Result<Self, Error> {
        let bytes = feed.host()?;
        let scalar_type = scalar_type_of(feed, bytes.len())?;
        let mut shape = feed.shape.to_vec();
        if copies != 1 {
            let rows = shape
                .first_mut()
                .ok_or_else(|| Error::invalid("a batch without a batch dimension"))?;
            *rows = i64::try_from(copies)
                .ok()
                .and_then(|copies| rows.checked_mul(copies))
                .ok_or_else(|| Error::invalid("a tensor of too many rows"))?;
        }
        let tensor = Self::empty(torch, scalar_type, &shape)?;
        if bytes.is_empty() {
            return Ok(tensor);
        }
        let length = bytes.len();
        let target = tensor.data()?.cast::<u8>();
        for copy in 0..copies {
            // SAFETY: the new tensor is contiguous and has `copies` times as many bytes, by the
            // check above.
            unsafe { bytes.copy_to_address(target.add(copy * length)) };
        }
        if feed.data_type == DataType::Bool {
            // SAFETY: as above, and nobody else has the new tensor.
            let values = unsafe { slice::from_raw_parts_mut(target, copies * length) };
            // Torch counts what is true by adding these bytes up, and clients may send others.
            values
                .iter_mut()
                .for_each(|value| *value = u8::from(*value != 0));
        }
        Ok(tensor)
    }

    /// A tensor over a feed's bytes on a GPU, which it borrows: it is gone before they are, and so
    /// is what a model makes of it.
    ///
    /// # Errors
    /// As [`copies_of`](Self::copies_of).
    pub fn on_device(
        torch: &Arc<Torch>,
        feed: &Feed<'_>,
        bytes: MemorySource<'_>,
        device: i32,
    ) -> Result<Self, Error> {
        let scalar_type = scalar_type_of(feed, bytes.len())?;
        let strides = contiguous_strides(feed.shape);
        let rank = i64::try_from(feed.shape.len())
            .map_err(|_| Error::invalid("a tensor of too many dimensions"))?;
        let data = ptr::without_provenance_mut(usize::try_from(bytes.address()).unwrap_or(0));
        let mut raw = ptr::null_mut();
        // SAFETY: memory of that GPU with as many bytes as type and shape say, by the check; sizes
        // and strides are as many as the rank says, and copied; the result is writable.
        let status = unsafe {
            (torch.functions.from_blob)(
                data,
                rank,
                feed.shape.as_ptr(),
                strides.as_ptr(),
                0,
                scalar_type,
                CUDA,
                device,
                &raw mut raw,
            )
        };
        let name = feed.name.to_string_lossy();
        torch.check(
            status,
            format_args!("cannot make a tensor of input '{name}'"),
        )?;
        // SAFETY: made above, and nobody else's.
        unsafe { Self::own(torch, raw) }
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// As [`copies_of`](Self::copies_of).
    pub fn zeros(torch: &Arc<Torch>, data_type: DataType, shape: &[i64]) -> Result<Self, Error> {
        let scalar_type = SCALAR_TYPES
            .number(data_type)
            .ok_or_else(|| Error::invalid("a tensor of a type that torch has not"))?;
        let count = data_type
            .byte_count(shape)
            .ok_or_else(|| Error::invalid("a tensor of an impossible shape"))?;
        let tensor = Self::empty(torch, scalar_type, shape)?;
        if count > 0 {
            // SAFETY: the new tensor is contiguous and has as many bytes.
            unsafe { ptr::write_bytes(tensor.data()?.cast::<u8>(), 0, count) };
        }
        Ok(tensor)
    }

    /// A contiguous tensor on the CPU, its memory not initialised.
    fn empty(torch: &Arc<Torch>, scalar_type: i32, shape: &[i64]) -> Result<Self, Error> {
        let strides = contiguous_strides(shape);
        let rank = i64::try_from(shape.len())
            .map_err(|_| Error::invalid("a tensor of too many dimensions"))?;
        let mut raw = ptr::null_mut();
        // SAFETY: sizes and strides are as many as the rank says, and copied; the result is
        // writable.
        let status = unsafe {
            (torch.functions.empty_strided)(
                rank,
                shape.as_ptr(),
                strides.as_ptr(),
                scalar_type,
                CPU,
                0,
                &raw mut raw,
            )
        };
        let doing =
            fmt::from_fn(|f| write!(f, "cannot make a tensor of shape {}", shape_text(shape)));
        torch.check(status, doing)?;
        // SAFETY: made above, and nobody else's.
        unsafe { Self::own(torch, raw) }
    }

    /// # Errors
    /// `Internal` if it is null.
    ///
    /// # Safety
    /// Null, or a tensor that the caller gives away.
    pub(super) unsafe fn own(torch: &Arc<Torch>, raw: *mut RawTensor) -> Result<Self, Error> {
        Ok(Tensor {
            torch: Arc::clone(torch),
            raw: NonNull::new(raw).ok_or_else(|| Error::internal("torch gave no tensor"))?,
        })
    }

    /// For functions that borrow it.
    pub(super) fn as_ptr(&self) -> *mut RawTensor {
        self.raw.as_ptr()
    }

    /// For functions that take it over.
    pub(super) fn into_raw(self) -> *mut RawTensor {
        let raw = self.raw.as_ptr();
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: dropped once, as the wrapper itself is not.
        unsafe { ptr::drop_in_place(&raw mut this.torch) };
        raw
    }

    /// # Errors
    /// `Unsupported` if Triton has no such type; `Internal` with torch's own words.
    pub fn data_type(&self) -> Result<DataType, Error> {
        let mut scalar_type = 0;
        // SAFETY: the tensor is live, the result writable.
        let status = unsafe { (self.torch.functions.dtype)(self.as_ptr(), &raw mut scalar_type) };
        self.torch.check(status, "cannot read a tensor's type")?;
        SCALAR_TYPES.data_type(scalar_type).ok_or_else(|| {
            Error::unsupported(format!("an output of torch's scalar type {scalar_type}"))
        })
    }

    /// # Errors
    /// `Internal` with torch's own words.
    pub fn shape(&self) -> Result<Vec<i64>, Error> {
        self.dimensions(self.torch.functions.sizes)
    }

    /// Type, shape and bytes in row order, where they lie. Those in main memory that lie in another
    /// order are copied.
    ///
    /// # Errors
    /// `Unsupported` if Triton has no such type, or for another device or order on a GPU;
    /// `Internal` with torch's own words; out of memory.
    pub fn contents(&self) -> Result<Contents<'_>, Error> {
        let (data_type, shape) = (self.data_type()?, self.shape()?);
        let strides = self.dimensions(self.torch.functions.strides)?;
        let count = data_type.byte_count(&shape);
        let count = count.ok_or_else(|| Error::internal("an output without a size in bytes"))?;
        let base = match count {
            0 => NonNull::dangling().as_ptr(),
            _ => self.data()?,
        };
        let data = match (self.gpu()?, is_contiguous(&shape, &strides)) {
            // SAFETY: main memory. A contiguous tensor has as many bytes as type and shape say,
            // which live as long as it and which nobody writes once it is an output.
            (None, true) => unsafe { slice::from_raw_parts(base.cast::<u8>(), count) }.into(),
            (None, false) => {
                let element_bytes = data_type.element_bytes().unwrap_or(1);
                // SAFETY: main memory of a tensor of that type, shape and strides.
                unsafe { rows_of(base.cast(), element_bytes, &shape, &strides)? }.into()
            }
            // SAFETY: memory of that GPU; else as above.
            (Some(gpu), true) => OutputData::Device(unsafe {
                MemorySource::on_device(base.addr() as u64, count, gpu)
            }),
            (Some(_), false) => {
                return Err(Error::unsupported(
                    "an output on a GPU in another order than by rows",
                ));
            }
        };
        Ok(Contents {
            data_type,
            shape,
            data,
        })
    }

    /// The GPU that it is on; `None`: main memory.
    ///
    /// # Errors
    /// `Unsupported` if it is elsewhere; `Internal` with torch's own words.
    fn gpu(&self) -> Result<Option<i32>, Error> {
        let (mut kind, mut device) = (CPU, 0);
        let functions = &self.torch.functions;
        // SAFETY: the tensor is live, the result writable.
        let status = unsafe { (functions.device_type)(self.as_ptr(), &raw mut kind) };
        self.torch.check(status, "cannot read a tensor's device")?;
        match kind {
            CPU => Ok(None),
            CUDA => {
                // SAFETY: as above.
                let status = unsafe { (functions.device_index)(self.as_ptr(), &raw mut device) };
                self.torch.check(status, "cannot read a tensor's device")?;
                Ok(Some(device))
            }
            _ => Err(Error::unsupported(
                "an output that is neither in the memory of CPUs nor on a GPU",
            )),
        }
    }

    fn data(&self) -> Result<*mut c_void, Error> {
        let mut data = ptr::null_mut();
        // SAFETY: the tensor is live, the result writable.
        let status = unsafe { (self.torch.functions.data_ptr)(self.as_ptr(), &raw mut data) };
        self.torch.check(status, "cannot read a tensor")?;
        if data.is_null() {
            return Err(Error::internal("torch gave a tensor without memory"));
        }
        Ok(data)
    }

    /// Sizes or strides.
    fn dimensions(
        &self,
        function: unsafe extern "C" fn(*mut RawTensor, *mut *mut i64) -> i32,
    ) -> Result<Vec<i64>, Error> {
        let mut rank = 0;
        let mut values = ptr::null_mut();
        // SAFETY: the tensor is live, the result writable.
        let status = unsafe { (self.torch.functions.dim)(self.as_ptr(), &raw mut rank) };
        self.torch.check(status, "cannot read a tensor's rank")?;
        // SAFETY: as above.
        let status = unsafe { function(self.as_ptr(), &raw mut values) };
        self.torch.check(status, "cannot read a tensor's shape")?;
        let rank = usize::try_from(rank).unwrap_or(0);
        if rank == 0 || values.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: torch keeps as many numbers as the rank says, as long as the tensor lives.
        Ok(unsafe { slice::from_raw_parts(values, rank) }.to_vec())
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: ours; deleting reports no error that one could act on.
        unsafe { (self.torch.functions.delete)(self.as_ptr()) };
    }
}

/// Torch's type of a feed that has so many bytes.
///
/// # Errors
/// `InvalidArgument` if the type is none of torch's or the bytes do not fit the shape.
fn scalar_type_of(feed: &Feed<'_>, byte_count: usize) -> Result<i32, Error> {
    let name = feed.name.to_string_lossy();
    let scalar_type = SCALAR_TYPES.number(feed.data_type).ok_or_else(|| {
        Error::invalid(format!(
            "unsupported datatype {} for input '{name}'",
            feed.data_type.config_name()
        ))
    })?;
    if feed.data_type.byte_count(feed.shape) == Some(byte_count) {
        return Ok(scalar_type);
    }
    Err(Error::invalid(format!(
        "{byte_count} bytes do not make a {} tensor of shape {} for input '{name}'",
        feed.data_type.name(),
        shape_text(feed.shape)
    )))
}

/// The elements of a tensor in row order, each copied from where the strides say.
///
/// # Errors
/// Out of memory.
///
/// # Safety
/// `base` is readable main memory of a tensor of that shape and these strides, of elements of that
/// size; the tensor has a size in bytes.
unsafe fn rows_of(
    base: *const u8,
    element_bytes: usize,
    shape: &[i64],
    strides: &[i64],
) -> Result<Vec<u8>, Error> {
    let count = element_count(shape).unwrap_or(0) * element_bytes;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(count)
        .map_err(|_| Error::out_of_memory(count))?;
    let mut index = vec![0_i64; shape.len()];
    while bytes.len() < count {
        let offset: i64 = index.iter().zip(strides).map(|(at, by)| at * by).sum();
        let offset = usize::try_from(offset)
            .map_err(|_| Error::internal("an output with a negative stride"))?;
        // SAFETY: the index is inside the shape, where torch keeps an element at the sum of index
        // times stride.
        bytes.extend_from_slice(unsafe {
            slice::from_raw_parts(base.add(offset * element_bytes), element_bytes)
        });
        for (at, &size) in index.iter_mut().zip(shape).rev() {
            *at += 1;
            if *at < size {
                break;
            }
            *at = 0;
        }
    }
    Ok(bytes)
}

/// Strides of a tensor in row order, as torch counts them: a dimension of no rows counts as one.
fn contiguous_strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    let mut stride = 1_i64;
    for (target, &size) in strides.iter_mut().zip(shape).rev() {
        *target = stride;
        stride = stride.saturating_mul(size.max(1));
    }
    strides
}

/// Whether elements lie in row order. The stride of a dimension of one row means nothing, nor do
/// those of a tensor without elements.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let expected = contiguous_strides(shape);
    let mut dimensions = shape.iter().zip(strides).zip(&expected);
    dimensions.all(|((&size, stride), expected)| size <= 1 || stride == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_of_row_order() {
        for (shape, expected) in [
            (&[][..], &[][..]),
            (&[4], &[1]),
            (&[2, 3, 4], &[12, 4, 1]),
            (&[2, 0, 4], &[4, 4, 1]),
        ] {
            assert_eq!(contiguous_strides(shape), expected, "{shape:?}");
        }
        for (shape, strides, expected) in [
            (&[2, 3][..], &[3, 1][..], true),
            (&[2, 3], &[1, 2], false),
            (&[1, 3], &[77, 1], true),
            (&[2, 3], &[0, 1], false),
            (&[], &[], true),
            (&[2, 0, 3], &[1, 6, 2], true),
        ] {
            assert_eq!(
                is_contiguous(shape, strides),
                expected,
                "{shape:?} {strides:?}"
            );
        }
    }
}
