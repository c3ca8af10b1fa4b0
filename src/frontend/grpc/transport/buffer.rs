//! Where a shard receives what is not for a tensor's block: one buffer, for all its connections.

use std::cell::Cell;

use conch_memory::{OutOfMemory, try_reserve};

const BUFFER_BYTES: usize = 64 << 10;

thread_local! {
    /// Empty before its first use, and while it is used.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lends the buffer to `work`. What is in it has no meaning.
///
/// # Errors
/// There is no memory for it.
pub(super) fn with_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> Result<T, OutOfMemory> {
    let mut buffer = BUFFER.take();
    if buffer.is_empty() {
        try_reserve(&mut buffer, BUFFER_BYTES)?;
        buffer.resize(BUFFER_BYTES, 0);
    }
    let outcome = work(&mut buffer);
    BUFFER.set(buffer);
    Ok(outcome)
}
