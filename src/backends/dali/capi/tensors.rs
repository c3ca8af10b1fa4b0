//! Lists of tensors: what goes into a run and what comes out. The samples of a list have one type
//! and one number of dimensions, and shapes of their own.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use conch_backend_sdk::{DataType, Error, element_count};

use super::Runtime;
use super::table::{
    BufferPlacement, COPY_SYNC, ERROR_INVALID_KEY, RawOutputs, RawTensorList, STORAGE_CPU,
    STORAGE_GPU, TensorDescription,
};
use super::types::TYPES;

/// A list in DALI's memory, to be filled and fed.
pub struct InputList<'r> {
    list: List<'r>,
    sample_count: usize,
}

impl<'r> InputList<'r> {
    /// A list of `shapes.len() / dim_count` samples (`sample_count` of them, where samples are
    /// scalars), whose shapes stand one after the other in `shapes`.
    ///
    /// # Errors
    /// `Unsupported` for a type that DALI does not have; what DALI says, as when memory is short.
    pub fn new(
        runtime: &'r Runtime,
        data_type: DataType,
        sample_count: usize,
        dim_count: usize,
        shapes: &[i64],
        layout: Option<&CStr>,
    ) -> Result<Self, Error> {
        let number = TYPES.number(data_type).ok_or_else(|| {
            Error::unsupported(format!("DALI has no data type {}", data_type.name()))
        })?;
        let size = |size: usize| {
            c_int::try_from(size).map_err(|_| Error::invalid("a batch is too large for DALI"))
        };
        if Some(shapes.len()) != sample_count.checked_mul(dim_count) {
            return Err(Error::internal("shapes do not fit the samples of a batch"));
        }
        let mut raw = ptr::null_mut();
        let placement = BufferPlacement::default();
        // SAFETY: the result is writable.
        runtime.check(unsafe { (runtime.table.create_list)(&raw mut raw, placement) })?;
        // SAFETY: given to us by the call.
        let list = unsafe { List::new(runtime, raw)? };
        // SAFETY: live and ours; there are as many dimensions as the counts say, by the check
        // above; the layout is null or NUL-terminated. All of them are copied.
        runtime.check(unsafe {
            (runtime.table.resize_list)(
                list.raw.as_ptr(),
                size(sample_count)?,
                size(dim_count)?,
                shapes.as_ptr(),
                number,
                layout.map_or(ptr::null::<c_char>(), CStr::as_ptr),
            )
        })?;
        Ok(InputList { list, sample_count })
    }

    /// The memory of a sample, to be filled.
    ///
    /// # Errors
    /// What DALI says.
    pub fn sample(&mut self, index: usize) -> Result<&mut [MaybeUninit<u8>], Error> {
        if index >= self.sample_count {
            return Err(Error::internal("no such sample in an input"));
        }
        let (data, len) = self.list.sample_bytes(index)?;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: DALI allocated that many bytes for the sample when the list was sized; they are
        // borrowed through `self`, and nobody else has the list yet.
        Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
    }

    pub(super) fn raw(&self) -> *mut RawTensorList {
        self.list.raw.as_ptr()
    }
}

/// What a run made. The pipeline does not run again before this is dropped.
pub struct Outputs<'p> {
    runtime: &'p Runtime,
    raw: NonNull<RawOutputs>,
    /// Borrows the pipeline.
    pipeline: PhantomData<&'p mut ()>,
}

impl<'p> Outputs<'p> {
    /// # Safety
    /// `raw` is owned by the caller, and of a pipeline that stays as it is during `'p`.
    pub(super) unsafe fn new(runtime: &'p Runtime, raw: NonNull<RawOutputs>) -> Self {
        Outputs {
            runtime,
            raw,
            pipeline: PhantomData,
        }
    }

