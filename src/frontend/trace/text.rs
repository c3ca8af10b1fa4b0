//! A trace as upstream's file has it: JSON objects, one per report, with commas between them.

use std::fmt::Write;

use conch_config::DataType;

use super::record::{REQUEST_START, RecordedTensor, TraceEntry, TraceRecord};
use crate::http::json::write;

/// Appends the objects of one trace; nothing if it has none.
pub(super) fn render(text: &mut Vec<u8>, record: &TraceRecord) {
    let id = record.id;
    let mut is_first = true;
    let mut begin = |text: &mut Vec<u8>| {
        if !std::mem::take(&mut is_first) {
            text.push(b',');
        }
        text.extend_from_slice(format!("{{\"id\":{id},").as_bytes());
    };
    for entry in &record.entries {
        match entry {
            TraceEntry::Time(station, timestamp_ns) => {
                if *station == REQUEST_START
                    && let Some(subject) = &record.subject
                {
                    begin(text);
                    text.extend_from_slice(b"\"model_name\":");
                    write::string(text, subject.model.as_bytes());
                    text.extend_from_slice(b",\"model_version\":");
                    write::signed(text, subject.version);
                    if !subject.request_id.is_empty() {
                        text.extend_from_slice(b",\"request_id\":");
                        write::string(text, subject.request_id.as_bytes());
                    }
                    if record.parent_id != 0 {
                        let parent = format!(",\"parent_id\":{}", record.parent_id);
                        text.extend_from_slice(parent.as_bytes());
                    }
                    text.push(b'}');
                }
                begin(text);
                let time =
                    format!("\"timestamps\":[{{\"name\":\"{station}\",\"ns\":{timestamp_ns}}}]}}");
                text.extend_from_slice(time.as_bytes());
            }
            TraceEntry::Own(name, timestamp_ns) => {
                begin(text);
                text.extend_from_slice(b"\"timestamps\":[{\"name\":");
                write::string(text, name.as_bytes());
                text.extend_from_slice(format!(",\"ns\":{timestamp_ns}}}]}}").as_bytes());
            }
            TraceEntry::Tensor(tensor) => {
                begin(text);
                put_tensor(text, tensor);
            }
        }
    }
    for child in &record.children {
        let is_first = text.len();
        text.push(b',');
        render(text, child);
        if text.len() == is_first + 1 {
            text.truncate(is_first);
        }
    }
}

fn put_tensor(text: &mut Vec<u8>, tensor: &RecordedTensor) {
    text.extend_from_slice(b"\"activity\":\"");
    text.extend_from_slice(tensor.activity.as_bytes());
    text.extend_from_slice(b"\",\"tensor\":{\"name\":");
    write::string(text, tensor.name.as_bytes());
    text.extend_from_slice(b",\"data\":\"");
    put_data(text, tensor.data_type, &tensor.data);
    text.extend_from_slice(b"\",\"shape\":\"");
    for (index, dim) in tensor.shape.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        write::signed(text, *dim);
    }
    text.extend_from_slice(b"\",\"dtype\":\"");
    text.extend_from_slice(tensor.data_type.name().as_bytes());
    text.extend_from_slice(b"\"}}");
}

/// The elements, with commas between them. Those of 16-bit floats are left out, as upstream.
fn put_data(text: &mut Vec<u8>, data_type: DataType, data: &[u8]) {
    macro_rules! numbers {
        ($number:ty, $put:expr) => {{
            let (elements, _) = data.as_chunks::<{ size_of::<$number>() }>();
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                $put(text, <$number>::from_le_bytes(*element));
            }
        }};
    }
    macro_rules! signed {
        ($number:ty) => {
            numbers!($number, |text: &mut Vec<u8>, value: $number| write::signed(
                text,
                value.into()
            ))
        };
    }
    macro_rules! unsigned {
        ($number:ty) => {
            numbers!($number, |text: &mut Vec<u8>, value: $number| {
                write::unsigned(text, value.into())
            })
        };
    }
    match data_type {
        DataType::Bool => numbers!(u8, |text: &mut Vec<u8>, value: u8| {
            text.push(if value == 0 { b'0' } else { b'1' });
        }),
        DataType::Uint8 => unsigned!(u8),
        DataType::Uint16 => unsigned!(u16),
        DataType::Uint32 => unsigned!(u32),
        DataType::Uint64 => unsigned!(u64),
        DataType::Int8 => signed!(i8),
        DataType::Int16 => signed!(i16),
        DataType::Int32 => signed!(i32),
        DataType::Int64 => signed!(i64),
        DataType::Fp32 => numbers!(f32, |text: &mut Vec<u8>, value: f32| put_general(
            text,
            value.into()
        )),
        DataType::Fp64 => numbers!(f64, put_general),
        DataType::Fp16 | DataType::Bf16 => {}
        DataType::Bytes => put_strings(text, data),
    }
}

