//! Elements of a tensor, to and from their bytes on the wire.

use conch_config::DataType;
use half::{bf16, f16};
use serde_json::Value;

/// Appends the element that `value` is.
///
/// # Errors
/// What keeps `value` from being of this type.
pub(crate) fn push(bytes: &mut Vec<u8>, value: &Value, data_type: DataType) -> Result<(), String> {
    let bad = || format!("{value} is not of type {}", data_type.name());
    match data_type {
        DataType::Bool => bytes.push(match value {
            Value::Bool(value) => u8::from(*value),
            other => match other.as_u64() {
                Some(value @ (0 | 1)) => value as u8,
                _ => return Err(bad()),
            },
        }),
        DataType::Uint8 => bytes.push(unsigned(value).ok_or_else(bad)?),
        DataType::Uint16 => extend(bytes, unsigned::<u16>(value).map(u16::to_le_bytes), bad)?,
        DataType::Uint32 => extend(bytes, unsigned::<u32>(value).map(u32::to_le_bytes), bad)?,
        DataType::Uint64 => extend(bytes, value.as_u64().map(u64::to_le_bytes), bad)?,
        DataType::Int8 => extend(bytes, signed::<i8>(value).map(i8::to_le_bytes), bad)?,
        DataType::Int16 => extend(bytes, signed::<i16>(value).map(i16::to_le_bytes), bad)?,
        DataType::Int32 => extend(bytes, signed::<i32>(value).map(i32::to_le_bytes), bad)?,
        DataType::Int64 => extend(bytes, value.as_i64().map(i64::to_le_bytes), bad)?,
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
            let number = float(value).ok_or_else(bad)?;
            push_float(bytes, number, data_type);
        }
        DataType::Bytes => match value {
            Value::String(text) => push_bytes(bytes, text.as_bytes())?,
            _ => return Err(bad()),
        },
    }
    Ok(())
}

fn extend<const N: usize>(
    bytes: &mut Vec<u8>,
    element: Option<[u8; N]>,
    bad: impl FnOnce() -> String,
) -> Result<(), String> {
    bytes.extend_from_slice(&element.ok_or_else(bad)?);
    Ok(())
}

fn unsigned<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    T::try_from(value.as_u64()?).ok()
}

fn signed<T: TryFrom<i64>>(value: &Value) -> Option<T> {
    T::try_from(value.as_i64()?).ok()
}

/// JSON has no numbers for these words.
fn float(value: &Value) -> Option<f64> {
    match value {
        Value::String(word) => match word.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        other => other.as_f64(),
    }
}

/// Appends `number` in a type of floating-point numbers; those of other types have no bytes here.
pub(crate) fn push_float(bytes: &mut Vec<u8>, number: f64, data_type: DataType) {
    match data_type {
        DataType::Fp16 => bytes.extend_from_slice(&f16::from_f64(number).to_le_bytes()),
        DataType::Bf16 => bytes.extend_from_slice(&bf16::from_f64(number).to_le_bytes()),
        DataType::Fp32 => bytes.extend_from_slice(&(number as f32).to_le_bytes()),
        DataType::Fp64 => bytes.extend_from_slice(&number.to_le_bytes()),
        _ => {}
    }
}

/// Appends an element of BYTES.
///
/// # Errors
/// It is too long.
pub(crate) fn push_bytes(bytes: &mut Vec<u8>, element: &[u8]) -> Result<(), String> {
    let length = u32::try_from(element.len())
        .map_err(|_| String::from("an element of BYTES has less than 4 GiB"))?;
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(element);
    Ok(())
}

/// An element as it is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Element<'b> {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    /// Of FP16, BF16 and FP32, none of which loses anything.
    Single(f32),
    Double(f64),
    Bytes(&'b [u8]),
}

impl Element<'_> {
    /// Its place on a line of numbers, if it has one.
    pub(crate) fn number(self) -> Option<f64> {
        match self {
            Element::Bool(value) => Some(f64::from(u8::from(value))),
            Element::Unsigned(value) => Some(value as f64),
            Element::Signed(value) => Some(value as f64),
            Element::Single(value) => Some(f64::from(value)),
            Element::Double(value) => Some(value),
            Element::Bytes(_) => None,
        }
    }
}

/// The elements of a tensor, one after the other. Ends where what is left is no element.
pub(crate) struct Elements<'b> {
    data_type: DataType,
    left: &'b [u8],
}

impl<'b> Elements<'b> {
    pub(crate) fn new(data_type: DataType, bytes: &'b [u8]) -> Elements<'b> {
        Elements {
            data_type,
            left: bytes,
        }
    }

    /// Whether nothing is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.left.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (element, left) = self.left.split_first_chunk()?;
        self.left = left;
        Some(*element)
    }
}