    /// An output, by its place in the pipeline.
    ///
    /// # Errors
    /// What DALI says.
    pub fn list(&self, index: usize) -> Result<OutputList<'_>, Error> {
        let index = c_int::try_from(index).map_err(|_| Error::internal("no such output"))?;
        let mut raw = ptr::null_mut();
        // SAFETY: live; the result is writable.
        self.runtime.check(unsafe {
            (self.runtime.table.output_list)(self.raw.as_ptr(), &raw mut raw, index)
        })?;
        // SAFETY: given to us by the call.
        OutputList::new(unsafe { List::new(self.runtime, raw)? })
    }

    /// What an operator noted in this run; `None` if it notes nothing of that name.
    ///
    /// # Errors
    /// What DALI says.
    pub fn trace(&self, operator: &CStr, name: &CStr) -> Result<Option<&CStr>, Error> {
        let mut text = ptr::null();
        // SAFETY: live; the names are NUL-terminated, the result is writable.
        let status = unsafe {
            (self.runtime.table.output_trace)(
                self.raw.as_ptr(),
                &raw mut text,
                operator.as_ptr(),
                name.as_ptr(),
            )
        };
        if status == ERROR_INVALID_KEY {
            return Ok(None);
        }
        self.runtime.check(status)?;
        // SAFETY: NUL-terminated, and there as long as the outputs.
        Ok((!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }))
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; lists borrow it, so they are gone.
        let destroyed = unsafe { (self.runtime.table.destroy_outputs)(self.raw.as_ptr()) };
        if let Err(error) = self.runtime.check(destroyed) {
            conch_backend_sdk::error!("failed to release outputs: {error}");
        }
    }
}

/// One output of a run.
pub struct OutputList<'o> {
    list: List<'o>,
    pub data_type: DataType,
    pub sample_count: usize,
    dim_count: usize,
    /// Those of a list on a GPU, copied, with where each sample begins.
    copied: Option<(Vec<u8>, Vec<usize>)>,
}

impl<'o> OutputList<'o> {
    fn new(list: List<'o>) -> Result<Self, Error> {
        let runtime = list.runtime;
        let (mut number, mut sample_count, mut dim_count) = (0, 0, 0);
        // SAFETY: live; the results are writable, the shapes are not asked for.
        unsafe {
            runtime.check((runtime.table.list_type)(
                list.raw.as_ptr(),
                &raw mut number,
            ))?;
            runtime.check((runtime.table.list_shape)(
                list.raw.as_ptr(),
                &raw mut sample_count,
                &raw mut dim_count,
                ptr::null_mut(),
            ))?;
        }
        let data_type = TYPES.data_type(number).ok_or_else(|| {
            Error::unsupported(format!(
                "the pipeline makes an output of DALI's type {number}, which is no number"
            ))
        })?;
        let mut placement = BufferPlacement::default();
        // SAFETY: live; the result is writable.
        runtime.check(unsafe {
            (runtime.table.list_placement)(list.raw.as_ptr(), &raw mut placement)
        })?;
        let negative = |_| Error::internal("DALI counts below zero");
        let mut output = OutputList {
            list,
            data_type,
            sample_count: usize::try_from(sample_count).map_err(negative)?,
            dim_count: usize::try_from(dim_count).map_err(negative)?,
            copied: None,
        };
        if placement.device_type == STORAGE_GPU {
            output.copied = Some(output.copy_to_host()?);
        }
        Ok(output)
    }

    /// The shape of a sample.
    ///
    /// # Errors
    /// What DALI says.
    pub fn shape(&self, index: usize) -> Result<&[i64], Error> {
        let described = self.list.describe(index)?;
        if self.dim_count == 0 || described.shape.is_null() {
            return Ok(&[]);
        }
        // SAFETY: DALI's array of that many dimensions, which lives as long as the list is not
        // changed.
        Ok(unsafe { std::slice::from_raw_parts(described.shape, self.dim_count) })
    }