/// Each element in quotation marks of its own, which are escaped, as is what they hold.
fn put_strings(text: &mut Vec<u8>, mut data: &[u8]) {
    let mut is_first = true;
    while let Some((length, behind)) = data.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((element, behind)) = behind.split_at_checked(length) else {
            return;
        };
        if !std::mem::take(&mut is_first) {
            text.push(b',');
        }
        text.extend_from_slice(b"\\\"");
        // Other than upstream, which writes bytes as they are: the file is to be JSON whatever
        // clients send.
        let lossy = String::from_utf8_lossy(element);
        let before = text.len();
        write::string(text, lossy.as_bytes());
        // Without the quotation marks that the writer puts around.
        text.pop();
        text.remove(before);
        text.extend_from_slice(b"\\\"");
        data = behind;
    }
}

/// Six significant digits, as C++ streams print by default (`%g`).
fn put_general(text: &mut Vec<u8>, value: f64) {
    const DIGITS: i32 = 6;
    if !value.is_finite() {
        if value.is_sign_negative() {
            text.push(b'-');
        }
        text.extend_from_slice(if value.is_nan() { b"nan" } else { b"inf" });
        return;
    }
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let mut shown = String::new();
    // Writing into a String does not fail.
    if (-4..DIGITS).contains(&exponent) {
        let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
        let _ = write!(shown, "{value:.decimals$}");
        text.extend_from_slice(without_zeros(&shown).as_bytes());
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let mantissa = without_zeros(mantissa);
        let _ = write!(shown, "{mantissa}e{sign}{:02}", exponent.unsigned_abs());
        text.extend_from_slice(shown.as_bytes());
    }
}

fn without_zeros(digits: &str) -> &str {
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(data_type: DataType, bytes: &[u8]) -> String {
        let mut text = Vec::new();
        put_data(&mut text, data_type, bytes);
        String::from_utf8(text).unwrap()
    }

    /// As C++ prints them.
    #[test]
    fn six_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1f32.into(), "0.1"),
            (100_000.0, "100000"),
            (999_999.5, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (0.0001, "0.0001"),
            (0.000_012_5, "1.25e-05"),
            (-2.5e-300, "-2.5e-300"),
            (2.345_678_9, "2.34568"),
            (f32::MAX.into(), "3.40282e+38"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            let mut text = Vec::new();
            put_general(&mut text, value);
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{value}");
        }
    }

    #[test]
    fn elements_have_commas_between_them() {
        for (data_type, bytes, expected) in [
            (DataType::Bool, &[0, 1, 7][..], "0,1,1"),
            (DataType::Uint8, &[3, 200], "3,200"),
            (DataType::Int8, &[3, 200], "3,-56"),
            (DataType::Int16, &[1, 0, 255, 255], "1,-1"),
            (DataType::Uint64, &[255; 8], "18446744073709551615"),
            (DataType::Fp16, &[0, 60], ""),
            (DataType::Fp32, &[], ""),
            (
                DataType::Bytes,
                b"\x03\0\0\0a\"b\x00\0\0\0\x01\0\0\0\n",
                r#"\"a\"b\",\"\",\"\n\""#,
            ),
            (DataType::Bytes, b"\x05\0\0\0ab", ""),
        ] {
            assert_eq!(data(data_type, bytes), expected, "{data_type:?}");
        }
    }
}
