//! Numbers of JSON.

use super::digits;
use super::quotient;

/// So many digits fit 64 bits, whichever they are.
const DIGITS_MAX: usize = 19;
/// An exponent with more digits is out of a double's reach, or has leading zeros.
const EXPONENT_DIGITS_MAX: usize = 3;

/// A checked number, taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonNumber<'t> {
    token: &'t [u8],
    is_negative: bool,
    form: NumberForm,
}

#[derive(Clone, Copy, Debug)]
enum NumberForm {
    /// Digits without a point and an exponent.
    Whole(u64),
    /// `digits / 10^scale`.
    Decimal { digits: u64, scale: i32 },
    /// More digits than [`DIGITS_MAX`], or a name such as `NaN`.
    Other,
}

impl<'t> JsonNumber<'t> {
    /// Reads the checked number that begins at `start`, and ends before anything that is no part of
    /// a number.
    #[inline]
    pub(super) fn read(text: &'t [u8], start: usize) -> JsonNumber<'t> {
        let is_negative = text.get(start) == Some(&b'-');
        let begin = start + usize::from(is_negative);
        if let Some(number) = digits::short_decimal(text, begin) {
            return JsonNumber {
                token: text.get(start..begin + number.length()).unwrap_or(&[]),
                is_negative,
                form: NumberForm::Decimal {
                    digits: number.digits,
                    scale: number.fraction_count as i32,
                },
            };
        }
        let (mut value, mut end) = digits::append(text, begin, 0);
        let mut digit_count = end - begin;
        let mut scale = 0;
        let mut is_short = digit_count > 0;
        let mut is_whole = true;
        if text.get(end) == Some(&b'.') {
            is_whole = false;
            let fraction = end + 1;
            (value, end) = digits::append(text, fraction, value);
            digit_count += end - fraction;
            scale = (end - fraction) as i32;
        }
        if let Some(b'e' | b'E') = text.get(end) {
            is_whole = false;
            let exponent = Exponent::read(text, end + 1);
            is_short &= exponent.digit_count <= EXPONENT_DIGITS_MAX;
            scale = scale.wrapping_sub(exponent.value);
            end = exponent.end;
        }
        if digit_count == 0 {
            end = name_end(text, begin);
        }
        let token = text.get(start..end).unwrap_or(&[]);
        if digit_count > DIGITS_MAX {
            is_short &= significant_count(token) <= DIGITS_MAX;
        }
        let form = match (is_short, is_whole) {
            (true, true) => NumberForm::Whole(value),
            (true, false) => NumberForm::Decimal {
                digits: value,
                scale,
            },
            (false, _) => NumberForm::Other,
        };
        JsonNumber {
            token,
            is_negative,
            form,
        }
    }

    /// Bytes of its text.
    #[inline]
    pub(super) fn length(self) -> usize {
        self.token.len()
    }

    /// Its value if it is a whole number that fits.
    #[inline]
    pub(super) fn as_unsigned(self) -> Option<u64> {
        match (self.form, self.is_negative) {
            // rapidjson takes -0 for the integer 0.
            (NumberForm::Whole(value), is_negative) if !is_negative || value == 0 => Some(value),
            (NumberForm::Other, false) => long_whole(self.token),
            _ => None,
        }
    }

    /// As [`JsonNumber::as_unsigned`], with a sign.
    #[inline]
    pub(super) fn as_signed(self) -> Option<i64> {
        match (self.form, self.is_negative) {
            (NumberForm::Whole(value), false) => i64::try_from(value).ok(),
            (NumberForm::Whole(value), true) => 0i64.checked_sub_unsigned(value),
            // Whole numbers of twenty digits are out of its range.
            _ => None,
        }
    }

    /// The double that is nearest to it.
    #[inline]
    pub(super) fn as_double(self) -> Option<f64> {
        let magnitude = match self.form {
            NumberForm::Whole(0) => return Some(0.0),
            NumberForm::Whole(value) => Some(value as f64),
            NumberForm::Decimal { digits, scale } => quotient::nearest(digits, scale),
            NumberForm::Other => None,
        };
        match magnitude {
            Some(magnitude) if self.is_negative => Some(-magnitude),
            Some(magnitude) => Some(magnitude),
            None => fast_float2::parse(self.token).ok(),
        }
    }
}

struct Exponent {
    value: i32,
    digit_count: usize,
    end: usize,
}

impl Exponent {
    /// Reads what follows the `e`.
    #[inline]
    fn read(text: &[u8], at: usize) -> Exponent {
        let sign = text.get(at).copied();
        let begin = at + usize::from(matches!(sign, Some(b'+' | b'-')));
        let (magnitude, end) = digits::append(text, begin, 0);
        let magnitude = magnitude as i32;
        Exponent {
            value: match sign {
                Some(b'-') => magnitude.wrapping_neg(),
                _ => magnitude,
            },
            digit_count: end - begin,
            end,
        }
    }
}

/// The offset behind a name.
#[cold]
fn name_end(text: &[u8], start: usize) -> usize {
    let name = text.get(start..).unwrap_or(&[]);
    let is_letter = |byte: &&u8| byte.is_ascii_alphabetic();
    start + name.iter().take_while(is_letter).count()
}

/// Digits in front of the exponent, but for leading zeros.
#[cold]
fn significant_count(token: &[u8]) -> usize {
    let is_mantissa = |byte: &&u8| !matches!(byte, b'e' | b'E');
    let digits = token.iter().take_while(is_mantissa);
    let digits = digits.filter(|byte| byte.is_ascii_digit());
    digits.skip_while(|digit| **digit == b'0').count()
}

/// A number with more digits than [`DIGITS_MAX`], if it is whole and fits.
#[cold]
fn long_whole(token: &[u8]) -> Option<u64> {
    token.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn read(text: &str) -> JsonNumber<'_> {
        let number = JsonNumber::read(text.as_bytes(), 0);
        assert_eq!(number.length(), text.len(), "{text}");
        number
    }