    /// The bytes of a sample.
    ///
    /// # Errors
    /// What DALI says.
    pub fn bytes(&self, index: usize) -> Result<&[u8], Error> {
        if let Some((bytes, starts)) = &self.copied {
            let end = starts.get(index + 1);
            return starts
                .get(index)
                .zip(end)
                .and_then(|(&start, &end)| bytes.get(start..end))
                .ok_or_else(|| Error::internal("no such sample in an output"));
        }
        let (data, len) = self.list.sample_bytes(index)?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: DALI's bytes of the sample in host memory, complete, and unchanged until the
        // pipeline runs again, which the borrow of the outputs holds up.
        Ok(unsafe { std::slice::from_raw_parts(data.cast_const(), len) })
    }

    fn copy_to_host(&self) -> Result<(Vec<u8>, Vec<usize>), Error> {
        let mut starts = vec![0];
        let mut end = 0usize;
        for index in 0..self.sample_count {
            let (_, len) = self.list.sample_bytes(index)?;
            end = end
                .checked_add(len)
                .ok_or_else(|| Error::internal("an output is larger than memory"))?;
            starts.push(end);
        }
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(end)
            .map_err(|_| Error::out_of_memory(end))?;
        bytes.resize(end, 0);
        if end > 0 {
            let runtime = self.list.runtime;
            let host = BufferPlacement {
                device_type: STORAGE_CPU,
                ..BufferPlacement::default()
            };
            // SAFETY: live; the target has room for all samples, which is what the call writes, and
            // it waits for the copy.
            runtime.check(unsafe {
                (runtime.table.copy_list)(
                    self.list.raw.as_ptr(),
                    bytes.as_mut_ptr().cast(),
                    host,
                    ptr::null(),
                    COPY_SYNC,
                )
            })?;
        }
        Ok((bytes, starts))
    }
}

/// A reference to a list.
struct List<'r> {
    runtime: &'r Runtime,
    raw: NonNull<RawTensorList>,
}

impl<'r> List<'r> {
    /// # Safety
    /// `raw` is null or a reference that the caller owns.
    unsafe fn new(runtime: &'r Runtime, raw: *mut RawTensorList) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("DALI gave no tensors"))?;
        Ok(List { runtime, raw })
    }

    fn describe(&self, index: usize) -> Result<TensorDescription, Error> {
        let index = c_int::try_from(index).map_err(|_| Error::internal("no such sample"))?;
        let mut described = TensorDescription {
            dim_count: 0,
            shape: ptr::null(),
            data_type: 0,
            layout: ptr::null(),
            data: ptr::null_mut(),
        };
        // SAFETY: live; the result is writable. DALI checks the index.
        self.runtime.check(unsafe {
            (self.runtime.table.list_sample)(self.raw.as_ptr(), &raw mut described, index)
        })?;
        Ok(described)
    }

    /// Where a sample's bytes are, and how many. Not null unless there are none.
    fn sample_bytes(&self, index: usize) -> Result<(*mut u8, usize), Error> {
        let described = self.describe(index)?;
        let dim_count = usize::try_from(described.dim_count).unwrap_or(0);
        let shape = if dim_count == 0 || described.shape.is_null() {
            &[]
        } else {
            // SAFETY: DALI's array of that many dimensions, live until the list changes.
            unsafe { std::slice::from_raw_parts(described.shape, dim_count) }
        };
        let element_bytes = TYPES
            .data_type(described.data_type)
            .and_then(DataType::element_bytes);
        let len = element_count(shape)
            .zip(element_bytes)
            .and_then(|(count, bytes)| count.checked_mul(bytes))
            .ok_or_else(|| Error::internal("DALI gave a sample without a size"))?;
        if len > 0 && described.data.is_null() {
            return Err(Error::internal("DALI gave a sample without memory"));
        }
        Ok((described.data.cast(), len))
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: our reference, given up once.
        let released =
            unsafe { (self.runtime.table.release_list)(self.raw.as_ptr(), ptr::null_mut()) };
        if let Err(error) = self.runtime.check(released) {
            conch_backend_sdk::error!("failed to release tensors: {error}");
        }
    }
}
