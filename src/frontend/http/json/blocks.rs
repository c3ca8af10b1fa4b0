//! Which bytes of 64 are of which kind: a bit each, the first byte's in the lowest.

use wide::u8x16;

/// So many bytes are looked at together.
pub(super) const BLOCK_BYTES: usize = 64;

pub(super) type TextBlock = [u8; BLOCK_BYTES];

/// The kinds of bytes that arrays of numbers consist of, without exponents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NumberBytes {
    pub(super) digits: u64,
    pub(super) zeros: u64,
    pub(super) points: u64,
    pub(super) minuses: u64,
    pub(super) commas: u64,
    pub(super) blanks: u64,
}

/// Where `block` has commas.
#[inline]
pub(super) fn commas(block: &TextBlock) -> u64 {
    positions(&parts(block), |part| part.simd_eq(u8x16::splat(b',')))
}

#[inline]
pub(super) fn number_bytes(block: &TextBlock) -> NumberBytes {
    let parts = parts(block);
    let positions_of = |byte: u8| positions(&parts, |part| part.simd_eq(u8x16::splat(byte)));
    NumberBytes {
        digits: positions(&parts, |part| {
            let value = part - u8x16::splat(b'0');
            value.min(u8x16::splat(9)).simd_eq(value)
        }),
        zeros: positions_of(b'0'),
        points: positions_of(b'.'),
        minuses: positions_of(b'-'),
        commas: positions_of(b','),
        blanks: positions_of(b' '),
    }
}

/// Vectors of SSE2, which every x86-64 has.
#[inline]
fn parts(block: &TextBlock) -> [u8x16; 4] {
    let (parts, _) = block.as_chunks::<16>();
    [0, 1, 2, 3].map(|index| u8x16::new(parts[index]))
}

/// Where `compare` sets all bits of a byte.
#[inline]
fn positions(parts: &[u8x16; 4], compare: impl Fn(u8x16) -> u8x16) -> u64 {
    let [first, second, third, fourth] = parts.map(|part| u64::from(compare(part).to_bitmask()));
    first | second << 16 | third << 32 | fourth << 48
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_its_bit() {
        let bits_of = |block: &TextBlock, is_one: &dyn Fn(u8) -> bool| {
            let ones = block.iter().enumerate().filter(|(_, byte)| is_one(**byte));
            ones.fold(0u64, |bits, (index, _)| bits | 1 << index)
        };
        for shift in 0..=u8::MAX {
            for step in [1, 3, 7, 77] {
                let block = std::array::from_fn(|index| {
                    shift.wrapping_add((index as u8).wrapping_mul(step))
                });
                let expected = NumberBytes {
                    digits: bits_of(&block, &|byte| byte.is_ascii_digit()),
                    zeros: bits_of(&block, &|byte| byte == b'0'),
                    points: bits_of(&block, &|byte| byte == b'.'),
                    minuses: bits_of(&block, &|byte| byte == b'-'),
                    commas: bits_of(&block, &|byte| byte == b','),
                    blanks: bits_of(&block, &|byte| byte == b' '),
                };
                assert_eq!(number_bytes(&block), expected);
                assert_eq!(commas(&block), expected.commas);
            }
        }
    }
}
