//! Numbers of JSON.

/// The value of a checked number if it is a whole one that fits.
#[inline]
pub(super) fn unsigned(token: &[u8]) -> Option<u64> {
    match token.strip_prefix(b"-") {
        // rapidjson takes -0 for the integer 0.
        Some(b"0") => Some(0),
        Some(_) => None,
        None => whole(token),
    }
}

/// As [`unsigned`], with a sign.
#[inline]
pub(super) fn signed(token: &[u8]) -> Option<i64> {
    match token.strip_prefix(b"-") {
        Some(digits) => 0i64.checked_sub_unsigned(whole(digits)?),
        None => i64::try_from(whole(token)?).ok(),
    }
}

/// The value of any checked number.
#[inline]
pub(super) fn double(token: &[u8]) -> Option<f64> {
    if token == b"-0" {
        return Some(0.0);
    }
    short_double(token).or_else(|| fast_float2::parse(token).ok())
}

/// The value of `[-]digits[.digits]` with at most 15 digits: then the digits as a whole number and
/// the power of ten that divides them are both exact, and one division rounds once, which is
/// correct rounding.
#[inline]
fn short_double(token: &[u8]) -> Option<f64> {
    const DIGITS_MAX: usize = 15;
    const POWERS_OF_TEN: [f64; DIGITS_MAX + 1] = [
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
    ];
    let (is_negative, digits) = match token.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, token),
    };
    if digits.len() > DIGITS_MAX {
        return None;
    }
    let mut value = 0u64;
    let mut point = digits.len();
    for (index, byte) in digits.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            value = value * 10 + u64::from(digit);
        } else if *byte == b'.' {
            point = index + 1;
        } else {
            return None;
        }
    }
    let magnitude = value as f64 / POWERS_OF_TEN.get(digits.len() - point)?;
    Some(if is_negative { -magnitude } else { magnitude })
}

#[inline]
fn whole(digits: &[u8]) -> Option<u64> {
    if digits.len() <= 19 {
        // Cannot overflow: 10^19 - 1 < 2^64.
        let mut value = 0u64;
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + u64::from(digit);
        }
        return Some(value);
    }
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_read_as_the_exact_parser_does() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        for _ in 0..50_000 {
            let (whole_bound, fraction_bound) =
                (10u64.pow(next(8) as u32), 10u64.pow(next(8) as u32));
            let sign = if next(2) == 0 { "" } else { "-" };
            let (whole, fraction) = (next(whole_bound), next(fraction_bound));
            for text in [
                format!("{sign}{whole}"),
                format!("{sign}{whole}.{fraction:03}"),
            ] {
                if text == "-0" {
                    continue;
                }
                let exact: f64 = fast_float2::parse(&text).unwrap();
                let got = double(text.as_bytes()).unwrap();
                assert_eq!(got.to_bits(), exact.to_bits(), "{text}");
            }
        }
        assert_eq!(short_double(b"1e5"), None);
        assert_eq!(short_double(b"1234567890123456"), None);
    }
}
