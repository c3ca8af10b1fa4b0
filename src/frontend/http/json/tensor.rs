//! Tensor data in JSON: from the checked text of a `data` array straight into tensor bytes.
//!
//! Arrays may be nested or flat; only the number and kind of the elements count. Elements are read
//! as upstream reads them: as 64-bit values that are then cut to the tensor's type.

use std::slice::IterMut;

use conch_config::DataType;
use conch_engine::{Error, truncated};
use conch_memory::Block;

use super::blocks::{self, BLOCK_BYTES};
use super::elements::{ElementSink, TensorElement, checked_already, each_element};
use super::lexer::{self, JsonText};
use super::plain_number::PlainNumber;

fn mismatch(what: &str) -> Error {
    Error::internal(format!(
        "Unable to parse 'data': attempt to access JSON {what}"
    ))
}

/// Appends the elements of the checked array `text` to `target`, which has room for `count`
/// elements of `data_type`.
///
/// # Errors
/// In upstream's words and codes: too few or too many elements, elements of another kind, types
/// that have no JSON form. With `is_strict`, INVALID_ARG for an integer that the type cannot hold;
/// else it is cut to the type, as upstream.
pub(crate) fn read(
    text: &[u8],
    name: &str,
    data_type: DataType,
    count: usize,
    target: &mut Block,
    is_strict: bool,
) -> Result<(), Error> {
    let unsigned = |element: TensorElement<'_>, max: u64| match as_unsigned(element)? {
        value if is_strict && value > max => Err(out_of_range(value.into(), name, data_type)),
        value => Ok(value),
    };
    let signed = |element: TensorElement<'_>, min: i64, max: i64| match as_signed(element)? {
        value if is_strict && !(min..=max).contains(&value) => {
            Err(out_of_range(value.into(), name, data_type))
        }
        value => Ok(value),
    };
    let plain_unsigned = |number: PlainNumber, max: u64| {
        let value = number.as_unsigned()?;
        (!is_strict || value <= max).then_some(value)
    };
    let plain_signed = |number: PlainNumber, min: i64, max: i64| {
        let value = number.as_signed()?;
        (!is_strict || (min..=max).contains(&value)).then_some(value)
    };
    macro_rules! integers {
        ($integer:ty, $read:ident, $plain:ident, $($bound:expr),+) => {
            read_as(
                text,
                count,
                target,
                |element| Ok(($read(element, $($bound.into()),+)? as $integer).to_le_bytes()),
                |number| Some(($plain(number, $($bound.into()),+)? as $integer).to_le_bytes()),
            )
        };
    }
    match data_type {
        DataType::Fp16 | DataType::Bf16 => Err(Error::invalid(format!(
            "receiving {} data via JSON is not supported. Please use the binary data format for \
             input {name}",
            data_type.name(),
            name = truncated(&name)
        ))),
        DataType::Bool => {
            let convert = |element: TensorElement<'_>| match element {
                TensorElement::Bool(value) => Ok([u8::from(value)]),
                _ => Err(mismatch("non-boolean as boolean")),
            };
            read_as(text, count, target, convert, |_| None)
        }
        DataType::Uint8 => integers!(u8, unsigned, plain_unsigned, u8::MAX),
        DataType::Uint16 => integers!(u16, unsigned, plain_unsigned, u16::MAX),
        DataType::Uint32 => integers!(u32, unsigned, plain_unsigned, u32::MAX),
        DataType::Uint64 => integers!(u64, unsigned, plain_unsigned, u64::MAX),
        DataType::Int8 => integers!(i8, signed, plain_signed, i8::MIN, i8::MAX),
        DataType::Int16 => integers!(i16, signed, plain_signed, i16::MIN, i16::MAX),
        DataType::Int32 => integers!(i32, signed, plain_signed, i32::MIN, i32::MAX),
        DataType::Int64 => integers!(i64, signed, plain_signed, i64::MIN, i64::MAX),
        DataType::Fp32 => read_as(
            text,
            count,
            target,
            |element| Ok((as_double(element)? as f32).to_le_bytes()),
            |number| Some(number.as_single()?.to_le_bytes()),
        ),
        DataType::Fp64 => read_as(
            text,
            count,
            target,
            |element| Ok(as_double(element)?.to_le_bytes()),
            |number| Some(number.as_double()?.to_le_bytes()),
        ),
        DataType::Bytes => read_bytes(text, target),
    }
}

/// What `--strict-integers` says of `value`.
pub(crate) fn out_of_range(value: i128, name: &str, data_type: DataType) -> Error {
    Error::invalid(format!(
        "{value} is out of the range of {} for input '{}'",
        data_type.name(),
        truncated(name)
    ))
}

