//! The shortest text that reads back as a double, of doubles from 2^-17 to 2^23: exact arithmetic
//! in 128 bits with one multiplication, and no branch that depends on the digits.
//!
//! A double is `c * 2^-t`, with `c` below 2^53; whatever lies less than half a `2^-t` away reads
//! back as it. Let `n` be the largest number for which `10^-n` is no more than that unit, and
//! `width = 10^n * 2^-t`, from 1 to 10. Then `c * width` is the double in units of `10^-n`, and
//! `width` is how many of them read back. So there is one whole number among them, and at most one
//! multiple of ten: the shorter text. In this range `width` is a fraction of 60 bits, exactly.

use super::digits::{self, ZEROS};
use super::number_room::{NumberRoom, put};

/// `t` of the smallest and of the largest doubles.
const T_MAX: usize = 69;
const T_MIN: usize = 30;
const MANTISSA_BITS: u32 = 52;
/// `t` of the doubles whose exponent has no bits: `2^-1075`.
const T_OF_ZERO: u64 = 1075;

#[derive(Clone, Copy)]
struct DecimalUnit {
    /// `width * 2^60`.
    width: u64,
    /// `n`.
    scale: u32,
}

/// By `t`, from [`T_MIN`] on.
const UNITS: [DecimalUnit; T_MAX - T_MIN + 1] = {
    let mut units = [DecimalUnit { width: 0, scale: 0 }; T_MAX - T_MIN + 1];
    let mut t = T_MIN;
    while t <= T_MAX {
        let (mut scale, mut power) = (0, 1_u128);
        while power * 10 <= 1 << t {
            power *= 10;
            scale += 1;
        }
        // 10^(n+1) * 2^-t is above 1: of the powers that are not, the next one is the unit.
        power *= 10;
        scale += 1;
        let width = match t > 60 {
            true => power >> (t - 60),
            false => power << (60 - t),
        };
        units[t - T_MIN] = DecimalUnit {
            width: width as u64,
            scale,
        };
        t += 1;
    }
    units
};

/// The digits of a double and where its point is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShortestDigits {
    /// The first of seventeen digits; zero if there are sixteen.
    lead: u8,
    is_long: bool,
    /// The other sixteen, as text.
    high: u64,
    low: u64,
    /// But for the zeros at their end.
    significant_count: u8,
    /// In front of the point; below 1 if zeros follow it.
    whole_count: i8,
}

impl ShortestDigits {
    /// Those of `magnitude`, which has no sign. None if it is out of range, or a power of two,
    /// which less lies below than above of.
    #[inline(always)]
    pub(super) fn of(magnitude: f64) -> Option<ShortestDigits> {
        let bits = magnitude.to_bits();
        let mantissa = bits & ((1 << MANTISSA_BITS) - 1);
        let t = T_OF_ZERO.checked_sub(bits >> MANTISSA_BITS)? as usize;
        let unit = UNITS.get(t.checked_sub(T_MIN)?)?;
        if mantissa == 0 {
            return None;
        }
        const SIXTEEN_DIGITS: u64 = 10_000_000_000_000_000;
        let number = shortest(mantissa | 1 << MANTISSA_BITS, unit.width);
        let lead = number / SIXTEEN_DIGITS;
        let is_long = lead != 0;
        let count = 16 + i32::from(is_long);
        let (high, low) = digits::sixteen(number - lead * SIXTEEN_DIGITS);
        let zero_count = match low {
            0 => 8 + high.leading_zeros() / 8,
            _ => low.leading_zeros() / 8,
        };
        Some(ShortestDigits {
            lead: lead as u8 + b'0',
            is_long,
            high: high + ZEROS,
            low: low + ZEROS,
            significant_count: (count - zero_count as i32) as u8,
            whole_count: (count - unit.scale as i32) as i8,
        })
    }

    /// Writes them at `begin`, plainly and with at least one decimal; returns their end.
    #[inline(always)]
    pub(super) fn write(self, room: &mut NumberRoom, begin: usize) -> usize {
        let skipped = usize::from(!self.is_long);
        let write = |room: &mut NumberRoom, at: usize| {
            put(room, at, &[self.lead]);
            put(room, at + 1, &self.high.to_le_bytes());
            put(room, at + 9, &self.low.to_le_bytes());
        };
        let significant_count = usize::from(self.significant_count);
        let Some(whole_count) = usize::try_from(self.whole_count)
            .ok()
            .filter(|count| *count > 0)
        else {
            // Below 1. The first digit, if there are but sixteen, is in the place of a zero or of
            // the point.
            let zeros = usize::from(self.whole_count.unsigned_abs());
            put(room, begin, b"0.000000");
            write(room, begin + 2 + zeros - skipped);
            put(room, begin + 1, b".");
            return begin + 2 + zeros + significant_count;
        };
        // At most seven digits in front of the point: what is behind it, and then what is not.
        write(room, begin + 1 - skipped);
        let first = match self.is_long {
            true => self.high << 8 | u64::from(self.lead),
            false => self.high,
        };
        let whole = (1 << (8 * whole_count)) - 1;
        let point = u64::from(b'.') << (8 * whole_count);
        let fraction = first << 8 & !(whole << 8 | 0xff);
        put(
            room,
            begin,
            &(first & whole | point | fraction).to_le_bytes(),
        );
        begin + 1 + significant_count.max(whole_count + 1)
    }
}

