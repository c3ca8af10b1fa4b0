//! Bytes that a model's configuration sizes.

use std::fmt;
use std::sync::Arc;

use conch_memory::{Block, Budget, ByteView, Charge};

use crate::Error;

/// So many bytes, which begin as zeros and are counted against the budget as long as they live.
/// `owner` is who needs them.
///
/// # Errors
/// UNAVAILABLE if the memory limit does not allow them or the system has none; what `fill` says.
pub(crate) fn model_bytes(
    budget: &Arc<Budget>,
    bytes: u64,
    owner: impl fmt::Display,
    fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
) -> Result<ByteView, Error> {
    let mut charge = Charge::empty(budget);
    let size = usize::try_from(bytes).ok();
    let size = size
        .filter(|_| charge.cover(bytes).is_ok())
        .ok_or_else(|| {
            Error::unavailable(format!(
                "{owner} needs {bytes} bytes, which the memory limit of {} bytes does not allow",
                budget.limit_bytes()
            ))
        })?;
    if size == 0 {
        return Ok(ByteView::empty());
    }
    let mut block = Block::try_with_capacity(size)?;
    block.set_charge(charge);
    block.advance(size);
    fill(block.as_mut_slice())?;
    Ok(ByteView::from(block))
}
