//! The largest elements of one row, in order, as text.
//!
//! The order is total: larger first, NaN last, and of equals the one with the lower index first.
//! Upstream's sort agrees for up to 16 elements, and leaves the order of equals open beyond (NaN
//! anywhere).

use std::cmp::Ordering;
use std::ffi::CStr;
use std::io::Write;

use conch_config::DataType;
use conch_engine::Error;

use super::ClassText;

/// Appends the `count` largest elements of `row` to `text`. Types without an order have no
/// elements.
pub(super) fn write<'a>(
    text: &mut ClassText,
    data_type: DataType,
    row: &[u8],
    count: u32,
    label: impl Fn(usize) -> Option<&'a CStr>,
) -> Result<(), Error> {
    macro_rules! numbers {
        ($number:ty, $compare:expr, $print:expr) => {{
            let (elements, _) = row.as_chunks::<{ size_of::<$number>() }>();
            let value = |index: usize| {
                let bytes = elements.get(index).copied().unwrap_or_default();
                <$number>::from_le_bytes(bytes)
            };
            for index in largest(elements.len(), count, |a, b| $compare(value(b), value(a))) {
                text.push(|element| {
                    $print(element, value(index));
                    finish(element, index, label(index));
                })?;
            }
        }};
    }
    macro_rules! whole {
        ($number:ty) => {
            numbers!($number, |a: $number, b: $number| a.cmp(&b), whole)
        };
    }
    match data_type {
        DataType::Uint8 => whole!(u8),
        DataType::Uint16 => whole!(u16),
        DataType::Uint32 => whole!(u32),
        DataType::Uint64 => whole!(u64),
        DataType::Int8 => whole!(i8),
        DataType::Int16 => whole!(i16),
        DataType::Int32 => whole!(i32),
        DataType::Int64 => whole!(i64),
        DataType::Fp32 => numbers!(
            f32,
            |a: f32, b: f32| ascending(a.into(), b.into()),
            |element: &mut Vec<u8>, value: f32| fraction(element, value.into())
        ),
        DataType::Fp64 => numbers!(f64, ascending, fraction),
        DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes => {}
    }
    Ok(())
}

/// The first `count` of the indices below `total`, in the order of `compare`, equals by index.
fn largest(
    total: usize,
    count: u32,
    compare: impl Fn(usize, usize) -> Ordering,
) -> impl Iterator<Item = usize> {
    let compare = |a: &usize, b: &usize| compare(*a, *b).then(a.cmp(b));
    let mut indices: Vec<usize> = (0..total).collect();
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count < total {
        indices.select_nth_unstable_by(count, compare);
        indices.truncate(count);
    }
    indices.sort_unstable_by(compare);
    indices.into_iter()
}

/// NaN is less than anything else.
fn ascending(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

fn whole(element: &mut Vec<u8>, value: impl std::fmt::Display) {
    // Writing into memory does not fail.
    let _ = write!(element, "{value}");
}

/// Six decimals, as C prints `%f`: also of what is not finite, with its sign.
fn fraction(element: &mut Vec<u8>, value: f64) {
    if value.is_finite() {
        whole(element, format_args!("{value:.6}"));
        return;
    }
    if value.is_sign_negative() {
        element.push(b'-');
    }
    element.extend_from_slice(if value.is_nan() { b"nan" } else { b"inf" });
}

fn finish(element: &mut Vec<u8>, index: usize, label: Option<&CStr>) {
    element.push(b':');
    whole(element, index);
    if let Some(label) = label {
        element.push(b':');
        element.extend_from_slice(label.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As glibc prints them.
    #[test]
    fn fractions_have_six_decimals() {
        for (value, expected) in [
            (0.0, "0.000000"),
            (-0.0, "-0.000000"),
            (1.0, "1.000000"),
            (0.1f32.into(), "0.100000"),
            (0.999_999_6, "1.000000"),
            // Halves go to the even digit.
            (0.007_812_5, "0.007812"),
            (0.023_437_5, "0.023438"),
            (1e-7, "0.000000"),
            (-1.5e-6, "-0.000002"),
            (16_777_216.0, "16777216.000000"),
            (
                f32::MAX.into(),
                "340282346638528859811704183484516925440.000000",
            ),
            (1e22, "10000000000000000000000.000000"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
            (-f64::NAN, "-nan"),
        ] {
            let mut element = Vec::new();
            fraction(&mut element, value);
            assert_eq!(String::from_utf8(element).unwrap(), expected);
        }
        let mut element = Vec::new();
        fraction(&mut element, f64::MAX);
        assert_eq!(element.len(), 309 + 7);
    }

    fn order(values: &[f64], count: u32) -> Vec<usize> {
        largest(values.len(), count, |a, b| ascending(values[b], values[a])).collect()
    }

    #[test]
    fn larger_first_then_the_lower_index() {
        const NAN: f64 = f64::NAN;
        for (values, expected) in [
            (&[1.0, 3.0, 2.0][..], &[1, 2, 0][..]),
            (&[1.0, 1.0, 1.0], &[0, 1, 2]),
            (&[0.0, -0.0, 0.0], &[0, 1, 2]),
            (&[NAN, 1.0, NAN, 2.0], &[3, 1, 0, 2]),
            (&[f64::NEG_INFINITY, NAN, f64::INFINITY], &[2, 0, 1]),
            (&[], &[]),
        ] {
            assert_eq!(order(values, u32::MAX), expected);
            for count in 0..values.len() {
                assert_eq!(order(values, count as u32), expected[..count]);
            }
        }
    }

    #[test]
    fn a_selection_is_the_start_of_the_whole_order() {
        let mut state = 7u64;
        let values: Vec<f64> = (0..5_000)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                match state >> 60 {
                    0 => f64::NAN,
                    _ => f64::from((state >> 33) as u32 % 97),
                }
            })
            .collect();
        let whole = order(&values, u32::MAX);
        for count in [1, 2, 17, 1_000, 4_999] {
            assert_eq!(order(&values, count), whole[..count as usize]);
        }
    }
}
