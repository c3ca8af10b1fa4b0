//! Copies of tensors in memory of the server's own, which the CPU reads and nobody else writes.
//! They are charged to whom they are made for: none is the server itself, as in warm-ups.

use std::sync::Arc;

use conch_memory::{Block, Budget, ByteView, Charge};

use crate::Error;
use crate::gpus::GpuHost;

/// The bytes of `view` in memory of our own; a view of such memory is only shared. Blocks for the
/// copy if they lie on a GPU.
///
/// # Errors
/// UNAVAILABLE if the budget has no room or the system no memory; INTERNAL, what the driver
/// refuses.
pub fn to_private(view: &ByteView, budget: Option<&Arc<Budget>>) -> Result<ByteView, Error> {
    if !view.is_shared() && view.place().is_host() {
        return Ok(view.clone());
    }
    copy(std::slice::from_ref(view), budget)
}

/// The bytes of `parts` in one piece, which is only shared if a single part is that already.
/// Otherwise as [`to_private`].
///
/// # Errors
/// As [`to_private`].
pub fn join(parts: &[ByteView], budget: Option<&Arc<Budget>>) -> Result<ByteView, Error> {
    match parts {
        [] => Ok(ByteView::empty()),
        [only] => to_private(only, budget),
        parts => copy(parts, budget),
    }
}

fn copy(parts: &[ByteView], budget: Option<&Arc<Budget>>) -> Result<ByteView, Error> {
    let lengths = parts.iter().map(ByteView::len);
    let len = lengths.fold(0usize, usize::saturating_add);
    let charge = budget.map(|budget| {
        let mut charge = Charge::empty(budget);
        charge.cover(len as u64).map(|()| charge)
    });
    let charge = charge.transpose()?;
    let is_from_gpu = parts.iter().any(|part| !part.place().is_host());
    let pool = is_from_gpu.then(GpuHost::output_pool).flatten();
    let mut block = match pool {
        Some(pool) => pool.try_take(len)?,
        None => Block::try_with_capacity(len)?,
    };
    if let Some(charge) = charge {
        block.set_charge(charge);
    }
    for part in parts {
        match part.place().is_host() {
            true => part.read(0, &mut block),
            false => GpuHost::read(part, &mut block)?,
        }
    }
    Ok(ByteView::from(block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_private_part_is_shared_and_more_are_copied_and_charged() {
        let budget = Budget::new(128 << 10);
        let part = ByteView::copy_of(&[1, 2]);
        let shared = join(std::slice::from_ref(&part), Some(&budget)).unwrap();
        assert_eq!(shared.as_ptr(), part.as_ptr());
        assert!(join(&[], Some(&budget)).unwrap().is_empty());
        assert_eq!(budget.used_bytes(), 0);
        let joined = join(&[part.clone(), ByteView::copy_of(&[3])], Some(&budget)).unwrap();
        assert_eq!(joined.as_slice(), Some(&[1, 2, 3][..]));
        assert_eq!(budget.used_bytes(), Charge::STEP_BYTES);
        drop(joined);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn without_room_there_is_no_copy() {
        let budget = Budget::new(64 << 10);
        let part = ByteView::copy_of(&[7; 40 << 10]);
        let parts = [part.clone(), part];
        let refused = join(&parts, Some(&budget)).unwrap_err();
        assert_eq!(
            (refused.code, &*refused.message),
            (
                crate::Code::Unavailable,
                "the server has no memory left for the request: the limit is 65536 bytes"
            )
        );
        assert_eq!(budget.used_bytes(), 0);
        assert_eq!(join(&parts, None).unwrap().len(), 80 << 10);
    }
}
