//! Bytes of a tensor that may lie in memory shared with other processes.
//!
//! A client's shared memory changes whenever the client likes, and its regions may overlap, so an
//! input may lie where an output is written. A Rust reference promises the opposite of both, and
//! the C interface does not tell such memory from other memory. So inputs are shown as
//! [`TensorBytes`], which are copied from, never borrowed.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{self, NonNull};

/// Bytes of a tensor, readable during `'b`. Two reads of the same bytes may differ: check a copy,
/// and use that copy.
#[derive(Clone, Copy, Debug)]
pub struct TensorBytes<'b> {
    base: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'b u8>,
}

// SAFETY: bytes are only copied out; that others write them meanwhile is provided for (see the
// module).
unsafe impl Send for TensorBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for TensorBytes<'_> {}

/// A number that tensors hold, laid out as on Triton's wire.
pub trait Element: sealed::Sealed + Copy {}

mod sealed {
    /// # Safety
    /// Every sequence of `size_of::<Self>()` bytes is a value.
    pub unsafe trait Sealed {}
}

macro_rules! elements {
    ($($number:ty)*) => {$(
        // SAFETY: integers and floats take every bit pattern.
        unsafe impl sealed::Sealed for $number {}
        impl Element for $number {}
    )*};
}
elements!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

// Tensors are little-endian on the wire and in memory.
const _: () = assert!(cfg!(target_endian = "little"));

impl<'b> TensorBytes<'b> {
    /// # Safety
    /// `base..base + len` is readable during `'b`; it may be written by others at any time. `base`
    /// may be anything if `len` is 0.
    pub(crate) unsafe fn new(base: *const u8, len: usize) -> Self {
        TensorBytes {
            base: NonNull::new(base.cast_mut()).unwrap_or(NonNull::dangling()),
            len,
            memory: PhantomData,
        }
    }

    /// The bytes from `base` on, wherever they come from.
    ///
    /// # Safety
    /// `base..base + len` is readable during `'b`; it may be written by others at any time.
    pub unsafe fn from_address(base: *const u8, len: usize) -> Self {
        // SAFETY: by this function's contract.
        unsafe { TensorBytes::new(base, len) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for frameworks that read by address as C does.
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Part of the bytes; `None` if it does not lie inside.
    pub fn get(&self, range: Range<usize>) -> Option<TensorBytes<'b>> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len {
            return None;
        }
        Some(TensorBytes {
            // SAFETY: the start lies inside, or at the end.
            base: unsafe { self.base.add(range.start) },
            len,
            memory: PhantomData,
        })
    }

    /// The first `len` bytes and the rest; `None` if there are fewer.
    pub fn split_at_checked(&self, len: usize) -> Option<(TensorBytes<'b>, TensorBytes<'b>)> {
        Some((self.get(0..len)?, self.get(len..self.len)?))
    }

    /// A copy of the `N` bytes from `start` on; `None` if they do not lie inside.
    pub fn read<const N: usize>(&self, start: usize) -> Option<[u8; N]> {
        const { assert!(N > 0) };
        let part = self.get(start..start.checked_add(N)?)?;
        // SAFETY: `N` bytes lie inside, and arrays of bytes have no alignment. Volatile, so that
        // they are read once.
        Some(unsafe { part.base.cast::<[u8; N]>().read_volatile() })
    }

