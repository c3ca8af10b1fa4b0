//! Universal Binary JSON as XGBoost writes it, for serde. Numbers are big-endian.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::bytes::Bytes;

/// Values in values, far more than in any model.
const DEPTH_MAX: usize = 64;

/// Reads one value.
///
/// # Errors
/// If the bytes are no value, or not one of this type, or more follows.
pub fn from_slice<T: de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut reader = Reader {
        bytes: Bytes::new(bytes),
        depth: 0,
    };
    let value = T::deserialize(Value {
        reader: &mut reader,
        marker: None,
    })
    .map_err(|error| error.0)?;
    match reader.bytes.len() {
        0 => Ok(value),
        count => Err(format!("{count} bytes follow the model")),
    }
}

#[derive(Debug)]
struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(text: String) -> Self {
        Error(text)
    }
}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Error(message.to_string())
    }
}

struct Reader<'a> {
    bytes: Bytes<'a>,
    depth: usize,
}

impl<'a> Reader<'a> {
    /// The next marker; no-ops are passed over.
    fn marker(&mut self) -> Result<u8, Error> {
        loop {
            match self.bytes.byte()? {
                b'N' => {}
                marker => return Ok(marker),
            }
        }
    }

    fn integer(&mut self, marker: u8) -> Result<i64, Error> {
        let bytes = &mut self.bytes;
        Ok(match marker {
            b'i' => i64::from(i8::from_be_bytes(bytes.array()?)),
            b'U' => i64::from(bytes.byte()?),
            b'I' => i64::from(i16::from_be_bytes(bytes.array()?)),
            b'l' => i64::from(i32::from_be_bytes(bytes.array()?)),
            b'L' => i64::from_be_bytes(bytes.array()?),
            _ => return Err(unexpected(marker)),
        })
    }

    fn length(&mut self) -> Result<usize, Error> {
        let marker = self.marker()?;
        let length = self.integer(marker)?;
        usize::try_from(length).map_err(|_| Error(format!("a length of {length}")))
    }

    fn text(&mut self) -> Result<&'a str, Error> {
        let length = self.length()?;
        let bytes = self.bytes.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| Error("a text that is not UTF-8".to_owned()))
    }

    /// What a container says of its elements: their type and how many they are.
    fn container(&mut self) -> Result<Elements, Error> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Error(format!("values are nested deeper than {DEPTH_MAX}")));
        }
        let mut elements = Elements {
            marker: None,
            left: None,
        };
        if self.bytes.peek() == Some(b'$') {
            self.bytes.byte()?;
            let marker = self.bytes.byte()?;
            // Elements without bytes could be any number of them.
            if matches!(marker, b'Z' | b'N' | b'T' | b'F') {
                return Err(unexpected(marker));
            }
            elements.marker = Some(marker);
            if self.bytes.peek() != Some(b'#') {
                return Err(Error("a container with a type and no length".to_owned()));
            }
        }
        if self.bytes.peek() == Some(b'#') {
            self.bytes.byte()?;
            elements.left = Some(self.length()?);
        }
        Ok(elements)
    }
}

/// A value to be read, whose marker was read if its container has one for all.
struct Value<'r, 'a> {
    reader: &'r mut Reader<'a>,
    marker: Option<u8>,
}

impl<'de> Deserializer<'de> for Value<'_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let reader = self.reader;
        let marker = match self.marker {
            Some(marker) => marker,
            None => reader.marker()?,
        };
        match marker {
            b'Z' => visitor.visit_unit(),
            b'T' => visitor.visit_bool(true),
            b'F' => visitor.visit_bool(false),
            b'd' => visitor.visit_f32(f32::from_be_bytes(reader.bytes.array()?)),
            b'D' => visitor.visit_f64(f64::from_be_bytes(reader.bytes.array()?)),
            b'C' => visitor.visit_char(char::from(reader.bytes.byte()?)),
            b'S' | b'H' => visitor.visit_borrowed_str(reader.text()?),
            b'[' | b'{' => {
                let elements = reader.container()?;
                let container = Container { reader, elements };
                match marker {
                    b'[' => visitor.visit_seq(container),
                    _ => visitor.visit_map(container),
                }
            }
            marker => visitor.visit_i64(reader.integer(marker)?),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

struct Elements {
    marker: Option<u8>,
    left: Option<usize>,
}

struct Container<'r, 'a> {
    reader: &'r mut Reader<'a>,
    elements: Elements,
}

impl Container<'_, '_> {
    /// Whether another element follows; reads what ends the container.
    fn has_next(&mut self, end: u8) -> Result<bool, Error> {
        let has_next = match &mut self.elements.left {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => {
                while self.reader.bytes.peek() == Some(b'N') {
                    self.reader.bytes.byte()?;
                }
                let is_end = self.reader.bytes.peek() == Some(end);
                if is_end {
                    self.reader.bytes.byte()?;
                }
                !is_end
            }
        };
        if !has_next {
            self.reader.depth -= 1;
        }
        Ok(has_next)
    }
}

impl<'de> SeqAccess<'de> for Container<'_, 'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if !self.has_next(b']')? {
            return Ok(None);
        }
        let value = Value {
            reader: self.reader,
            marker: self.elements.marker,
        };
        seed.deserialize(value).map(Some)
    }
}

impl<'de> MapAccess<'de> for Container<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        if !self.has_next(b'}')? {
            return Ok(None);
        }
        let key = self.reader.text()?;
        seed.deserialize(de::value::BorrowedStrDeserializer::new(key))
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Value {
            reader: self.reader,
            marker: self.elements.marker,
        })
    }
}

fn unexpected(marker: u8) -> Error {
    Error(format!("unexpected type '{}'", marker.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use conch_backend_sdk::serde_json::{Value, json};

    use super::*;

    fn check(bytes: &[u8], expected: Option<Value>) {
        let got = from_slice::<Value>(bytes).ok();
        assert_eq!(got, expected, "{}", bytes.escape_ascii());
    }

    #[test]
    fn values() {
        for (bytes, expected) in [
            (&b"Z"[..], json!(null)),
            (b"T", json!(true)),
            (b"i\xff", json!(-1)),
            (b"U\xff", json!(255)),
            (b"I\x01\x00", json!(256)),
            (b"l\xff\xff\xff\xfe", json!(-2)),
            (b"L\0\0\0\0\0\0\0\x07", json!(7)),
            (b"d\x3f\x80\0\0", json!(1.0)),
            (b"Si\x02ab", json!("ab")),
            (b"[]", json!([])),
            (b"[i\x01Ni\x02]", json!([1, 2])),
            (b"[#i\x02i\x01T", json!([1, true])),
            (b"[$U#i\x03abc", json!([97, 98, 99])),
            (b"{i\x01ai\x05i\x01b[]}", json!({"a": 5, "b": []})),
            (b"{$i#i\x01i\x01a\x05", json!({"a": 5})),
        ] {
            check(bytes, Some(expected));
        }
    }

    #[test]
    fn refused() {
        for bytes in [
            &b""[..],
            b"x",
            b"[",
            b"[i",
            b"l\0\0",
            b"Si\x05ab",
            b"Si\xff",
            b"Si\x01\xff",
            b"[$T#L\x7f\xff\xff\xff\xff\xff\xff\xff",
            b"[$U#L\x7f\xff\xff\xff\xff\xff\xff\xff",
            b"[$U",
            b"{i\x01a}",
            b"TT",
        ] {
            check(bytes, None);
        }
        check(&b"[".repeat(100_000), None);
    }
}
