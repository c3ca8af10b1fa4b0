//! Memory that suits the elements of every tensor.

use conch_backend_sdk::{Error, TensorBytes};

/// A copy of bytes, aligned to 8. Keeps its memory for the next one.
#[derive(Default)]
pub struct AlignedBuffer(Vec<u64>);

impl AlignedBuffer {
    /// Copies `bytes`, and puts zeros behind them up to `byte_count` (at least as many).
    ///
    /// # Errors
    /// `Unavailable` if there is no memory for them.
    pub fn fill(
        &mut self,
        bytes: TensorBytes<'_>,
        byte_count: usize,
    ) -> Result<TensorBytes<'_>, Error> {
        let byte_count = byte_count.max(bytes.len());
        let word_count = byte_count.div_ceil(8).max(1);
        self.0.clear();
        self.0
            .try_reserve(word_count)
            .map_err(|_| Error::out_of_memory(byte_count))?;
        self.0.resize(word_count, 0);
        let base = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: there are at least as many bytes as are copied, and as are shown; they live as
        // long as they are borrowed from here.
        Ok(unsafe {
            bytes.copy_to_address(base);
            TensorBytes::from_address(base, byte_count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_fills_up() {
        let mut buffer = AlignedBuffer::default();
        for (bytes, byte_count, expected) in [
            (&b"abcdefghij"[..], 10, &b"abcdefghij"[..]),
            (b"abc", 5, b"abc\0\0"),
            (b"", 9, &[0; 9]),
            (b"", 0, b""),
            (b"abc", 1, b"abc"),
        ] {
            let copy = buffer.fill(bytes.into(), byte_count).unwrap();
            assert_eq!(copy.to_vec(), expected);
            assert!(copy.is_aligned_to(8));
        }
        assert!(buffer.fill(b"a".into(), usize::MAX / 2).is_err());
    }
}