    /// Copies of `N` bytes each, one after the other. What does not fill the last one is left out.
    pub fn chunks<const N: usize>(&self) -> impl ExactSizeIterator<Item = [u8; N]> + use<'b, N> {
        const { assert!(N > 0) };
        let base = self.base;
        (0..self.len / N).map(move |index| {
            // SAFETY: the index is below the number of whole chunks, so that the chunk lies inside;
            // otherwise as in `read`.
            unsafe { base.add(index * N).cast::<[u8; N]>().read_volatile() }
        })
    }

    /// Copies all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.to_elements()
    }

    /// Copies all whole elements.
    pub fn to_elements<T: Element>(&self) -> Vec<T> {
        let count = self.len / size_of::<T>();
        let mut elements = Vec::<T>::with_capacity(count);
        // SAFETY: the vector has room for that many elements, which that many bytes fill, and every
        // bit pattern is one. The new memory is nobody else's.
        unsafe {
            ptr::copy_nonoverlapping(
                self.base.as_ptr(),
                elements.as_mut_ptr().cast::<u8>(),
                count * size_of::<T>(),
            );
            elements.set_len(count);
        }
        elements
    }

    /// Copies all bytes to the front of `target`; false if it is too short.
    pub fn copy_to(&self, target: &mut [MaybeUninit<u8>]) -> bool {
        if target.len() < self.len {
            return false;
        }
        // SAFETY: both are that long, and the target is borrowed uniquely.
        unsafe { self.copy_to_address(target.as_mut_ptr().cast()) };
        true
    }

    /// Copies all bytes to an address.
    ///
    /// # Safety
    /// `target` is writable for as many bytes. It may overlap with these.
    pub unsafe fn copy_to_address(&self, target: *mut u8) {
        // SAFETY: readable by the contract of `new`, writable by this function's. What another
        // process writes meanwhile leaves some mixture of bytes, of which nothing is assumed.
        unsafe { ptr::copy(self.base.as_ptr(), target, self.len) };
    }

    /// Whether the address suits elements of `alignment` bytes.
    pub fn is_aligned_to(&self, alignment: usize) -> bool {
        self.base.as_ptr().addr().is_multiple_of(alignment.max(1))
    }
}

impl Default for TensorBytes<'_> {
    fn default() -> Self {
        TensorBytes::from(&[])
    }
}

impl<'b> From<&'b [u8]> for TensorBytes<'b> {
    fn from(bytes: &'b [u8]) -> Self {
        // SAFETY: readable as long as they are borrowed.
        unsafe { TensorBytes::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'b> From<&'b Vec<u8>> for TensorBytes<'b> {
    fn from(bytes: &'b Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl<'b, const N: usize> From<&'b [u8; N]> for TensorBytes<'b> {
    fn from(bytes: &'b [u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    #[test]
    fn parts_are_copies_and_lie_inside() {
        let bytes = TensorBytes::from(b"\x01\0\0\0\x02\0\0\0\x03");
        assert_eq!(bytes.read::<4>(4).map(u32::from_le_bytes), Some(2));
        assert_eq!(bytes.read::<4>(6), None);
        assert_eq!(bytes.read::<1>(usize::MAX), None);
        assert_eq!(bytes.to_elements::<u32>(), [1, 2]);
        let chunks: Vec<_> = bytes.chunks::<4>().map(u32::from_le_bytes).collect();
        assert_eq!(chunks, [1, 2]);
        let (front, back) = bytes.split_at_checked(8).unwrap();
        assert_eq!((front.len(), back.to_vec()), (8, vec![3]));
        for (start, end, expected) in [
            (0, 9, Some(9)),
            (9, 9, Some(0)),
            (3, 2, None),
            (0, 10, None),
        ] {
            assert_eq!(bytes.get(start..end).map(|part| part.len()), expected);
        }
        let mut target = [MaybeUninit::new(7); 10];
        assert!(bytes.copy_to(&mut target));
        assert!(!bytes.copy_to(&mut target[..8]));
        assert!(TensorBytes::default().to_vec().is_empty());
    }

    /// What a client may do to the server: its regions overlap, so that an output lies over the
    /// input that it is made from, and the bytes change between two reads. Miri says whether any
    /// reference was in the way.
    #[test]
    fn bytes_may_change_and_be_written_over() {
        let memory = UnsafeCell::new(*b"abcdefgh");
        let base = memory.get().cast::<u8>();
        // SAFETY: six bytes of the array, which outlives both; writes through the cell are what
        // this is about.
        let (bytes, copy) = unsafe {
            let bytes = TensorBytes::new(base, 6);
            let copy = bytes.to_vec();
            base.write(b'X');
            (bytes, copy)
        };
        assert_eq!(
            (copy.as_slice(), bytes.read::<2>(0)),
            (&b"abcdef"[..], Some(*b"Xb"))
        );
        // SAFETY: the array has six bytes from the third on.
        unsafe { bytes.copy_to_address(base.add(2)) };
        assert_eq!(&memory.into_inner(), b"XbXbcdef");
    }
}
