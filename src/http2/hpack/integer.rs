//! Integers of HPACK: some bits of a byte, and bytes of seven bits behind it.

use super::{DecodeError, HpackError};

/// No index, length or table size that is allowed is larger.
const VALUE_MAX: usize = 1 << 24;

/// Reads an integer that begins in the lowest `prefix_bits` of the first byte; returns it and the
/// bytes behind it.
pub(crate) fn read(bytes: &[u8], prefix_bits: u32) -> Result<(usize, &[u8]), DecodeError> {
    let (first, mut rest) = bytes.split_first().ok_or(DecodeError::Incomplete)?;
    let mask = (1u8 << prefix_bits) - 1;
    let mut value = usize::from(first & mask);
    if value < usize::from(mask) {
        return Ok((value, rest));
    }
    let mut shift = 0;
    loop {
        let (byte, behind) = rest.split_first().ok_or(DecodeError::Incomplete)?;
        rest = behind;
        value += usize::from(byte & 0x7f) << shift;
        if value > VALUE_MAX {
            return Err(HpackError::Malformed.into());
        }
        if byte & 0x80 == 0 {
            return Ok((value, rest));
        }
        shift += 7;
        // A longer one has leading zeros, without end.
        if shift > 28 {
            return Err(HpackError::Malformed.into());
        }
    }
}

/// Appends `value` to `out`; the first byte has `flags` above its `prefix_bits`.
pub(crate) fn write(out: &mut Vec<u8>, flags: u8, prefix_bits: u32, value: usize) {
    let mask = (1usize << prefix_bits) - 1;
    if value < mask {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_whatever_their_prefix() {
        for prefix_bits in 1..=8 {
            if prefix_bits == 8 {
                continue;
            }
            for value in [0, 1, 9, 10, 30, 31, 126, 127, 128, 1337, 65_535, VALUE_MAX] {
                let mut wire = Vec::new();
                write(&mut wire, 0, prefix_bits, value);
                wire.push(0xaa);
                let (read_value, rest) = read(&wire, prefix_bits).expect("whole");
                assert_eq!((read_value, rest), (value, &[0xaa][..]));
                for cut in 0..wire.len() - 1 {
                    let outcome = read(&wire[..cut], prefix_bits);
                    assert_eq!(outcome, Err(DecodeError::Incomplete), "{value} {cut}");
                }
            }
        }
    }

    #[test]
    fn endless_and_huge_ones_are_refused() {
        for wire in [
            &[0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..],
            &[0x1f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
            &[0x1f, 0xff, 0xff, 0xff, 0x7f],
        ] {
            let outcome = read(wire, 5);
            assert_eq!(outcome, Err(HpackError::Malformed.into()), "{wire:?}");
        }
    }
}
