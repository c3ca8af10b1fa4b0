//! Tensors between the server's memory and that of a stub: the only place here that touches memory
//! by address.

use std::any::Any;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use conch_python_ipc::SharedSegment;
use sdk::{Error, Input, MemoryPlace, TensorBytes, TensorMemory};

/// Copies all of an input to `offset` in our segment, where as many bytes as it has are ours.
///
/// # Errors
/// Whatever the server reports; `Internal` if the input is longer than it said.
pub(crate) fn copy_in(
    input: &Input<'_>,
    segment: &SharedSegment,
    offset: u64,
) -> Result<(), Error> {
    let end = offset.saturating_add(input.byte_count() as u64);
    let mut at = offset;
    input.for_each_buffer(|piece| {
        let len = piece.len() as u64;
        let target = segment.address(at, len).filter(|_| at + len <= end);
        let target = target.ok_or_else(|| Error::internal("an input is longer than it said"))?;
        // SAFETY: the target lies inside our segment, in a block that is ours until it is sent.
        unsafe { piece.copy_to_address(target.as_ptr()) };
        at += len;
        Ok(())
    })
}

/// Bytes in a stub's segment; none unless they lie inside. The stub may change them at any time.
pub(crate) fn bytes(segment: &SharedSegment, offset: u64, len: u64) -> Option<TensorBytes<'_>> {
    let base = segment.address(offset, len)?;
    let len = usize::try_from(len).ok()?;
    // SAFETY: readable as long as the segment is mapped, which is during the borrow.
    Some(unsafe { TensorBytes::from_address(base.as_ptr(), len) })
}

/// The same as memory of a tensor that goes to another model, or comes from it; `owner` keeps it.
pub(crate) fn memory(
    segment: &SharedSegment,
    offset: u64,
    len: u64,
    owner: Arc<dyn Any + Send + Sync>,
) -> Option<TensorMemory> {
    let base = segment.address(offset, len)?;
    let len = usize::try_from(len).ok()?;
    if len == 0 {
        return Some(TensorMemory::empty());
    }
    // SAFETY: the bytes lie inside the segment, which the owner's process keeps mapped; nobody has
    // references to them.
    Some(unsafe { TensorMemory::new(base.as_ptr(), len, MemoryPlace::CPU, owner) })
}
