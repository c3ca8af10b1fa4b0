//! Protocol buffers on the wire: the fields of a message, one after the other.

/// Kinds of values on the wire.
pub const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    Varint(u64),
    /// Text, a message, or several numbers.
    Bytes(&'a [u8]),
    Fixed32,
    Fixed64,
}

/// The fields of a message with their numbers. The last one is `None` if the bytes do not end
/// where a field ends.
pub struct MessageFields<'a> {
    rest: &'a [u8],
}

impl<'a> MessageFields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        MessageFields { rest: message }
    }

    fn read(&mut self) -> Option<(u64, FieldValue<'a>)> {
        let key = self.read_varint()?;
        let value = match key & 7 {
            VARINT => FieldValue::Varint(self.read_varint()?),
            FIXED_64 => self.take(8).map(|_| FieldValue::Fixed64)?,
            BYTES => {
                let len = self.read_varint()?;
                FieldValue::Bytes(self.take(usize::try_from(len).ok()?)?)
            }
            FIXED_32 => self.take(4).map(|_| FieldValue::Fixed32)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn read_varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for MessageFields<'a> {
    type Item = Option<(u64, FieldValue<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}

pub fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fields() {
        let fields = |bytes| MessageFields::of(bytes).collect::<Option<Vec<_>>>();
        for (bytes, expected) in [
            (&[][..], Some(vec![])),
            (&[0x10, 0x80, 2], Some(vec![(2, FieldValue::Varint(256))])),
            (
                &[
                    0x2a, 2, 7, 8, 0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8,
                ],
                Some(vec![
                    (5, FieldValue::Bytes(&[7, 8])),
                    (1, FieldValue::Fixed32),
                    (1, FieldValue::Fixed64),
                ]),
            ),
            // Cut short, of a kind that is not used, not ending.
            (&[0x10], None),
            (&[0x10, 8, 0x2a], None),
            (&[0x10, 8, 0x2a, 3, 1], None),
            (&[0x0d, 1, 2, 3], None),
            (&[0x10, 8, 0x0b], None),
            (
                &[
                    0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
                ],
                None,
            ),
        ] {
            assert_eq!(fields(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for value in [0, 1, 127, 128, 300, u64::MAX] {
            let mut bytes = vec![0x08];
            write_varint(&mut bytes, value);
            let fields: Vec<_> = MessageFields::of(&bytes).collect();
            assert_eq!(fields, [Some((1, FieldValue::Varint(value)))]);
        }
    }
}