fn as_unsigned(element: TensorElement<'_>) -> Result<u64, Error> {
    match element {
        TensorElement::Number(number) => number.as_unsigned(),
        _ => None,
    }
    .ok_or_else(|| mismatch("non-unsigned-integer as unsigned-integer"))
}

fn as_signed(element: TensorElement<'_>) -> Result<i64, Error> {
    match element {
        TensorElement::Number(number) => number.as_signed(),
        _ => None,
    }
    .ok_or_else(|| mismatch("non-signed-integer as signed-integer"))
}

fn as_double(element: TensorElement<'_>) -> Result<f64, Error> {
    match element {
        TensorElement::Number(number) => number.as_double(),
        _ => None,
    }
    .ok_or_else(|| mismatch("non-number as double"))
}

/// The places of a tensor's elements, `WIDTH` bytes each, and how they are filled.
struct ElementPlaces<'b, const WIDTH: usize, C, P> {
    left: IterMut<'b, [u8; WIDTH]>,
    convert: C,
    /// The same for numbers that take no more than [`PlainNumber`]; none if it takes more.
    convert_plain: P,
}

impl<const WIDTH: usize, C, P> ElementSink for ElementPlaces<'_, WIDTH, C, P>
where
    C: Fn(TensorElement<'_>) -> Result<[u8; WIDTH], Error>,
    P: Fn(PlainNumber) -> Option<[u8; WIDTH]>,
{
    #[inline]
    fn take(&mut self, element: TensorElement<'_>) -> Result<(), Error> {
        let place = self.left.next().ok_or_else(|| {
            Error::internal(
                "Unable to parse 'data': Shape does not match true shape of 'data' field",
            )
        })?;
        *place = (self.convert)(element)?;
        Ok(())
    }

    /// Numbers with one comma and at most one blank between them, up to the last comma.
    #[inline]
    fn take_numbers(&mut self, text: &[u8], mut at: usize) -> usize {
        let mut block_start = at;
        while let Some(block) = text.get(block_start..).and_then(<[u8]>::first_chunk) {
            let mut commas = blocks::commas(block);
            while commas != 0 {
                let end = block_start + commas.trailing_zeros() as usize;
                commas &= commas - 1;
                let number = PlainNumber::read(text, at, end);
                let Some(value) = number.and_then(&self.convert_plain) else {
                    return at;
                };
                let Some(place) = self.left.next() else {
                    return at;
                };
                *place = value;
                at = end + 1;
                at += usize::from(text.get(at) == Some(&b' '));
            }
            block_start += BLOCK_BYTES;
            // A number without an end in sight is no plain one.
            if block_start > at + BLOCK_BYTES {
                break;
            }
        }
        at
    }
}

#[inline]
fn read_as<const WIDTH: usize>(
    text: &[u8],
    count: usize,
    target: &mut Block,
    convert: impl Fn(TensorElement<'_>) -> Result<[u8; WIDTH], Error>,
    convert_plain: impl Fn(PlainNumber) -> Option<[u8; WIDTH]>,
) -> Result<(), Error> {
    let too_few =
        || Error::internal("Failed to parse 'data' field: shape does not match true shape");
    let (places, _) = target.spare_mut().as_chunks_mut();
    let mut places = ElementPlaces {
        left: places.get_mut(..count).ok_or_else(too_few)?.iter_mut(),
        convert,
        convert_plain,
    };
    each_element(text, "Unable to parse 'data': ", &mut places)?;
    if places.left.len() > 0 {
        return Err(too_few());
    }
    target.advance(count * WIDTH);
    Ok(())
}

/// Bytes that the strings of a checked array take as a BYTES tensor: 4 bytes of length before each.
///
/// # Errors
/// In upstream's words if an element is not a string.
pub(crate) fn bytes_size(text: &[u8]) -> Result<usize, Error> {
    let mut size = 0;
    each_element(text, "", &mut |element: TensorElement<'_>| {
        let TensorElement::Text(string) = element else {
            return Err(Error::internal(
                "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
            ));
        };
        size += 4 + string_size(text, string);
        Ok(())
    })?;
    Ok(size)
}

/// Bytes of a checked string without its escapes.
fn string_size(text: &[u8], string: JsonText) -> usize {
    if !string.has_escapes {
        return string.end - string.start;
    }
    let mut size = 0;
    lexer::unescape(text, string, |piece| size += piece.len());
    size
}

/// Elements of a checked array, each nested array counted as one.
pub(crate) fn outer_count(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    let (mut comma_count, mut is_empty) = (0, true);
    while let Some(byte) = text.get(at).copied() {
        // What lies within the outermost brackets.
        is_empty &= depth == 0 || matches!(byte, b']' | b' ' | b'\n' | b'\r' | b'\t');
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => comma_count += 1,
            b'"' => {
                // Checked already: it has an end.
                at = lexer::string(text, at).map_or(text.len(), lexer::JsonText::behind);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    if is_empty { 0 } else { comma_count + 1 }
}

fn read_bytes(text: &[u8], target: &mut Block) -> Result<(), Error> {
    each_element(
        text,
        "Unable to parse 'data': ",
        &mut |element: TensorElement<'_>| {
            let TensorElement::Text(string) = element else {
                return Err(mismatch("non-string as string"));
            };
            let size = string_size(text, string);
            let length = u32::try_from(size)
                .map_err(|_| Error::invalid("a string is too long for a tensor"))?;
            if target.capacity() - target.len() < 4 + size {
                return Err(checked_already());
            }
            target.extend_from_slice(&length.to_le_bytes());
            if string.has_escapes {
                lexer::unescape(text, string, |piece| target.extend_from_slice(piece));
            } else {
                target.extend_from_slice(text.get(string.start..string.end).unwrap_or(&[]));
            }
            Ok(())
        },
    )
}

#[cfg(test)]
mod run_tests;

#[cfg(test)]
mod tests {
    use super::super::elements::TOO_DEEP;
    use super::*;

    fn check(text: &str, data_type: DataType, count: usize, expected: Result<Vec<u8>, &str>) {
        let capacity = match data_type.element_bytes() {
            Some(bytes) => bytes * count,
            None => match bytes_size(text.as_bytes()) {
                Ok(size) => size,
                Err(error) => {
                    assert_eq!(
                        Err(&*error.message),
                        expected.as_deref().map_err(|message| *message),
                        "{text}"
                    );
                    return;
                }
            },
        };
        let mut block = Block::with_capacity(capacity);
        let outcome = read(text.as_bytes(), "in", data_type, count, &mut block, false);
        let outcome = outcome
            .map(|()| block.as_slice().to_vec())
            .map_err(|error| error.message.into_owned());
        assert_eq!(outcome, expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn integers_that_do_not_fit_are_refused_where_that_is_asked_for() {
        let kinds = [
            (DataType::Uint8, 0, 255),
            (DataType::Int8, -128, 127),
            (DataType::Uint16, 0, 65_535),
            (DataType::Int16, -32_768, 32_767),
            (DataType::Uint32, 0, 4_294_967_295),
            (DataType::Int32, -2_147_483_648, 2_147_483_647_i64),
        ];
        for (data_type, min, max) in kinds {
            for (value, fits) in [(min, true), (max, true), (max + 1, false), (min - 1, false)] {
                if value < 0 && min == 0 {
                    continue;
                }
                let text = format!("[{value}]");
                for is_strict in [false, true] {
                    let mut block = Block::with_capacity(8);
                    let outcome = read(text.as_bytes(), "in", data_type, 1, &mut block, is_strict);
                    let expected = match fits || !is_strict {
                        true => Ok(()),
                        false => Err(out_of_range(value.into(), "in", data_type)),
                    };
                    assert_eq!(outcome, expected, "{text} {is_strict}");
                }
            }
        }
        let error = out_of_range(128, "in", DataType::Int8);
        assert_eq!(
            &*error.message,
            "128 is out of the range of INT8 for input 'in'"
        );
    }

    #[test]
    fn reads_every_type_flat_or_nested() {
        let floats: Vec<u8> = [1.5f32, -2.0, 3e10]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        check("[1.5,-2,3e10]", DataType::Fp32, 3, Ok(floats.clone()));
        check(" [ [1.5 , -2] , [3e10]\n]", DataType::Fp32, 3, Ok(floats));
        check("[true,false]", DataType::Bool, 2, Ok(vec![1, 0]));
        check("[1,255,256,-0]", DataType::Uint8, 4, Ok(vec![1, 255, 0, 0]));
        check("[-1,127]", DataType::Int8, 2, Ok(vec![255, 127]));
        check("[65535]", DataType::Uint16, 1, Ok(vec![255, 255]));
        check("[-2]", DataType::Int16, 1, Ok(vec![254, 255]));
        check(
            "[18446744073709551615]",
            DataType::Uint64,
            1,
            Ok(vec![255; 8]),
        );
        check(
            "[-9223372036854775808]",
            DataType::Int64,
            1,
            Ok(i64::MIN.to_le_bytes().to_vec()),
        );
        check("[4294967295]", DataType::Uint32, 1, Ok(vec![255; 4]));
        check(
            "[-7]",
            DataType::Int32,
            1,
            Ok((-7i32).to_le_bytes().to_vec()),
        );
        check(
            "[0.1]",
            DataType::Fp64,
            1,
            Ok(0.1f64.to_le_bytes().to_vec()),
        );
        check(
            "[Inf,-Infinity]",
            DataType::Fp32,
            2,
            Ok([f32::INFINITY, f32::NEG_INFINITY]
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect()),
        );
        check(
            r#"["ab",["\u0041",""]]"#,
            DataType::Bytes,
            3,
            Ok(b"\x02\0\0\0ab\x01\0\0\0A\0\0\0\0".to_vec()),
        );
        let escaped = "\u{e9}plain, and longer than a block \"\\\u{1f600}\n\n!\u{8}";
        let text = r#"["\u00e9plain, and longer than a block \"\\\ud83d\ude00\n\n!\b","\t"]"#;
        let expected = [
            &(escaped.len() as u32).to_le_bytes()[..],
            escaped.as_bytes(),
            b"\x01\0\0\0\t",
        ];
        check(text, DataType::Bytes, 2, Ok(expected.concat()));
    }

    /// A tensor, its type and element count, and its refusal.
    const REFUSED: &[(&str, DataType, usize, &str)] = &[
        (
            "[1,2,3]",
            DataType::Fp32,
            2,
            "Unable to parse 'data': Shape does not match true shape of 'data' field",
        ),
        (
            "[1]",
            DataType::Fp32,
            2,
            "Failed to parse 'data' field: shape does not match true shape",
        ),
        (
            "[\"a\"]",
            DataType::Fp32,
            1,
            "Unable to parse 'data': attempt to access JSON non-number as double",
        ),
        (
            "[{}]",
            DataType::Fp32,
            1,
            "Unable to parse 'data': attempt to access JSON non-number as double",
        ),
        (
            "[null]",
            DataType::Fp64,
            1,
            "Unable to parse 'data': attempt to access JSON non-number as double",
        ),
        (
            "[1]",
            DataType::Bool,
            1,
            "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
        ),
        (
            "[-1]",
            DataType::Uint8,
            1,
            "Unable to parse 'data': attempt to access JSON non-unsigned-integer as \
             unsigned-integer",
        ),
        (
            "[1.0]",
            DataType::Int32,
            1,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as \
             signed-integer",
        ),
        (
            "[9223372036854775808]",
            DataType::Int64,
            1,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as \
             signed-integer",
        ),
        (
            "[18446744073709551616]",
            DataType::Uint64,
            1,
            "Unable to parse 'data': attempt to access JSON non-unsigned-integer as \
             unsigned-integer",
        ),
        (
            "[1]",
            DataType::Bytes,
            1,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        (
            "[1]",
            DataType::Fp16,
            1,
            "receiving FP16 data via JSON is not supported. Please use the binary data format \
             for input in",
        ),
        (
            "[1]",
            DataType::Bf16,
            1,
            "receiving BF16 data via JSON is not supported. Please use the binary data format \
             for input in",
        ),
    ];

    #[test]
    fn refuses_in_upstreams_words() {
        for &(text, data_type, count, expected) in REFUSED {
            check(text, data_type, count, Err(expected));
        }
    }

    #[test]
    fn outer_elements_are_counted() {
        for (text, expected) in [
            ("[]", 0),
            ("[ \n]", 0),
            ("[1]", 1),
            ("[1, 2,3]", 3),
            ("[[]]", 1),
            ("[[],[]]", 2),
            ("[[1,2],[3,4],[5]]", 3),
            (r#"["a,b","]","\",["]"#, 3),
            (r#"[{"a":1,"b":[2,3]},null]"#, 2),
            (r#"[""]"#, 1),
        ] {
            assert_eq!(outer_count(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn nesting_is_limited_as_upstream_limits_it() {
        for (depth, is_accepted) in [(99, true), (100, false), (101, false)] {
            let text = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
            let mut block = Block::with_capacity(4);
            let outcome = read(text.as_bytes(), "in", DataType::Fp32, 1, &mut block, false);
            assert_eq!(outcome.is_ok(), is_accepted, "{depth}");
            if let Err(error) = outcome {
                assert_eq!(error.message, format!("Unable to parse 'data': {TOO_DEEP}"));
            }
        }
    }
}
