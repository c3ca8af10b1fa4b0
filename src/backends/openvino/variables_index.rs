//! Checks what OpenVINO does not: the index of a SavedModel's variables, a table with a sum over
//! each of its blocks. A table that was changed since it was written ends OpenVINO's process.

use std::fs;
use std::path::Path;

use conch_backend_sdk::Error;

/// The end of a table: two handles of blocks, filled up to 40 bytes, and the magic number.
const FOOTER_BYTES: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// Behind each block: one byte for its compression, and its sum.
const TRAILER_BYTES: usize = 5;
/// What is added to sums, so that sums of sums are not special.
const MASK: u32 = 0xa282_ead8;

/// Checks the files of a model before OpenVINO reads them.
///
/// # Errors
/// `InvalidArgument` if one was damaged.
pub fn check(model: &Path) -> Result<(), Error> {
    let index = model.join("variables/variables.index");
    // What is not there, or cannot be read, is OpenVINO's to say.
    let Ok(table) = fs::read(&index) else {
        return Ok(());
    };
    match is_sound(&table) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "'{}' is damaged: it does not have the sums that its blocks should have",
            index.display()
        ))),
    }
}

/// Whether every block that is used has its sum.
fn is_sound(table: &[u8]) -> bool {
    let Some((_, footer)) = table
        .len()
        .checked_sub(FOOTER_BYTES)
        .and_then(|at| table.split_at_checked(at))
    else {
        return false;
    };
    let is_table = footer.get(40..) == Some(&MAGIC.to_le_bytes());
    let mut rest = footer;
    let (Some(_), Some(index)) = (BlockHandle::read(&mut rest), BlockHandle::read(&mut rest))
    else {
        return false;
    };
    let Some(index) = index.block(table).filter(|_| is_table) else {
        return false;
    };
    handles(index).is_some_and(|handles| handles.iter().all(|handle| handle.block(table).is_some()))
}

/// Where a block is.
#[derive(Clone, Copy)]
struct BlockHandle {
    offset: u64,
    byte_count: u64,
}

impl BlockHandle {
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Some(BlockHandle {
            offset: number(bytes)?,
            byte_count: number(bytes)?,
        })
    }

    /// The block, if it has its sum.
    fn block(self, table: &[u8]) -> Option<&[u8]> {
        let start = usize::try_from(self.offset).ok()?;
        let len = usize::try_from(self.byte_count).ok()?;
        let end = start.checked_add(len)?.checked_add(TRAILER_BYTES)?;
        let (summed, sum) = table.get(start..end)?.split_at_checked(len + 1)?;
        let expected = u32::from_le_bytes(sum.try_into().ok()?);
        (masked(sum_of(summed)) == expected).then(|| summed.get(..len))?
    }
}

/// The handles in a block of the index: entries of shared, own and value length, key and value;
/// then where entries begin anew, and how many such there are.
fn handles(block: &[u8]) -> Option<Vec<BlockHandle>> {
    let count_at = block.len().checked_sub(4)?;
    let count = u32::from_le_bytes(block.get(count_at..)?.try_into().ok()?);
    let restarts = usize::try_from(count).ok()?.checked_mul(4)?;
    let mut entries = block.get(..count_at.checked_sub(restarts)?)?;
    let mut handles = Vec::new();
    while !entries.is_empty() {
        let _shared = number(&mut entries)?;
        let own = usize::try_from(number(&mut entries)?).ok()?;
        let len = usize::try_from(number(&mut entries)?).ok()?;
        let (_, behind) = entries.split_at_checked(own)?;
        let (mut value, behind) = behind.split_at_checked(len)?;
        handles.push(BlockHandle::read(&mut value)?);
        entries = behind;
    }
    Some(handles)
}

/// Takes a number of 7 bits per byte off the front.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(number);
        }
    }
    None
}

fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(MASK)
}

/// CRC-32C. An index has some kilobytes, so that a bit at a time is fast enough.
fn sum_of(bytes: &[u8]) -> u32 {
    let step = |sum: u32| (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg());
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(content: &[u8]) -> Vec<u8> {
        let mut block = content.to_vec();
        block.push(0);
        let sum = masked(sum_of(&block));
        block.extend(sum.to_le_bytes());
        block
    }

    /// One block of entries, an empty one, the index, and the footer.
    fn table() -> Vec<u8> {
        let mut table = block(b"some entries");
        let empty_at = u8::try_from(table.len()).unwrap();
        table.extend(block(&[0, 0, 0, 0]));
        let index_at = u8::try_from(table.len()).unwrap();
        let index = [&[0, 1, 2, b'k', 0, 12][..], &[0; 4], &1u32.to_le_bytes()].concat();
        table.extend(block(&index));
        let footer = [empty_at, 4, index_at, u8::try_from(index.len()).unwrap()];
        table.extend(footer);
        table.extend([0; 36]);
        table.extend(MAGIC.to_le_bytes());
        table
    }

    #[test]
    fn sums_are_those_of_others() {
        assert_eq!(sum_of(b"123456789"), 0xe306_9283);
        assert_eq!(sum_of(b""), 0);
        assert_eq!(sum_of(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn every_change_is_found() {
        let sound = table();
        assert!(is_sound(&sound));
        for at in 0..sound.len() {
            let mut changed = sound.clone();
            changed[at] ^= 0x10;
            // The empty block is not read, nor what fills the footer up.
            let is_unused = (17..26).contains(&at)
                || (sound.len() - 48..sound.len() - 46).contains(&at)
                || (sound.len() - 44..sound.len() - 8).contains(&at);
            assert_eq!(is_sound(&changed), is_unused, "{at}");
            assert!(!is_sound(&sound[..at]), "{at}");
        }
        assert!(!is_sound(&[0xff; 4096]));
    }

    #[test]
    fn models_without_an_index_pass() {
        assert_eq!(check(Path::new("/nonexistent/model.xml")), Ok(()));
    }
}