/// The shortest and then nearest of the whole numbers that read back, with zeros in place of the
/// digits that it does not need.
#[inline]
fn shortest(c: u64, width: u64) -> u64 {
    let scaled = u128::from(c << 4) * u128::from(width);
    let (whole, fraction) = ((scaled >> 64) as u64, scaled as u64);
    let half = u128::from(width) << 3;
    let reach = half + u128::from(c & 1 == 0);
    // To the multiples of ten below and above.
    let ten = whole / 10 * 10;
    let above_ten = u128::from(whole - ten) << 64 | u128::from(fraction);
    let below_next = (10 << 64) - above_ten;
    // Halves go to the even one.
    let is_up = fraction > 1 << 63 || fraction == 1 << 63 && whole & 1 == 1;
    let nearest = whole + u64::from(is_up);
    if above_ten < reach {
        ten
    } else if below_next < reach {
        ten + 10
    } else {
        nearest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn text_of(value: f64) -> Option<String> {
        let mut room = [0xff; 32];
        let length = ShortestDigits::of(value)?.write(&mut room, 0);
        Some(String::from_utf8(room[..length].to_vec()).unwrap())
    }

    /// Beside a text with as many digits as it takes, from a crate that has them of all doubles.
    fn check(value: f64) {
        let mut buffer = zmij::Buffer::new();
        let shortest = buffer.format_finite(value);
        if let Some(text) = text_of(value).filter(|_| !shortest.contains('e')) {
            assert_eq!(text, shortest);
        } else if let Some(text) = text_of(value) {
            assert_eq!(text.parse::<f64>().unwrap(), value, "{text} {shortest}");
        }
    }

    #[test]
    fn the_range_ends_where_its_table_does() {
        let (least, end) = (2f64.powi(-17), 2f64.powi(23));
        for (value, is_in_range) in [
            (least.next_down(), false),
            (least, false),
            (least.next_up(), true),
            (1.0, false),
            (1f64.next_up(), true),
            (end.next_down(), true),
            (end, false),
            (end.next_up(), false),
            (0.0, false),
            (f64::INFINITY, false),
            (f64::NAN, false),
            (f64::MIN_POSITIVE / 3.0, false),
        ] {
            assert_eq!(text_of(value).is_some(), is_in_range, "{value:e}");
        }
    }

    /// Of each unit: it is what the head of this file says, without a remainder.
    #[test]
    fn units_are_exact() {
        for (index, unit) in UNITS.iter().enumerate() {
            let t = (T_MIN + index) as u32;
            let power = 10u128.pow(unit.scale);
            assert_eq!(u128::from(unit.width) << t, power << 60, "{t}");
            assert!(unit.width >= 1 << 60 && u128::from(unit.width) < 10 << 60);
        }
    }

    #[test]
    fn texts_look_as_they_should() {
        for (value, expected) in [
            (0.1f32 as f64, "0.10000000149011612"),
            (0.1, "0.1"),
            (0.3, "0.3"),
            (0.1 + 0.2, "0.30000000000000004"),
            (0.00001, "0.00001"),
            (0.0001234, "0.0001234"),
            (9.5, "9.5"),
            (3.0, "3.0"),
            (1234567.0, "1234567.0"),
            (1_234_567.5, "1234567.5"),
            (8388607.999, "8388607.999"),
            (5e-5, "0.00005"),
            (9007199.254740993, "9007199.254740993"),
        ] {
            let text = text_of(value);
            assert_eq!(text.as_deref().unwrap_or(expected), expected);
        }
    }

    #[test]
    fn texts_are_those_of_another_way() {
        let mut random = Random::new(1);
        let mut next = || random.next();
        for round in 0..600_000 {
            let exponent = (1023 - 18 + next() % 42) << 52;
            check(match round % 6 {
                0 => f64::from_bits(exponent | next() >> 12),
                // Singles.
                1 => f64::from_bits(exponent | next() >> 41 << 29),
                // Few digits.
                2 => (next() % 1_000_000_000) as f64 / 1e5,
                3 => (next() % 10_000_000) as f64 / 10f64.powi((next() % 10) as i32),
                // Halves between two texts.
                4 => (next() % (1 << 40)) as f64 / (1u64 << (next() % 45)) as f64,
                // Next to powers of two.
                _ => f64::from_bits(exponent | (next() % 64) | ((next() % 16) << 48)),
            });
        }
    }
}
