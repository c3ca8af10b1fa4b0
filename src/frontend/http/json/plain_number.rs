//! Numbers without exponents, read without a loop over their digits.
//!
//! Where a number ends is known before, by the comma behind it, and no branch depends on its
//! digits: while one is read the processor begins with the next. What takes more than this is left
//! to [`number`](super::number).

use super::digits::{self, EIGHT_DIGITS, POINT, joined, others};
use super::quotient;

/// By exponent.
const POWERS_OF_TEN: [u64; 17] = {
    let mut powers = [1; 17];
    let mut exponent = 1;
    while exponent < powers.len() {
        powers[exponent] = powers[exponent - 1] * 10;
        exponent += 1;
    }
    powers
};

/// A number, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainNumber {
    is_negative: bool,
    /// All digits as one whole number.
    digits: u64,
    /// How many are behind the point, if it has one.
    scale: Option<i32>,
}

impl PlainNumber {
    /// Reads the checked number that is `text[start..end]`, if it has at most 24 bytes behind its
    /// sign and its point, if any, is among the first eight. Looks at bytes around it too, so that
    /// some numbers at the ends of a text are left.
    #[inline(always)]
    pub(super) fn read(text: &[u8], start: usize, end: usize) -> Option<PlainNumber> {
        let is_negative = text.get(start) == Some(&b'-');
        let begin = start + usize::from(is_negative);
        let length = end.checked_sub(begin)?;
        let head = digits::values_at(text, begin)?;
        let (digits, scale) = match length {
            1..=8 => short(head, length),
            9..=24 => {
                let middle = digits::values_at(text, end.checked_sub(16)?)?;
                let last = digits::values_at(text, end.checked_sub(8)?)?;
                long(head, middle, last, length)
            }
            _ => None,
        }?;
        Some(PlainNumber {
            is_negative,
            digits,
            scale,
        })
    }

    /// Its value if it is a whole number that is not negative.
    #[inline(always)]
    pub(super) fn as_unsigned(self) -> Option<u64> {
        // rapidjson takes -0 for the integer 0.
        let is_unsigned = self.scale.is_none() && (!self.is_negative || self.digits == 0);
        is_unsigned.then_some(self.digits)
    }

    /// As [`PlainNumber::as_unsigned`], with a sign.
    #[inline(always)]
    pub(super) fn as_signed(self) -> Option<i64> {
        // Whole numbers have at most 16 digits here.
        let magnitude = self.digits as i64;
        let value = if self.is_negative {
            -magnitude
        } else {
            magnitude
        };
        self.scale.is_none().then_some(value)
    }

    /// The double that is nearest to it; none if finding it takes more than this.
    #[inline(always)]
    pub(super) fn as_double(self) -> Option<f64> {
        let magnitude = match self.scale {
            None => self.digits as f64,
            Some(scale) => quotient::nearest(self.digits, scale)?,
        };
        Some(self.signed(magnitude))
    }

    /// As [`PlainNumber::as_double`], made a single.
    #[inline(always)]
    pub(super) fn as_single(self) -> Option<f32> {
        let magnitude = match self.scale {
            None => self.digits as f64,
            Some(scale) => for_single(self.digits, scale)?,
        };
        Some(self.signed(magnitude) as f32)
    }

    #[inline(always)]
    fn signed(self, magnitude: f64) -> f64 {
        // The integer 0 has no sign.
        let is_negative = self.is_negative && (self.scale.is_some() || self.digits != 0);
        let sign = u64::from(is_negative) << 63;
        f64::from_bits(magnitude.to_bits() | sign)
    }
}

/// A double that becomes the same single as the one that is nearest to `digits / 10^scale`.
#[inline(always)]
fn for_single(digits: u64, scale: i32) -> Option<f64> {
    if let Some(value) = quotient::of_exact(digits, scale) {
        return Some(value);
    }
    let value = quotient::approximate(digits, scale)?;
    match is_clear(value) {
        true => Some(value),
        false => quotient::nearest(digits, scale),
    }
}

/// Whether `value` and all doubles next to it up to two units in the last place away become the
/// same single, so that it need not be the nearest.
#[inline(always)]
fn is_clear(value: f64) -> bool {
    /// What a single drops of a double, and the middle of that, where it rounds up or down.
    const DROPPED: u64 = (1 << 29) - 1;
    const MIDDLE: u64 = 1 << 28;
    let distance = (value.to_bits() & DROPPED).abs_diff(MIDDLE);
    // Smaller ones drop more.
    distance > 4 && value >= f64::from(f32::MIN_POSITIVE)
}

/// Digits and scale of a number of one to eight bytes, the first of `head`.
#[inline(always)]
fn short(head: u64, length: usize) -> Option<(u64, Option<i32>)> {
    // Its last byte is the highest one. In front of it are zeros, which are digits.
    let values = head << (64 - 8 * length);
    let others = others(values);
    if others == 0 {
        return Some((joined(values), None));
    }
    // The lowest bit of the point's byte, and how many bytes are above it.
    let point = others >> 7;
    let scale = others.leading_zeros() / 8;
    if others & (others - 1) != 0 || values >> (56 - 8 * scale) & 0xff != POINT {
        return None;
    }
    let in_front = values & (point - 1);
    let behind = values & (point << 8).wrapping_neg();
    Some((joined(in_front << 8 | behind), Some(scale as i32)))
}

