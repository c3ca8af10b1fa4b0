//! The block of the tensor under way, and the room in it for what comes next.

use std::sync::Arc;

use conch_memory::{Block, Budget, Charge, HUGE_ABOVE_BYTES, OutOfMemory, Pool, held_bytes};

use super::{MessageReader, ReadFault, ReadPosition, UNCHARGED_BYTES};

/// A tensor of more than [`UNCHARGED_BYTES`] gets its final block once this much of it has arrived.
const TRUSTED_FROM_BYTES: usize = UNCHARGED_BYTES;
/// Until then it gets blocks from this size on that double.
const FIRST_BLOCK_BYTES: usize = 512;
/// What is charged for bytes to come if the budget has no room for more: a usual DATA frame.
const CAUTIOUS_BYTES: usize = 16 << 10;
/// Blocks above [`HUGE_ABOVE_BYTES`] have huge pages, which hold more than a client may have sent:
/// a tensor of more bytes has a block of this size until that is full.
const LARGE_FIRST_BYTES: usize = 1 << 20;
/// The most that a tensor gets at once; larger ones double from there, in place where there is room
/// behind them.
pub(super) const WHOLE_BLOCK_BYTES_MAX: usize = 64 << 20;

impl MessageReader {
    /// Bytes that the tensor under way misses, if it has a block that is worth being received into.
    pub(in crate::grpc) fn tensor_left(&self) -> usize {
        match &self.place {
            ReadPosition::Raw {
                block: Some(block),
                left,
            } if block.len() >= TRUSTED_FROM_BYTES => *left,
            _ => 0,
        }
    }

    /// Room for the next bytes of the tensor under way, `bytes` at most; they are charged. Empty
    /// unless [`MessageReader::tensor_left`] is more than 0. What is there is meaningless until
    /// [`MessageReader::advance`] counts it as received.
    ///
    /// # Errors
    /// As of [`MessageReader::feed`].
    pub(in crate::grpc) fn room(&mut self, bytes: usize) -> Result<&mut [u8], ReadFault> {
        if self.tensor_left() == 0 {
            return Ok(&mut []);
        }
        let ReadPosition::Raw { block, left } = &mut self.place else {
            return Ok(&mut []);
        };
        let mut fresh = bytes.min(*left);
        if let Some(block) = block.as_mut() {
            // A block that is not the last one is left when it is full.
            let (have, spare) = (block.len(), block.capacity() - block.len());
            if have < LARGE_FIRST_BYTES && have + *left > HUGE_ABOVE_BYTES {
                fresh = fresh.min(LARGE_FIRST_BYTES - have);
            } else if block.capacity() >= LARGE_FIRST_BYTES && spare > 0 {
                fresh = fresh.min(spare);
            }
            // If the budget has no room for what may come, then for what is likely to.
            let held = held_bytes(have + fresh, block.capacity()) as u64;
            let is_charged = block
                .charge_mut()
                .is_some_and(|charge| charge.cover(held).is_ok());
            if !is_charged {
                fresh = fresh.min(CAUTIOUS_BYTES);
            }
        }
        let block = room(block, fresh, *left, &self.pool, &self.budget)?;
        let (own, _) = block.spare_mut().split_at_mut(fresh);
        Ok(own)
    }

    /// What the last [`MessageReader::room`] holds behind what has been counted since.
    pub(in crate::grpc) fn spare(&mut self) -> &[u8] {
        match &mut self.place {
            ReadPosition::Raw {
                block: Some(block), ..
            } => block.spare_mut(),
            _ => &[],
        }
    }

    /// Counts `count` bytes of the room as the next of the message.
    ///
    /// # Errors
    /// As of [`MessageReader::feed`].
    pub(in crate::grpc) fn advance(&mut self, count: usize) -> Result<(), ReadFault> {
        if let ReadPosition::Raw {
            block: Some(block),
            left,
        } = &mut self.place
        {
            block.advance(count);
            *left -= count;
            self.left -= count;
            if *left == 0 {
                self.finish_raw()?;
            }
        }
        Ok(())
    }

    /// Gives back what was charged for room that has not been used.
    pub(in crate::grpc) fn trim_charge(&mut self) {
        if let ReadPosition::Raw {
            block: Some(block), ..
        } = &mut self.place
        {
            let held = held_bytes(block.len(), block.capacity()) as u64;
            if let Some(charge) = block.charge_mut() {
                charge.shrink_unused(held);
            }
        }
    }
}

/// The block of a tensor that misses `left` bytes, with room for `fresh` of them.
pub(super) fn room<'a>(
    block: &'a mut Option<Block>,
    fresh: usize,
    left: usize,
    pool: &Arc<Pool>,
    budget: &Arc<Budget>,
) -> Result<&'a mut Block, ReadFault> {
    let have = block.as_ref().map_or(0, Block::len);
    let (arrived, whole) = (have + fresh, have + left);
    let is_trusted = whole <= TRUSTED_FROM_BYTES || arrived >= TRUSTED_FROM_BYTES;
    let capacity = if let Some(block) = block.as_ref().filter(|block| block.capacity() >= arrived) {
        block.capacity()
    } else if !is_trusted {
        arrived.next_power_of_two().max(FIRST_BLOCK_BYTES)
    } else if whole > HUGE_ABOVE_BYTES && arrived <= LARGE_FIRST_BYTES {
        LARGE_FIRST_BYTES
    } else if whole <= WHOLE_BLOCK_BYTES_MAX {
        whole
    } else {
        // At least double, so that the cost of growing stays linear.
        let doubled = block.as_ref().map_or(0, |block| block.capacity() * 2);
        whole.min(doubled.max(arrived).max(WHOLE_BLOCK_BYTES_MAX))
    };
    // Charge before anything is allocated.
    let mut charge = block.as_mut().and_then(Block::take_charge);
    if whole > UNCHARGED_BYTES {
        charge
            .get_or_insert_with(|| Charge::empty(budget))
            .cover(held_bytes(arrived, capacity) as u64)?;
    }
    let roomy = match block.take() {
        Some(block) if block.capacity() >= capacity => block,
        Some(mut block) if block.capacity() >= WHOLE_BLOCK_BYTES_MAX => {
            block.try_reserve(capacity)?;
            block
        }
        Some(block) => {
            // Copies what arrived before the tensor was trusted, or [`LARGE_FIRST_BYTES`].
            let mut roomy = take(pool, capacity, is_trusted)?;
            roomy.extend_from_slice(block.as_slice());
            roomy
        }
        None => take(pool, capacity, is_trusted)?,
    };
    let block = block.insert(roomy);
    if let Some(charge) = charge {
        block.set_charge(charge);
    }
    Ok(block)
}

/// The pool has no blocks small enough for a tensor that is not trusted yet.
fn take(pool: &Arc<Pool>, capacity: usize, is_trusted: bool) -> Result<Block, OutOfMemory> {
    if is_trusted {
        pool.try_take(capacity)
    } else {
        Block::try_with_capacity(capacity)
    }
}