    #[test]
    fn whole_numbers_are_read_where_they_fit() {
        for (text, unsigned, signed) in [
            ("0", Some(0), Some(0)),
            ("-0", Some(0), Some(0)),
            ("7", Some(7), Some(7)),
            ("-7", None, Some(-7)),
            ("9223372036854775807", Some(i64::MAX as u64), Some(i64::MAX)),
            ("9223372036854775808", Some(1 << 63), None),
            ("-9223372036854775808", None, Some(i64::MIN)),
            ("-9223372036854775809", None, None),
            ("18446744073709551615", Some(u64::MAX), None),
            ("18446744073709551616", None, None),
            ("-18446744073709551615", None, None),
            ("100000000000000000000000", None, None),
            ("1.0", None, None),
            ("1e3", None, None),
            ("NaN", None, None),
            ("-Infinity", None, None),
        ] {
            let number = read(text);
            assert_eq!(
                (number.as_unsigned(), number.as_signed()),
                (unsigned, signed),
                "{text}"
            );
        }
    }

    #[test]
    fn a_number_ends_where_no_number_goes_on() {
        for (text, length) in [
            ("1,2", 1),
            ("-1.5]", 4),
            ("1e5 ", 3),
            ("1E-05,", 5),
            ("NaN,", 3),
            ("-Inf]", 4),
            ("Infinity\n", 8),
            ("12345678.87654321,1", 17),
        ] {
            assert_eq!(JsonNumber::read(text.as_bytes(), 0).length(), length);
        }
    }

    #[test]
    fn names_and_zeros_have_their_values() {
        let double = |text: &str| read(text).as_double();
        assert!(double("NaN").is_some_and(f64::is_nan));
        for (text, expected) in [
            ("Infinity", f64::INFINITY),
            ("-Inf", f64::NEG_INFINITY),
            ("-0", 0.0),
            ("-0.0", -0.0),
            ("0e999", 0.0),
            ("-0.0000000000000000000000000000000000", -0.0),
        ] {
            let bits = double(text).map(f64::to_bits);
            assert_eq!(bits, Some(expected.to_bits()), "{text}");
        }
    }

    /// Numbers of all lengths, scales and exponents, and neighbours of halves, beside an exact
    /// parser.
    #[test]
    fn doubles_are_the_nearest() {
        let mut random = Random::new(1);
        let mut next = |bound: u64| random.below(bound);
        for round in 0..200_000 {
            let whole_digits = next(23) as u32;
            let whole = match whole_digits {
                0 => "0".to_owned(),
                digits => (1..digits).fold((1 + next(9)).to_string(), |text, _| {
                    text + &next(10).to_string()
                }),
            };
            let fraction: String = match next(4) {
                0 => String::new(),
                1 => "0".repeat(next(12) as usize) + &next(1000).to_string(),
                _ => (0..=next(22)).map(|_| next(10).to_string()).collect(),
            };
            let mut text = match fraction.is_empty() {
                true => whole,
                false => format!("{whole}.{fraction}"),
            };
            if round % 4 == 0 {
                // Exactly between two doubles: 54 bits, the last one set.
                let odd = (1 << 53) | next(1 << 53) | 1;
                text = format!("{:.*}", next(6) as usize, odd as f64 / 2.0);
                if round % 8 == 0 {
                    text = odd.to_string();
                }
            }
            if next(3) == 0 {
                text += &format!("e{}", next(60) as i32 - 40);
            }
            if next(2) == 0 {
                text.insert(0, '-');
            }
            let exact: f64 = text.parse().unwrap();
            let exact = if text == "-0" { 0.0 } else { exact };
            let got = read(&text).as_double().unwrap();
            assert_eq!(got.to_bits(), exact.to_bits(), "{text}");
        }
    }
}
