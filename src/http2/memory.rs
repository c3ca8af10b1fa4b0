//! Memory for what a connection keeps.
//!
//! What is small cannot be refused: when the system has none, it comes from the reserve of the
//! program. What is larger may be, as its size is the client's.

use conch_memory::OutOfMemory;

/// Bytes up to which a buffer is small.
pub(crate) const SMALL_BYTES: usize = 4 << 10;

/// Room for `count` more bytes.
pub(crate) fn reserve(buffer: &mut Vec<u8>, count: usize) -> Result<(), OutOfMemory> {
    if buffer.len() + count > SMALL_BYTES {
        return conch_memory::try_reserve(buffer, count);
    }
    buffer.reserve(count);
    Ok(())
}

/// Appends `bytes`.
pub(crate) fn extend(buffer: &mut Vec<u8>, bytes: &[u8]) -> Result<(), OutOfMemory> {
    reserve(buffer, bytes.len())?;
    buffer.extend_from_slice(bytes);
    Ok(())
}
