//! Numbers as upstream's serialiser writes them: doubles in the shortest form that reads back, with
//! at least one decimal.

use std::ops::Range;

use super::digits;
pub(crate) use super::number_room::NumberRoom;
use super::number_room::{put, put_text};
use super::shortest::ShortestDigits;

/// Writes a whole number; returns the length of its text.
#[inline]
pub(crate) fn unsigned(room: &mut NumberRoom, value: u64) -> usize {
    unsigned_at(room, 0, value)
}

/// Writes a whole number with its sign; returns the length of its text.
#[inline]
pub(crate) fn signed(room: &mut NumberRoom, value: i64) -> usize {
    let begin = sign(room, value < 0);
    unsigned_at(room, begin, value.unsigned_abs())
}

/// Writes `value` in rapidjson's layout: plain notation from 1e-6 up to 21 digits, else an
/// exponent; `NaN`, `Infinity` as such. Returns the length of its text.
#[inline]
pub(crate) fn double(room: &mut NumberRoom, value: f64) -> usize {
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return put(room, 0, b"NaN");
    }
    let begin = sign(room, value.is_sign_negative());
    if let Some(end) = eighths(room, begin, magnitude) {
        return end;
    }
    shortest_text(room, begin, magnitude)
}

/// Apart, so that the short way needs none of its registers.
#[inline(never)]
fn shortest_text(room: &mut NumberRoom, begin: usize, magnitude: f64) -> usize {
    if let Some(digits) = ShortestDigits::of(magnitude) {
        return digits.write(room, begin);
    }
    if magnitude.is_infinite() {
        return put(room, begin, b"Infinity");
    }
    let mut buffer = zmij::Buffer::new();
    let shortest = buffer.format_finite(magnitude).as_bytes();
    match SAME_LAYOUT.iter().any(|range| range.contains(&magnitude)) {
        true => put_text(room, begin, shortest),
        false => lay_out(room, begin, shortest),
    }
}

/// Where the shortest text has the layout that rapidjson would give it: plain, or with an exponent.
const SAME_LAYOUT: [Range<f64>; 2] = [1e-5..1e16, 0.0..1e-6];

/// Writes the sign of a negative number; returns where its digits begin.
#[inline]
fn sign(room: &mut NumberRoom, is_negative: bool) -> usize {
    // Without a branch, which would be mispredicted: digits overwrite it.
    room[0] = b'-';
    usize::from(is_negative)
}

fn unsigned_at(room: &mut NumberRoom, begin: usize, value: u64) -> usize {
    const EIGHT_DIGITS: u64 = 100_000_000;
    let (high, low) = (value / EIGHT_DIGITS, (value % EIGHT_DIGITS) as u32);
    if high == 0 {
        return below_eight_digits(room, begin, low);
    }
    let middle = unsigned_at(room, begin, high);
    put(room, middle, &digits::eight(low))
}

/// Writes a whole number below 10^8; returns the end of its text.
#[inline]
fn below_eight_digits(room: &mut NumberRoom, begin: usize, value: u32) -> usize {
    if let Some((text, length)) = digits::small_text(value) {
        put(room, begin, &text);
        return begin + length;
    }
    let (text, length) = digits::short_text(value);
    put(room, begin, &text);
    begin + length
}

/// Writes a `value` that is not negative if it is a multiple of 1/8 below 10^8, as labels, counts,
/// and many scores and pixels are; returns the end of its text.
///
/// The exact expansion has at most three decimals. It is the shortest text that reads back as
/// `value`: one with fewer digits would differ by 0.001 or more, and doubles of this size lie
/// closer than a millionth.
#[inline]
fn eighths(room: &mut NumberRoom, begin: usize, value: f64) -> Option<usize> {
    /// By the remainder: the text, and in the last byte its length.
    static DECIMALS: [[u8; 8]; 8] = [
        *b".0     \x02",
        *b".125   \x04",
        *b".25    \x03",
        *b".375   \x04",
        *b".5     \x02",
        *b".625   \x04",
        *b".75    \x03",
        *b".875   \x04",
    ];
    /// The last bit of a double of this size is an eighth, and its others are zero: the sum with a
    /// smaller number is rounded to eighths, and its lower bits are how many.
    const LAST_BIT_IS_AN_EIGHTH: f64 = (1_u64 << (f64::MANTISSA_DIGITS - 4)) as f64;
    let sum = value + LAST_BIT_IS_AN_EIGHTH;
    if value >= 1e8 || sum - LAST_BIT_IS_AN_EIGHTH != value {
        return None;
    }
    let eighth_count = sum.to_bits() as u32;
    let middle = below_eight_digits(room, begin, eighth_count >> 3);
    let decimals = DECIMALS[(eighth_count & 7) as usize];
    put(room, middle, &decimals);
    Some(middle + usize::from(decimals[7]))
}

