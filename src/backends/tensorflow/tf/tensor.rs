//! Tensors as TensorFlow sees them.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Contents, Feed, OutputData};
use sdk::{DataType, Error, TensorBytes, element_count, shape_text};

use super::library::Library;
use super::table::{TF_TString, TF_Tensor, Table};
use crate::check::RANK_MAX;
use crate::element_type;

/// `EIGEN_MAX_ALIGN_BYTES`: TensorFlow copies what lies otherwise, without a look at whether it
/// got the memory for it.
const ALIGNMENT_BYTES: usize = 64;

/// An input of one run.
pub(super) struct Tensor {
    library: Arc<Library>,
    raw: NonNull<TF_Tensor>,
    /// Addresses of the request's memory that it lies in; none if it has memory of its own.
    borrowed: Range<usize>,
}

impl Tensor {
    /// A tensor of a feed's bytes. Numbers are not copied if `lends` and their address suits
    /// TensorFlow; the feed must then outlive the run. Strings are always copied, since TensorFlow
    /// has a form of its own for them.
    pub fn of(library: &Arc<Library>, feed: &Feed<'_>, lends: bool) -> Result<Self, Error> {
        if feed.shape.len() > RANK_MAX {
            return Err(Error::invalid(format!(
                "input '{}' has {} dimensions, TensorFlow takes {RANK_MAX}",
                feed.name.to_string_lossy(),
                feed.shape.len()
            )));
        }
        if feed.data_type == DataType::Bytes {
            return Self::strings(library, feed);
        }
        let expected = feed.data_type.byte_count(feed.shape);
        let bytes = feed.host()?;
        if expected != Some(bytes.len()) {
            return Err(Error::invalid(format!(
                "{} bytes do not make a {} tensor of shape {}",
                bytes.len(),
                feed.data_type.name(),
                shape_text(feed.shape)
            )));
        }
        if lends && !bytes.is_empty() && bytes.is_aligned_to(ALIGNMENT_BYTES) {
            Self::over(library, feed, bytes)
        } else {
            Self::copy(library, feed, bytes)
        }
    }

    pub fn as_ptr(&self) -> *mut TF_Tensor {
        self.raw.as_ptr()
    }

    /// A tensor that lies where the feed's bytes do.
    fn over(
        library: &Arc<Library>,
        feed: &Feed<'_>,
        bytes: TensorBytes<'_>,
    ) -> Result<Self, Error> {
        let start = bytes.as_ptr().addr();
        // SAFETY: size and alignment suit type and shape, by the caller's checks; the shape is
        // copied. TensorFlow does not write to memory that it does not own. The memory outlives the
        // run, and `retention.rs` sees to it that nothing of the graph keeps it longer.
        let raw = unsafe {
            (library.table.new_tensor)(
                element_type::number_of(feed.data_type),
                feed.shape.as_ptr(),
                rank(feed.shape),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                keep,
                std::ptr::null_mut(),
            )
        };
        Self::wrap(library, raw, feed, start..start + bytes.len())
    }

    /// A tensor with a copy of the feed's bytes.
    fn copy(
        library: &Arc<Library>,
        feed: &Feed<'_>,
        bytes: TensorBytes<'_>,
    ) -> Result<Self, Error> {
        let table = &library.table;
        let byte_count = bytes.len();
        // SAFETY: the size fits type and shape, by the caller's check; the shape is copied.
        let raw = unsafe {
            (table.allocate_tensor)(
                element_type::number_of(feed.data_type),
                feed.shape.as_ptr(),
                rank(feed.shape),
                byte_count,
            )
        };
        let tensor = Self::wrap(library, raw, feed, 0..0)?;
        if byte_count > 0 {
            // SAFETY: the tensor is live; it has that many bytes, or null where there was no
            // memory.
            unsafe {
                let data = (table.tensor_data)(tensor.as_ptr());
                if data.is_null() {
                    return Err(Error::out_of_memory(byte_count));
                }
                bytes.copy_to_address(data.cast());
            }
        }
        Ok(tensor)
    }