/// Of 9 to 24 bytes: the first eight, and the last sixteen.
#[inline(always)]
fn long(head: u64, middle: u64, last: u64, length: usize) -> Option<(u64, Option<i32>)> {
    let others_of_head = others(head);
    let (digit_count, scale, begin) = match others_of_head {
        0 => (length, None, 0),
        _ => {
            let point = point_of(head, others_of_head)?;
            (length - 1 - point, Some((length - 1 - point) as i32), point)
        }
    };
    // The last sixteen digits, or as many as there are behind the point.
    let last = last & from_byte(8_usize.saturating_sub(digit_count));
    let middle = middle & from_byte(16_usize.saturating_sub(digit_count));
    if others(middle) | others(last) != 0 {
        return None;
    }
    // Those in front of them, the point taken out.
    let rest_count = begin + digit_count.saturating_sub(16);
    let rest = match scale {
        None if rest_count > 0 => return None,
        None => 0,
        Some(_) => joined(without_byte(head, begin) << (64 - 8 * rest_count)),
    };
    let power = POWERS_OF_TEN.get(digit_count.min(16))?;
    let fraction = joined(middle) * EIGHT_DIGITS + joined(last);
    let digits = rest.checked_mul(*power)?.checked_add(fraction)?;
    Some((digits, scale))
}

/// Which byte of `values` is the point; none if another one is no digit either.
#[inline(always)]
fn point_of(values: u64, others: u64) -> Option<usize> {
    let point = (others.trailing_zeros() / 8) as usize;
    let is_point = others & (others - 1) == 0 && values >> (8 * point) & 0xff == POINT;
    (is_point && point > 0).then_some(point)
}

/// `values` without one of its bytes; those behind it move up.
#[inline(always)]
fn without_byte(values: u64, byte: usize) -> u64 {
    let below = (1 << (8 * byte)) - 1;
    values & below | values >> 8 & !below
}

/// The bytes from this one on; none from the ninth.
#[inline(always)]
fn from_byte(byte: usize) -> u64 {
    u64::MAX.checked_shl(8 * byte as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::number::JsonNumber;
    use super::*;
    use crate::testing::Random;

    /// What is read of `number` within a text; compared with the reader that takes everything.
    fn check(number: &str) -> Option<PlainNumber> {
        let text = format!("[1234567890.12345,{number},-0.5,1234567890.12345]");
        let (start, end) = (18, 18 + number.len());
        let plain = PlainNumber::read(text.as_bytes(), start, end)?;
        let careful = JsonNumber::read(text.as_bytes(), start);
        assert_eq!(careful.length(), number.len(), "{number}");
        assert_eq!(plain.as_unsigned(), careful.as_unsigned(), "{number}");
        assert_eq!(plain.as_signed(), careful.as_signed(), "{number}");
        let exact = careful.as_double().unwrap();
        if let Some(value) = plain.as_double() {
            assert_eq!(value.to_bits(), exact.to_bits(), "{number}");
        }
        if let Some(value) = plain.as_single() {
            assert_eq!(value.to_bits(), (exact as f32).to_bits(), "{number}");
        }
        Some(plain)
    }

    #[test]
    fn usual_numbers_are_read() {
        for number in [
            "0",
            "-0",
            "7",
            "-7",
            "12345678",
            "123456789",
            "-1234567890123456",
            "0.5",
            "-0.0",
            "12.75",
            "1234567.5",
            "1234567.12345678",
            "0.10000000149011612",
            "-0.10000000149011612",
            "12.345678901234567",
            "0.000012345678901234567",
            "922.5",
            "0.0",
            "1.0",
            "16777217.0",
            "99999.99999999999",
        ] {
            assert!(
                check(number).is_some() == (number != "16777217.0"),
                "{number}"
            );
        }
    }

    #[test]
    fn others_are_left() {
        for number in [
            "1e5",
            "1.5e3",
            "NaN",
            "-Infinity",
            "12345678901234567",
            "123456789.5",
            "9.2233720368547758075",
            "0.12345678901234567890123",
            "1]",
            "[1",
            "\"1\"",
            "1 ",
        ] {
            let text = format!("[1234567890.12345,{number},-0.5,1234567890.12345]");
            let read = PlainNumber::read(text.as_bytes(), 18, 18 + number.len());
            assert_eq!(read, None, "{number}");
        }
        // At the ends of a text.
        assert_eq!(PlainNumber::read(b"[0.123456789,1]", 1, 12), None);
        assert_eq!(PlainNumber::read(b"[1,2]", 1, 2), None);
        assert_eq!(PlainNumber::read(b"[1,2]", 3, 2), None);
        assert_eq!(PlainNumber::read(b"[1,2]", 30, 40), None);
    }

    /// Beside the reader that takes everything, with halves between two singles among them.
    #[test]
    fn values_are_those_of_the_other_reader() {
        let mut random = Random::new(1);
        let mut next = |bound: u64| random.below(bound);
        let mut read_count = 0;
        for _ in 0..300_000 {
            let single = f32::from_bits(((118 + next(24)) << 23 | next(1 << 23)) as u32);
            let between =
                f64::from(single) + (f64::from(single.next_up()) - f64::from(single)) / 2.0;
            let bound = [10, 1000, 1 << 40, u64::MAX][next(4) as usize];
            let number = match next(6) {
                0 => next(bound).to_string(),
                1 => format!("{}.{}", next(1000), next(bound)),
                2 => format!("0.{:0>width$}", next(1 << 40), width = next(23) as usize),
                3 => f64::from(single).to_string(),
                4 => between.to_string(),
                _ => format!("{:.*}", next(18) as usize, between.next_up()),
            };
            let sign = ["", "-"][next(2) as usize];
            read_count += u32::from(check(&format!("{sign}{number}")).is_some());
        }
        assert!(read_count > 200_000, "{read_count}");
    }
}