impl<'b> Iterator for Elements<'b> {
    type Item = Element<'b>;

    fn next(&mut self) -> Option<Element<'b>> {
        Some(match self.data_type {
            DataType::Bool => Element::Bool(self.take::<1>()? != [0]),
            DataType::Uint8 => Element::Unsigned(u8::from_le_bytes(self.take()?).into()),
            DataType::Uint16 => Element::Unsigned(u16::from_le_bytes(self.take()?).into()),
            DataType::Uint32 => Element::Unsigned(u32::from_le_bytes(self.take()?).into()),
            DataType::Uint64 => Element::Unsigned(u64::from_le_bytes(self.take()?)),
            DataType::Int8 => Element::Signed(i8::from_le_bytes(self.take()?).into()),
            DataType::Int16 => Element::Signed(i16::from_le_bytes(self.take()?).into()),
            DataType::Int32 => Element::Signed(i32::from_le_bytes(self.take()?).into()),
            DataType::Int64 => Element::Signed(i64::from_le_bytes(self.take()?)),
            DataType::Fp16 => Element::Single(f16::from_le_bytes(self.take()?).into()),
            DataType::Bf16 => Element::Single(bf16::from_le_bytes(self.take()?).into()),
            DataType::Fp32 => Element::Single(f32::from_le_bytes(self.take()?)),
            DataType::Fp64 => Element::Double(f64::from_le_bytes(self.take()?)),
            DataType::Bytes => {
                let (length, rest) = self.left.split_first_chunk()?;
                let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
                let (element, left) = rest.split_at_checked(length)?;
                self.left = left;
                Element::Bytes(element)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_elements_and_back() {
        let table = [
            (DataType::Bool, "true", vec![1], Element::Bool(true)),
            (DataType::Bool, "0", vec![0], Element::Bool(false)),
            (DataType::Uint8, "255", vec![255], Element::Unsigned(255)),
            (DataType::Uint16, "258", vec![2, 1], Element::Unsigned(258)),
            (
                DataType::Uint32,
                "1",
                vec![1, 0, 0, 0],
                Element::Unsigned(1),
            ),
            (
                DataType::Uint64,
                "18446744073709551615",
                vec![255; 8],
                Element::Unsigned(u64::MAX),
            ),
            (DataType::Int8, "-1", vec![255], Element::Signed(-1)),
            (DataType::Int16, "-2", vec![254, 255], Element::Signed(-2)),
            (DataType::Int32, "-1", vec![255; 4], Element::Signed(-1)),
            (DataType::Int64, "-1", vec![255; 8], Element::Signed(-1)),
            (DataType::Fp16, "1.5", vec![0, 0x3e], Element::Single(1.5)),
            (
                DataType::Bf16,
                "1.5",
                vec![0xc0, 0x3f],
                Element::Single(1.5),
            ),
            (
                DataType::Fp32,
                "1",
                vec![0, 0, 0x80, 0x3f],
                Element::Single(1.0),
            ),
            (
                DataType::Fp64,
                r#""-Infinity""#,
                vec![0, 0, 0, 0, 0, 0, 0xf0, 0xff],
                Element::Double(f64::NEG_INFINITY),
            ),
            (
                DataType::Bytes,
                r#""ab""#,
                vec![2, 0, 0, 0, b'a', b'b'],
                Element::Bytes(b"ab"),
            ),
        ];
        for (data_type, text, expected, element) in table {
            let value = serde_json::from_str(text).unwrap();
            let mut bytes = Vec::new();
            push(&mut bytes, &value, data_type).unwrap();
            assert_eq!(bytes, expected, "{data_type:?} {text}");
            let mut read = Elements::new(data_type, &bytes);
            assert_eq!(read.next(), Some(element), "{data_type:?} {text}");
            assert!(read.is_at_end());
            // Cut short it is none.
            let cut = &bytes[..bytes.len() - 1];
            assert_eq!(Elements::new(data_type, cut).next(), None, "{data_type:?}");
        }
    }

    #[test]
    fn values_of_other_types_are_refused() {
        for (data_type, text) in [
            (DataType::Bool, "2"),
            (DataType::Bool, r#""true""#),
            (DataType::Uint8, "256"),
            (DataType::Uint8, "-1"),
            (DataType::Int8, "128"),
            (DataType::Int32, "1.5"),
            (DataType::Int64, "9223372036854775808"),
            (DataType::Fp32, r#""one""#),
            (DataType::Fp32, "null"),
            (DataType::Bytes, "1"),
        ] {
            let value = serde_json::from_str(text).unwrap();
            let error = push(&mut Vec::new(), &value, data_type).unwrap_err();
            let expected = format!("{text} is not of type {}", data_type.name());
            assert_eq!(error, expected);
        }
    }
}
