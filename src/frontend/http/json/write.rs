//! JSON text as upstream's serialiser writes it: compact, doubles in the shortest form with at
//! least one decimal.

/// Appends `text` in quotation marks.
pub(crate) fn string(target: &mut Vec<u8>, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    target.push(b'"');
    let mut clean_from = 0;
    for (index, byte) in text.iter().enumerate() {
        let short = match byte {
            b'"' => b'"',
            b'\\' => b'\\',
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0..0x20 => 0,
            _ => continue,
        };
        target.extend_from_slice(text.get(clean_from..index).unwrap_or(&[]));
        clean_from = index + 1;
        if short != 0 {
            target.extend_from_slice(&[b'\\', short]);
        } else {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            target.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    }
    target.extend_from_slice(text.get(clean_from..).unwrap_or(&[]));
    target.push(b'"');
}

/// Appends a whole number.
pub(crate) fn unsigned(target: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    target.extend_from_slice(&digits[start..]);
}

/// Appends a whole number with its sign.
pub(crate) fn signed(target: &mut Vec<u8>, value: i64) {
    if value < 0 {
        target.push(b'-');
    }
    unsigned(target, value.unsigned_abs());
}

/// Appends `value` in rapidjson's layout: plain notation from 1e-6 up to 21 digits, else an
/// exponent; `NaN`, `Infinity` as such.
pub(crate) fn double(target: &mut Vec<u8>, value: f64) {
    if value.is_nan() {
        target.extend_from_slice(b"NaN");
        return;
    }
    if value.is_sign_negative() {
        target.push(b'-');
    }
    let value = value.abs();
    if value.is_infinite() {
        target.extend_from_slice(b"Infinity");
        return;
    }
    if value == 0.0 {
        target.extend_from_slice(b"0.0");
        return;
    }
    if eighths(target, value) {
        return;
    }
    let mut buffer = zmij::Buffer::new();
    let shortest = buffer.format_finite(value).as_bytes();
    if (1e-5..1e16).contains(&value) && !shortest.contains(&b'e') {
        // Plain notation is the same in both layouts.
        target.extend_from_slice(shortest);
        return;
    }
    let (digits, count, exponent) = split(shortest);
    let digits = digits.get(..count).unwrap_or(&[]);
    let count = count as i32;
    // Position of the decimal point relative to the first digit.
    let point = count + exponent;
    if 0 <= exponent && point <= 21 {
        target.extend_from_slice(digits);
        target.extend(std::iter::repeat_n(b'0', exponent as usize));
        target.extend_from_slice(b".0");
    } else if 0 < point && point <= 21 {
        let (whole, fraction) = digits.split_at(point as usize);
        target.extend_from_slice(whole);
        target.push(b'.');
        target.extend_from_slice(fraction);
    } else if -6 < point && point <= 0 {
        target.extend_from_slice(b"0.");
        target.extend(std::iter::repeat_n(b'0', point.unsigned_abs() as usize));
        target.extend_from_slice(digits);
    } else {
        let (first, rest) = digits.split_at(digits.len().min(1));
        target.extend_from_slice(first);
        if !rest.is_empty() {
            target.push(b'.');
            target.extend_from_slice(rest);
        }
        target.push(b'e');
        signed(target, i64::from(point) - 1);
    }
}

/// Appends a positive `value` if it is a multiple of 1/8 below 2^32, as labels, counts, and many
/// scores and pixels are; says whether.
///
/// The exact expansion has at most three decimals. It is the shortest text that reads back as
/// `value`: one with fewer digits would differ by 0.001 or more, and doubles of this size lie
/// closer than a millionth.
#[inline]
fn eighths(target: &mut Vec<u8>, value: f64) -> bool {
    let scaled = value * 8.0;
    if scaled >= (1u64 << 35) as f64 {
        return false;
    }
    let whole_eighths = scaled as u64;
    if whole_eighths as f64 != scaled {
        return false;
    }
    unsigned(target, whole_eighths >> 3);
    const DECIMALS: [&[u8]; 8] = [
        b".0", b".125", b".25", b".375", b".5", b".625", b".75", b".875",
    ];
    target.extend_from_slice(DECIMALS[(whole_eighths & 7) as usize]);
    true
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
            let text = written(|target| double(target, value));
            let shortest = zmij::Buffer::new().format_finite(value).to_owned();
            assert_eq!(text.parse::<f64>().unwrap(), value);
            if !shortest.contains('e') {
                assert_eq!(text, shortest);
            }
        }
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut target = Vec::new();
        write(&mut target);
        String::from_utf8(target).unwrap()
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
            assert_eq!(written(|target| double(target, value)), expected);
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
            if value.is_finite() {
                let text = written(|target| double(target, value));
                assert_eq!(
                    text.parse::<f64>().unwrap().to_bits(),
                    value.to_bits(),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn integers_and_strings() {
        assert_eq!(
            written(|target| unsigned(target, u64::MAX)),
            "18446744073709551615"
        );
        assert_eq!(
            written(|target| signed(target, i64::MIN)),
            "-9223372036854775808"
        );
        assert_eq!(written(|target| signed(target, 0)), "0");
        assert_eq!(
            written(|target| string(target, b"a\"\\\n\x01\x1f/\xc3\xa9")),
            "\"a\\\"\\\\\\n\\u0001\\u001F/\u{e9}\""
        );
    }
}