    fn strings(library: &Arc<Library>, feed: &Feed<'_>) -> Result<Self, Error> {
        let strings = Strings::read(&library.table, feed)?;
        let (array, byte_count) = (strings.array.as_ptr(), size_of_val(&*strings.array));
        let owner = Box::into_raw(Box::new(strings));
        // SAFETY: there are as many strings as the shape has elements; the shape is copied. They
        // are TensorFlow's from now on, which calls `free` with their owner when it no longer needs
        // them, also if it makes no tensor of them.
        let raw = unsafe {
            (library.table.new_tensor)(
                element_type::number_of(DataType::Bytes),
                feed.shape.as_ptr(),
                rank(feed.shape),
                array.cast_mut().cast(),
                byte_count,
                Strings::free,
                owner.cast(),
            )
        };
        Self::wrap(library, raw, feed, 0..0)
    }

    fn wrap(
        library: &Arc<Library>,
        raw: *mut TF_Tensor,
        feed: &Feed<'_>,
        borrowed: Range<usize>,
    ) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::internal(format!(
                "failed to create input tensor '{}' with shape {} and data type {}",
                feed.name.to_string_lossy(),
                shape_text(feed.shape),
                feed.data_type.name()
            ))
        })?;
        Ok(Tensor {
            library: Arc::clone(library),
            raw,
            borrowed,
        })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: ours; borrowed memory is not freed by this.
        unsafe { (self.library.table.delete_tensor)(self.raw.as_ptr()) };
    }
}

/// The strings of a tensor, in TensorFlow's form.
struct Strings {
    array: Vec<TF_TString>,
    dealloc: unsafe extern "C" fn(*mut TF_TString),
}

impl Strings {
    fn read(table: &Table, feed: &Feed<'_>) -> Result<Self, Error> {
        let wrong_count = |index: usize, count: usize| {
            Error::invalid(format!(
                "unexpected number of string elements {index} for inference input '{}', expecting \
                 {count}",
                feed.name.to_string_lossy()
            ))
        };
        let count = element_count(feed.shape)
            .ok_or_else(|| Error::invalid("a string tensor with an impossible shape"))?;
        // Each element has a length, so that nothing is allocated for those that are not there.
        let bytes = feed.host()?;
        if count > bytes.len() / 4 {
            return Err(wrong_count(bytes.len() / 4, count));
        }
        let mut array = Vec::new();
        array
            .try_reserve_exact(count)
            .map_err(|_| Error::out_of_memory(count.saturating_mul(size_of::<TF_TString>())))?;
        let mut strings = Strings {
            array,
            dealloc: table.string_dealloc,
        };
        let mut rest = bytes;
        for index in 0..count {
            let element = split_string(&mut rest).ok_or_else(|| wrong_count(index, count))?;
            let mut string = std::mem::MaybeUninit::<TF_TString>::uninit();
            // SAFETY: the string is made before it is written to. As many bytes as the element has
            // are copied, whatever others write there meanwhile.
            unsafe {
                (table.string_init)(string.as_mut_ptr());
                (table.string_copy)(string.as_mut_ptr(), element.as_ptr().cast(), element.len());
                strings.array.push(string.assume_init());
            }
        }
        if !rest.is_empty() {
            return Err(Error::invalid(format!(
                "unexpected additional data for inference input '{}': more than {count} string \
                 elements",
                feed.name.to_string_lossy()
            )));
        }
        Ok(strings)
    }

    /// # Safety
    /// `owner` is what [`Tensor::strings`] gave, and nobody uses it or its strings any more.
    unsafe extern "C" fn free(_: *mut c_void, _: usize, owner: *mut c_void) {
        // SAFETY: by this function's contract.
        drop(unsafe { Box::from_raw(owner.cast::<Strings>()) });
    }
}

impl Drop for Strings {
    fn drop(&mut self) {
        for string in &mut self.array {
            // SAFETY: a live string, which is not used afterwards. The library is never unloaded.
            unsafe { (self.dealloc)(string) };
        }
    }
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

/// An output of a run, in TensorFlow's memory.
pub struct Output {
    library: Arc<Library>,
    raw: NonNull<TF_Tensor>,
    /// It is an input that passed through the graph, in the request's own memory.
    is_input: bool,
}

impl Output {
    /// # Safety
    /// `raw` is null, or a tensor that the caller gives away. It is dropped before the memory that
    /// `inputs` borrow ends.
    pub(super) unsafe fn own(
        library: &Arc<Library>,
        raw: *mut TF_Tensor,
        inputs: &[Tensor],
    ) -> Option<Self> {
        let raw = NonNull::new(raw)?;
        // SAFETY: live; an address is only compared here.
        let address = unsafe { (library.table.tensor_data)(raw.as_ptr()) }.addr();
        Some(Output {
            library: Arc::clone(library),
            raw,
            is_input: inputs.iter().any(|input| input.borrowed.contains(&address)),
        })
    }

