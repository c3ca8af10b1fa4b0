//! Runs of decimal digits, eight at a time in one register.

/// A point among the values of digits.
pub(super) const POINT: u64 = (b'.' ^ b'0') as u64;
pub(super) const ZEROS: u64 = 0x3030_3030_3030_3030;
/// What eight more digits multiply a number by.
pub(super) const EIGHT_DIGITS: u64 = 100_000_000;

/// Offset of the first byte at or after `at` that is no digit.
#[inline]
pub(super) fn skip(text: &[u8], mut at: usize) -> usize {
    while eight_at(text, at).is_some() {
        at += 8;
    }
    while let Some(b'0'..=b'9') = text.get(at) {
        at += 1;
    }
    at
}

/// Appends the digits at `at` to those of `value`. Returns them as a number, which has wrapped if
/// there are more than 19, and the offset behind them.
///
/// What is left after runs of eight goes digit by digit: for short runs a loop costs less than
/// shifts and multiplications.
#[inline]
pub(super) fn append(text: &[u8], mut at: usize, mut value: u64) -> (u64, usize) {
    while let Some(values) = eight_at(text, at) {
        value = value
            .wrapping_mul(EIGHT_DIGITS)
            .wrapping_add(joined(values));
        at += 8;
    }
    while let Some(digit @ b'0'..=b'9') = text.get(at) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        at += 1;
    }
    (value, at)
}

/// The values of the next eight bytes, whatever they are.
#[inline]
pub(super) fn values_at(text: &[u8], at: usize) -> Option<u64> {
    let bytes = text.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes) ^ ZEROS)
}

/// The values of the next eight bytes if all are digits, the first in the lowest byte.
#[inline]
fn eight_at(text: &[u8], at: usize) -> Option<u64> {
    let values = values_at(text, at)?;
    (others(values) == 0).then_some(values)
}

/// Whole numbers below this have their text in a table, as labels, pixels and counts mostly are.
const SMALL_NUMBERS: usize = 1000;

/// By number: its digits in the lower three bytes, the first in the lowest, and how many they are.
const SMALL_TEXTS: [u32; SMALL_NUMBERS] = {
    let mut texts = [0; SMALL_NUMBERS];
    let mut number = 0;
    while number < SMALL_NUMBERS {
        let (mut digits, mut count, mut rest) = (0, 0, number as u32);
        while count == 0 || rest > 0 {
            digits = digits << 8 | (b'0' as u32 + rest % 10);
            rest /= 10;
            count += 1;
        }
        texts[number] = digits | count << 24;
        number += 1;
    }
    texts
};

/// The digits of a number below 1,000, and their count. What follows them is no text.
#[inline]
pub(super) fn small_text(value: u32) -> Option<([u8; 4], usize)> {
    let text = *SMALL_TEXTS.get(value as usize)?;
    Some((text.to_le_bytes(), (text >> 24) as usize))
}

/// A number such as `12.75`, without a sign and an exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShortDecimal {
    /// All digits as one whole number.
    pub(super) digits: u64,
    pub(super) whole_count: usize,
    pub(super) fraction_count: usize,
}

impl ShortDecimal {
    pub(super) fn length(self) -> usize {
        self.whole_count + 1 + self.fraction_count
    }
}

/// Reads the number at `at` if it has a point, and at most seven bytes with it. No branch depends
/// on the number's length: the processor would mispredict most.
#[inline]
pub(super) fn short_decimal(text: &[u8], at: usize) -> Option<ShortDecimal> {
    let bytes = text.get(at..)?.first_chunk::<8>()?;
    let values = u64::from_le_bytes(*bytes) ^ ZEROS;
    let others = others(values);
    // Of the first byte that is no digit, and of the next one.
    let point = (others.trailing_zeros() / 8) as usize;
    let end = ((others & others.wrapping_sub(1)).trailing_zeros() / 8) as usize;
    if point == 0 || end >= 8 || end == point + 1 || values >> (8 * point) & 0xff != POINT {
        return None;
    }
    if bytes[end] | 0x20 == b'e' {
        return None;
    }
    let whole = (1 << (8 * point)) - 1;
    let digits = values & whole | values >> 8 & !whole;
    Some(ShortDecimal {
        digits: joined(digits << (8 * (9 - end))),
        whole_count: point,
        fraction_count: end - point - 1,
    })
}

