//! Where a shard receives what is not for a tensor's block: one buffer, for all its connections.

use std::cell::Cell;

const BUFFER_BYTES: usize = 64 << 10;

thread_local! {
    /// Empty before its first use, and while it is used.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lets `work` have the buffer. What is in it has no meaning.
pub(super) fn with_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = BUFFER.take();
    // One per shard, whatever clients do: not to be refused.
    buffer.resize(BUFFER_BYTES, 0);
    let outcome = work(&mut buffer);
    BUFFER.set(buffer);
    outcome
}