/// Writes the shortest text of a number that rapidjson lays out in another way: plain up to 21
/// digits, exponents without a plus.
#[cold]
fn lay_out(room: &mut NumberRoom, begin: usize, shortest: &[u8]) -> usize {
    let (digits, count, exponent) = split(shortest);
    let digits = digits.get(..count).unwrap_or(&[]);
    // Position of the decimal point relative to the first digit.
    let point = count as i32 + exponent;
    let mut end = begin;
    let mut push = |text: &[u8]| end = put_text(room, end, text);
    let zeros = |count: i32| &b"000000000000000000000"[..count.unsigned_abs().min(21) as usize];
    if point > 21 {
        let plus = shortest.iter().position(|byte| *byte == b'+');
        let (head, tail) = shortest.split_at(plus.unwrap_or(shortest.len()));
        push(head);
        push(tail.get(1..).unwrap_or(&[]));
    } else if exponent >= 0 {
        push(digits);
        push(zeros(exponent));
        push(b".0");
    } else if point > 0 {
        let (whole, fraction) = digits.split_at(point as usize);
        push(whole);
        push(b".");
        push(fraction);
    } else {
        push(b"0.");
        push(zeros(point));
        push(digits);
    }
    end
}

/// Significant digits (without leading and trailing zeros) and decimal exponent of a shortest
/// representation such as `1.25e-7`.
fn split(text: &[u8]) -> ([u8; 24], usize, i32) {
    let mut digits = [0; 24];
    let mut count = 0usize;
    let mut exponent = 0i32;
    let mut is_fraction = false;
    for (index, byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                if (count > 0 || *byte != b'0')
                    && let Some(place) = digits.get_mut(count)
                {
                    *place = *byte;
                    count += 1;
                }
                exponent -= i32::from(is_fraction);
            }
            b'.' => is_fraction = true,
            b'e' | b'E' => {
                let tail = text
                    .get(index + 1..)
                    .and_then(|tail| std::str::from_utf8(tail).ok())
                    .unwrap_or("0");
                exponent += tail.trim_start_matches('+').parse::<i32>().unwrap_or(0);
                break;
            }
            _ => {}
        }
    }
    while count > 1 && digits.get(count - 1) == Some(&b'0') {
        count -= 1;
        exponent += 1;
    }
    (digits, count, exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_forms_are_the_shortest_that_read_back() {
        for value in (0..40_000u64)
            .map(|eighths| eighths as f64 / 8.0)
            .chain([
                4_294_967_295.875,
                4_294_967_296.125,
                0.1,
                1e15,
                123_456.789,
                1e-5,
                9.9e-6,
            ])
            .filter(|value| *value > 0.0)
        {
            let text = written(|room| double(room, value));
            let shortest = zmij::Buffer::new().format_finite(value).to_owned();
            assert_eq!(text.parse::<f64>().unwrap(), value);
            if !shortest.contains('e') {
                assert_eq!(text, shortest);
            }
        }
    }

    fn written(write: impl FnOnce(&mut NumberRoom) -> usize) -> String {
        let mut room = [0xff; 32];
        let length = write(&mut room);
        String::from_utf8(room[..length].to_vec()).unwrap()
    }

    #[test]
    fn doubles_look_as_rapidjson_writes_them() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1f32 as f64, "0.10000000149011612"),
            (1e20, "100000000000000000000.0"),
            (1e21, "1e21"),
            (1.5e300, "1.5e300"),
            (0.001, "0.001"),
            (0.000001, "0.000001"),
            (0.0000001, "1e-7"),
            (1.25e-7, "1.25e-7"),
            (123456789.125, "123456789.125"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e308"),
            (16777216.0, "16777216.0"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(written(|room| double(room, value)), expected);
        }
    }

    #[test]
    fn doubles_read_back_as_they_were() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let value = f64::from_bits(state);
            // Of all sizes, and around the places where the layout changes.
            for value in [value, f64::from_bits(value.to_bits() >> 7 | 0x3e00 << 48)] {
                if value.is_finite() {
                    let text = written(|room| double(room, value));
                    // Of two texts that are as short and as near, each takes another one.
                    let layout = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "0");
                    assert_eq!(layout(&text), layout(&laid_out(value)), "{text}");
                    assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits());
                }
            }
        }
    }

    /// The shortest digits of the standard library in rapidjson's layout.
    fn laid_out(value: f64) -> String {
        let scientific = format!("{value:e}");
        let exponent: i32 = scientific.split_once('e').unwrap().1.parse().unwrap();
        match exponent {
            -6..21 if value.fract() == 0.0 => format!("{value}.0"),
            -6..21 => value.to_string(),
            _ => scientific,
        }
    }

    #[test]
    fn whole_numbers() {
        for value in [0, 7, 99_999_999, 100_000_000, 12_345_678_901, i64::MAX] {
            for value in [value, -value] {
                assert_eq!(written(|room| signed(room, value)), value.to_string());
            }
        }
        for value in [10_000_000_000_000_000, u64::MAX] {
            assert_eq!(written(|room| unsigned(room, value)), value.to_string());
        }
        assert_eq!(written(|room| signed(room, i64::MIN)), i64::MIN.to_string());
    }
}