    fn shape(&self) -> Vec<i64> {
        let table = &self.library.table;
        // SAFETY: the tensor is live, the index in range.
        unsafe {
            let rank = (table.tensor_rank)(self.raw.as_ptr());
            (0..rank)
                .map(|index| (table.tensor_dim)(self.raw.as_ptr(), index))
                .collect()
        }
    }

    /// Numbers are read where they lie; those of an input that passed through are copied, since
    /// others may write them.
    fn numbers(&self, byte_count: usize) -> Result<Cow<'_, [u8]>, Error> {
        let table = &self.library.table;
        // SAFETY: the tensor is live.
        let (data, len) = unsafe {
            (
                (table.tensor_data)(self.raw.as_ptr()).cast::<u8>(),
                (table.tensor_bytes)(self.raw.as_ptr()),
            )
        };
        if len < byte_count || (data.is_null() && byte_count > 0) {
            return Err(Error::internal("TensorFlow gave an output without data"));
        }
        if byte_count == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        if self.is_input {
            // SAFETY: the tensor has that many bytes as long as it lives.
            let bytes = unsafe { TensorBytes::from_address(data, byte_count) };
            return Ok(Cow::Owned(bytes.to_vec()));
        }
        // SAFETY: the tensor has that many bytes, which nobody writes after the run.
        let bytes = unsafe { std::slice::from_raw_parts(data, byte_count) };
        Ok(Cow::Borrowed(bytes))
    }

    /// Strings, each behind its length, as on Triton's wire.
    fn strings(&self, count: usize) -> Result<Vec<u8>, Error> {
        let table = &self.library.table;
        // SAFETY: the tensor is live and holds strings.
        let (data, len) = unsafe {
            (
                (table.tensor_data)(self.raw.as_ptr()).cast::<TF_TString>(),
                (table.tensor_bytes)(self.raw.as_ptr()),
            )
        };
        if count == 0 {
            return Ok(Vec::new());
        }
        if len / size_of::<TF_TString>() < count || data.is_null() {
            return Err(Error::internal("TensorFlow gave an output without data"));
        }
        // SAFETY: the tensor has that many strings, which nobody writes after the run.
        let array = unsafe { std::slice::from_raw_parts(data, count) };
        let text_of = |string: &TF_TString| {
            // SAFETY: a live string; its bytes live as long.
            unsafe {
                let size = (table.string_size)(string);
                match NonNull::new((table.string_data)(string).cast_mut().cast::<u8>()) {
                    Some(data) => std::slice::from_raw_parts(data.as_ptr().cast_const(), size),
                    None => &[],
                }
            }
        };
        let total: usize = array.iter().map(|string| text_of(string).len() + 4).sum();
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(total)
            .map_err(|_| Error::out_of_memory(total))?;
        for string in array {
            let text = text_of(string);
            let length = u32::try_from(text.len())
                .map_err(|_| Error::unsupported("a string of 4 GiB or more in an output"))?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(text);
        }
        Ok(bytes)
    }
}

impl sdk::engine::Output for Output {
    fn read(&self) -> Result<Contents<'_>, Error> {
        // SAFETY: the tensor is live.
        let number = unsafe { (self.library.table.tensor_type)(self.raw.as_ptr()) };
        let data_type = element_type::data_type(number).ok_or_else(|| {
            let name = element_type::name_of(number);
            Error::unsupported(format!("an output has the unsupported datatype '{name}'"))
        })?;
        let shape = self.shape();
        let count = element_count(&shape)
            .ok_or_else(|| Error::internal("TensorFlow gave an output without a size"))?;
        let bytes = match data_type.element_bytes() {
            Some(element_bytes) => self.numbers(
                count
                    .checked_mul(element_bytes)
                    .ok_or_else(|| Error::internal("TensorFlow gave an output without a size"))?,
            )?,
            None => Cow::Owned(self.strings(count)?),
        };
        Ok(Contents {
            data_type,
            shape,
            data: OutputData::Host(bytes),
        })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { (self.library.table.delete_tensor)(self.raw.as_ptr()) };
    }
}

/// Frees nothing: the memory is its owner's.
unsafe extern "C" fn keep(_: *mut c_void, _: usize, _: *mut c_void) {}

/// Not above [`RANK_MAX`], by the check of every feed.
fn rank(shape: &[i64]) -> c_int {
    c_int::try_from(shape.len()).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
