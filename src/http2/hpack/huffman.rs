//! The Huffman code of HPACK (RFC 7541, appendix B).
//!
//! The code is canonical: the lengths of its symbols say all. Codes of up to [`FAST_BITS`] bits are
//! looked up, longer ones, which text hardly has, are found by their length.

use smallvec::SmallVec;

/// Bits of each symbol's code; the last is the end of the string, which may not occur.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const LENGTH_MAX: usize = 30;
const FAST_BITS: u32 = 8;
const END: u16 = 256;

/// The code, ordered by length and symbol.
struct HuffmanCode {
    symbols: [u16; 257],
    /// By length: the first code, its place among the symbols, and the code behind the last.
    first: [u32; LENGTH_MAX + 1],
    place: [u16; LENGTH_MAX + 1],
    behind: [u32; LENGTH_MAX + 1],
    /// By the next [`FAST_BITS`] bits: symbol and length; length 0 for a longer code.
    fast: [(u8, u8); 1 << FAST_BITS],
}

static CODE: HuffmanCode = build();

const fn build() -> HuffmanCode {
    let mut code = HuffmanCode {
        symbols: [0; 257],
        first: [0; LENGTH_MAX + 1],
        place: [0; LENGTH_MAX + 1],
        behind: [0; LENGTH_MAX + 1],
        fast: [(0, 0); 1 << FAST_BITS],
    };
    let (mut count, mut next, mut length) = (0, 0u32, 1);
    while length <= LENGTH_MAX {
        next <<= 1;
        code.first[length] = next;
        code.place[length] = count as u16;
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                code.symbols[count] = symbol as u16;
                if length <= FAST_BITS as usize {
                    let free = FAST_BITS - length as u32;
                    let mut entry = 0;
                    while entry < 1 << free {
                        code.fast[(next << free) as usize + entry] = (symbol as u8, length as u8);
                        entry += 1;
                    }
                }
                count += 1;
                next += 1;
            }
            symbol += 1;
        }
        code.behind[length] = next;
        length += 1;
    }
    code
}

/// The string is no code, or its padding is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HuffmanError;

/// Appends the text of `coded` to `text`, which is at most 1.6 times as long.
pub(crate) fn decode<A: smallvec::Array<Item = u8>>(
    coded: &[u8],
    text: &mut SmallVec<A>,
) -> Result<(), HuffmanError> {
    text.try_reserve(coded.len() * 8 / 5 + 1)
        .map_err(|_| HuffmanError)?;
    // The next bits are the highest ones.
    let (mut bits, mut count) = (0u64, 0u32);
    let mut rest = coded.iter();
    loop {
        while count <= 56
            && let Some(byte) = rest.next()
        {
            bits |= u64::from(*byte) << (56 - count);
            count += 8;
        }
        let (symbol, length) = CODE.fast[(bits >> (64 - FAST_BITS)) as usize];
        if length > 0 && u32::from(length) <= count {
            text.push(symbol);
            bits <<= length;
            count -= u32::from(length);
            continue;
        }
        if count < FAST_BITS && is_padding(bits, count) {
            return Ok(());
        }
        // A short code is cut off.
        if length > 0 {
            return Err(HuffmanError);
        }
        let (symbol, length) = find_long(bits).ok_or(HuffmanError)?;
        if length > count {
            return Err(HuffmanError);
        }
        text.push(symbol);
        bits <<= length;
        count -= length;
    }
}

/// The first bits of the end's code, all ones, fill the last byte.
fn is_padding(bits: u64, count: u32) -> bool {
    count == 0 || bits >> (64 - count) == (1 << count) - 1
}

#[cold]
fn find_long(bits: u64) -> Option<(u8, u32)> {
    for length in FAST_BITS as usize + 1..=LENGTH_MAX {
        let code = (bits >> (64 - length)) as u32;
        if code < CODE.behind[length] {
            let place = usize::from(CODE.place[length]) + (code - CODE.first[length]) as usize;
            let symbol = CODE.symbols[place];
            return (symbol != END).then_some((symbol as u8, length as u32));
        }
    }
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The code of `text`, padded.
    pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
        let (mut coded, mut bits, mut count) = (Vec::new(), 0u64, 0);
        for symbol in text {
            let length = usize::from(LENGTHS[usize::from(*symbol)]);
            let place = (0..257)
                .find(|place| CODE.symbols[*place] == u16::from(*symbol))
                .expect("every symbol has a place");
            let offset = place as u32 - u32::from(CODE.place[length]);
            bits = bits << length | u64::from(CODE.first[length] + offset);
            count += length;
            while count >= 8 {
                count -= 8;
                coded.push((bits >> count) as u8);
                bits &= (1 << count) - 1;
            }
        }
        if count > 0 {
            coded.push((bits << (8 - count)) as u8 | ((1u16 << (8 - count)) - 1) as u8);
        }
        coded
    }

    fn decoded(coded: &[u8]) -> Result<Vec<u8>, HuffmanError> {
        let mut text = SmallVec::<[u8; 16]>::new();
        decode(coded, &mut text).map(|()| text.to_vec())
    }

    #[test]
    fn examples_of_the_specification() {
        let table: [(&[u8], &[u8]); 5] = [
            (b"", &[]),
            (
                b"www.example.com",
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ],
            ),
            (b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (
                b"custom-key",
                &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f],
            ),
            (b"302", &[0x64, 0x02]),
        ];
        for (text, coded) in table {
            assert_eq!(decoded(coded).as_deref(), Ok(text));
            assert_eq!(encode(text), coded);
        }
    }

    #[test]
    fn every_symbol_comes_back() {
        for first in 0..=255u8 {
            for second in [0, b'a', 0x7f, 0xff] {
                let text = [first, second, first, b'-', second];
                assert_eq!(decoded(&encode(&text)).as_deref(), Ok(&text[..]));
            }
        }
    }

    #[test]
    fn wrong_padding_and_the_end_symbol_are_refused() {
        // '0' is five zeros.
        for wrong in [
            &[0b0000_0000][..],
            &[0b0000_0110],
            &[0xff],
            &[0b0000_0111, 0xff],
            &[0xff; 4],
            &[0xff, 0xff, 0xff, 0xfc, 0x1f],
        ] {
            assert_eq!(decoded(wrong), Err(HuffmanError), "{wrong:?}");
        }
        assert_eq!(decoded(&[0b0000_0111]).as_deref(), Ok(&b"0"[..]));
    }
}
