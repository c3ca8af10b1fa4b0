//! Floating-point numbers as upstream prints them: libprotobuf's shortest `%g` that survives, read
//! and printed again by RapidJSON.

use std::fmt::Write;

/// Appends a 32-bit number: six significant digits if they are enough, else nine.
pub(super) fn write_f32(value: f32, out: &mut String) {
    let enough = [6, 9]
        .into_iter()
        .find(|digits| shown(f64::from(value), *digits).parse() == Ok(value))
        .unwrap_or(9);
    write(f64::from(value), enough, out);
}

/// Appends a 64-bit number: fifteen significant digits if they are enough, else seventeen.
pub(super) fn write_f64(value: f64, out: &mut String) {
    let enough = [15, 17]
        .into_iter()
        .find(|digits| shown(value, *digits).parse() == Ok(value))
        .unwrap_or(17);
    write(value, enough, out);
}

/// `d.ddde±x` with this many significant digits.
fn shown(value: f64, digits: usize) -> String {
    format!("{value:.*e}", digits - 1)
}

fn write(value: f64, digits: usize, out: &mut String) {
    if value.is_nan() {
        return out.push_str("\"NaN\"");
    }
    if value.is_infinite() {
        return out.push_str(if value > 0.0 {
            "\"Infinity\""
        } else {
            "\"-Infinity\""
        });
    }
    let text = shown(value, digits);
    let exponent: usize = text
        .split_once('e')
        .and_then(|(_, exponent)| exponent.parse().ok())
        .unwrap_or(usize::MAX);
    let rounded: f64 = text.parse().unwrap_or(value);
    // `%g` prints a whole number that fits into its digits without a point, and RapidJSON then
    // takes it for an integer.
    if (rounded == 0.0 || exponent < digits) && rounded.fract() == 0.0 {
        write!(out, "{rounded:.0}").expect("strings take everything");
        return;
    }
    // RapidJSON's own form: plain up to 21 digits before the point and 6 zeros behind it, else with
    // an exponent.
    let shortest = format!("{:e}", rounded.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-6..21).contains(&exponent) {
        // `Display` is always plain and shortest, but has no point on a whole number.
        write!(out, "{rounded}").expect("strings take everything");
        if rounded.fract() == 0.0 {
            out.push_str(".0");
        }
        return;
    }
    let sign = if rounded < 0.0 { "-" } else { "" };
    write!(out, "{sign}{mantissa}e{exponent}").expect("strings take everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_upstream_prints_them() {
        // The first seven were read off a running server.
        for (value, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (-0.5, "-0.5"),
            (0.7, "0.7"),
            (1_000_000.0, "1000000.0"),
            (123_456_789.0, "123456792"),
            (1e20, "100000000000000000000.0"),
            (999_999.0, "999999"),
            (1e30, "1e30"),
            (-1.5e-9, "-1.5e-9"),
            (0.000_001, "0.000001"),
            (f32::INFINITY, "\"Infinity\""),
            (f32::NEG_INFINITY, "\"-Infinity\""),
            (f32::NAN, "\"NaN\""),
        ] {
            let mut out = String::new();
            write_f32(value, &mut out);
            assert_eq!(out, expected, "{value}");
        }
        for (value, expected) in [
            (0.1, "0.1"),
            (5.0, "5"),
            (1e14, "100000000000000"),
            (1e15, "1000000000000000.0"),
            (2.5, "2.5"),
        ] {
            let mut out = String::new();
            write_f64(value, &mut out);
            assert_eq!(out, expected, "{value}");
        }
    }
}