/// The highest bit of each byte that is not below ten, and maybe of one behind a byte that is above
/// 0x89.
#[inline]
pub(super) fn others(values: u64) -> u64 {
    (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080
}

/// The number whose eight digits are the bytes of `values`, the first in the lowest.
#[inline]
pub(super) fn joined(values: u64) -> u64 {
    let pairs = (values.wrapping_mul(10).wrapping_add(values >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100).wrapping_add(pairs >> 16)) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(10_000).wrapping_add(fours >> 32)) & 0xffff_ffff
}

/// The eight digits of a number below 10^8, as text.
#[inline]
pub(super) fn eight(value: u32) -> [u8; 8] {
    spread(value).wrapping_add(ZEROS).to_le_bytes()
}

/// The digits of a number below 10^8 without leading zeros, and their count. Zero bytes
/// follow them.
#[inline]
pub(super) fn short_text(value: u32) -> ([u8; 8], usize) {
    let digits = spread(value);
    let zero_count = (digits.trailing_zeros() / 8).min(7);
    let text = digits.wrapping_add(ZEROS) >> (8 * zero_count);
    (text.to_le_bytes(), 8 - zero_count as usize)
}

/// The digits of a number below 10^16 in two halves, a byte each, the first in the lowest.
#[inline]
pub(super) fn sixteen(value: u64) -> (u64, u64) {
    let high = value / EIGHT_DIGITS;
    let low = value - high * EIGHT_DIGITS;
    (spread(high as u32), spread(low as u32))
}

/// The eight digits of a number below 10^8, a byte each, the first in the lowest.
#[inline]
fn spread(value: u32) -> u64 {
    debug_assert!(value < 100_000_000);
    let fours = u64::from(value / 10_000) | u64::from(value % 10_000) << 32;
    // x / 100 for x < 10,000, and x / 10 for x < 100, in each part.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | (fours - hundreds * 100) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (pairs - tens * 10) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_at_the_first_byte_that_is_no_digit() {
        for count in 0..20 {
            for end in 0..=u8::MAX {
                if end.is_ascii_digit() {
                    continue;
                }
                let digits = &"12345678901234567890"[..count];
                let value = digits.parse().unwrap_or(0);
                let mut text = digits.as_bytes().to_vec();
                assert_eq!(append(&text, 0, 0), (value, count), "at the end");
                text.extend([end, b'7', end, b'9', 0xff, 0x80, b'1', b'2', b'3']);
                assert_eq!(append(&text, 0, 0), (value, count), "{end}");
                assert_eq!(skip(&text, 0), count, "{end}");
            }
        }
        assert_eq!(append(b"12x", 0, 7), (712, 2));
        assert_eq!(append(b"1.000000017", 2, 1), (1_000_000_017, 11));
    }

    #[test]
    fn short_decimals_are_those_with_a_point() {
        for (text, expected) in [
            ("0.5,12345", Some((5, 1, 1))),
            ("12.75]   ", Some((1275, 2, 2))),
            ("1.00000,2", Some((100_000, 1, 5))),
            ("00.5,1234", Some((5, 2, 1))),
            ("1.000000,", None),
            ("1234567.8", None),
            ("12345678,", None),
            ("12,5.5,77", None),
            (".5,123456", None),
            ("5.,123456", None),
            ("1.5e3,123", None),
            ("1.5E3,123", None),
            ("1.5", None),
            ("1.5\u{fffd}9,1", Some((15, 1, 1))),
            ("1\u{fffd}9.5,1", None),
        ] {
            let decimal = short_decimal(text.as_bytes(), 0).map(|number| {
                assert_eq!(
                    number.length(),
                    number.whole_count + number.fraction_count + 1
                );
                (number.digits, number.whole_count, number.fraction_count)
            });
            assert_eq!(decimal, expected, "{text}");
        }
    }

    #[test]
    fn digits_are_those_of_the_standard_library() {
        for value in (0..100_000)
            .chain((100_000..100_000_000).step_by(977))
            .chain([99_999_999])
        {
            assert_eq!(eight(value), *format!("{value:08}").as_bytes(), "{value}");
            let (text, count) = short_text(value);
            assert_eq!(&text[..count], value.to_string().as_bytes());
            assert_eq!(small_text(value).is_some(), value < 1000);
            if let Some((text, count)) = small_text(value) {
                assert_eq!(&text[..count], value.to_string().as_bytes());
            }
        }
    }
}
