//! The protobuf wire format: reading fields from a slice, writing fields into a buffer. Pure; knows
//! no message.
//!
//! Only what the incremental reader and the response encoder of ModelInfer need; all other messages
//! go through prost.

/// The bytes are no protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedMessage;

/// Wire types of the protobuf encoding.
pub(super) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
pub(super) const BYTES: u8 = 2;
pub(super) const GROUP_START: u8 = 3;
pub(super) const GROUP_END: u8 = 4;
pub(super) const FIXED32: u8 = 5;

/// Unknown groups may nest this deep, as in upstream's parser.
pub(super) const GROUP_DEPTH_MAX: usize = 100;

/// Reads a varint of at most ten bytes: the value and the bytes it took. `Ok(None)`: the slice ends
/// inside it.
pub(super) fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, MalformedMessage> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().enumerate() {
        if index == 10 {
            return Err(MalformedMessage);
        }
        // The tenth byte has one bit left; like every protobuf parser, ignore the excess.
        value |= u64::from(byte & 0x7f) << (7 * index as u32);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() >= 10 {
        Err(MalformedMessage)
    } else {
        Ok(None)
    }
}

/// Splits a tag into field number and wire type.
pub(super) fn split_tag(tag: u64) -> Result<(u32, u8), MalformedMessage> {
    let tag = u32::try_from(tag).map_err(|_| MalformedMessage)?;
    let (number, kind) = (tag >> 3, (tag & 7) as u8);
    if number == 0 || kind > FIXED32 {
        return Err(MalformedMessage);
    }
    Ok((number, kind))
}

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FieldValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

impl<'a> FieldValue<'a> {
    /// A string field: valid UTF-8, as proto3 asks.
    pub(super) fn text(self) -> Result<Option<&'a str>, MalformedMessage> {
        match self {
            FieldValue::Bytes(bytes) => std::str::from_utf8(bytes)
                .map(Some)
                .map_err(|_| MalformedMessage),
            _ => Ok(None),
        }
    }
}

/// Walks the fields of one message. Fields inside unknown groups are skipped.
#[derive(Clone)]
pub(super) struct FieldReader<'a> {
    rest: &'a [u8],
    /// How many fields may follow.
    left: usize,
}

impl<'a> FieldReader<'a> {
    /// The fields of a message that is small, or walked in slices.
    pub(super) fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader {
            rest: bytes,
            left: usize::MAX,
        }
    }

    /// The fields of a message that is read in one go: more than `count_max` are taken for
    /// malformed.
    pub(super) fn bounded(bytes: &'a [u8], count_max: usize) -> FieldReader<'a> {
        FieldReader {
            rest: bytes,
            left: count_max,
        }
    }

    /// The next field's number and value; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, FieldValue<'a>)>, MalformedMessage> {
        let mut groups: Vec<u32> = Vec::new();
        while !self.rest.is_empty() {
            self.left = self.left.checked_sub(1).ok_or(MalformedMessage)?;
            let (number, kind) = split_tag(self.take_varint()?)?;
            let value = match kind {
                VARINT => FieldValue::Varint(self.take_varint()?),
                FIXED64 => FieldValue::Fixed64(u64::from_le_bytes(self.take_array()?)),
                FIXED32 => FieldValue::Fixed32(u32::from_le_bytes(self.take_array()?)),
                BYTES => {
                    let length = self.take_varint()?;
                    FieldValue::Bytes(
                        self.take(usize::try_from(length).map_err(|_| MalformedMessage)?)?,
                    )
                }
                GROUP_START => {
                    if groups.len() == GROUP_DEPTH_MAX {
                        return Err(MalformedMessage);
                    }
                    groups.push(number);
                    continue;
                }
                _ => {
                    if groups.pop() != Some(number) {
                        return Err(MalformedMessage);
                    }
                    continue;
                }
            };
            if groups.is_empty() {
                return Ok(Some((number, value)));
            }
        }
        if groups.is_empty() {
            Ok(None)
        } else {
            Err(MalformedMessage)
        }
    }

    fn take_varint(&mut self) -> Result<u64, MalformedMessage> {
        let (value, used) = varint(self.rest)?.ok_or(MalformedMessage)?;
        self.take(used)?;
        Ok(value)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], MalformedMessage> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(MalformedMessage)?;
        self.rest = rest;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], MalformedMessage> {
        self.take(N)?.try_into().map_err(|_| MalformedMessage)
    }
}

/// Appends a varint.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that [`put_varint`] writes.
pub(super) fn varint_len(value: u64) -> usize {
    // Each byte carries 7 bits; zero takes one byte.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

pub(super) fn put_tag(out: &mut Vec<u8>, number: u32, kind: u8) {
    put_varint(out, u64::from(number) << 3 | u64::from(kind));
}

/// Appends a bytes, string or message field, also when it is empty.
pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, BYTES);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a string field; nothing if it is empty, as proto3 writes singular fields.
pub(super) fn put_text(out: &mut Vec<u8>, number: u32, text: &str) {
    if !text.is_empty() {
        put_bytes(out, number, text.as_bytes());
    }
}

/// Bytes that [`put_bytes`] writes for `len` bytes of content, with a field number below 16.
pub(super) fn bytes_field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_refuse_eleven_bytes() {
        for value in [0, 1, 127, 128, 300, 1 << 35, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value), "{value}");
            assert_eq!(varint(&out), Ok(Some((value, out.len()))));
            assert_eq!(varint(&out[..out.len() - 1]), Ok(None));
        }
        assert_eq!(varint(&[0x80; 11]), Err(MalformedMessage));
        assert_eq!(varint(&[0x80; 10]), Err(MalformedMessage));
        assert_eq!(
            varint(&[0x80, 0]),
            Ok(Some((0, 2))),
            "an overlong zero is legal"
        );
    }

    #[test]
    fn fields_are_read_and_groups_skipped() {
        let mut bytes = Vec::new();
        put_tag(&mut bytes, 1, VARINT);
        put_varint(&mut bytes, 5);
        put_tag(&mut bytes, 9, GROUP_START);
        put_bytes(&mut bytes, 1, b"inside");
        put_tag(&mut bytes, 9, GROUP_END);
        put_bytes(&mut bytes, 2, b"xy");
        let mut fields = FieldReader::new(&bytes);
        assert_eq!(fields.next(), Ok(Some((1, FieldValue::Varint(5)))));
        assert_eq!(fields.next(), Ok(Some((2, FieldValue::Bytes(b"xy")))));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn broken_fields_are_refused() {
        let mut nested = vec![0x0b; GROUP_DEPTH_MAX + 1];
        nested.extend([0x0c; GROUP_DEPTH_MAX + 1]);
        let cases: &[(&str, &[u8])] = &[
            ("field number 0", &[0x00, 0x01]),
            ("wire type 6", &[0x0e]),
            ("wire type 7", &[0x0f]),
            ("length past the end", &[0x0a, 0x02, 0x00]),
            (
                "length of 2^63",
                &[
                    0x0a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01,
                ],
            ),
            ("short fixed32", &[0x0d, 1, 2, 3]),
            ("short fixed64", &[0x09, 1, 2, 3, 4, 5, 6, 7]),
            ("tag over 32 bits", &[0x80, 0x80, 0x80, 0x80, 0x10, 0x00]),
            ("group never ends", &[0x0b]),
            ("group ends unopened", &[0x0c]),
            ("group ends under another number", &[0x0b, 0x14]),
            ("groups too deep", &nested),
        ];
        for (name, bytes) in cases {
            let mut fields = FieldReader::new(bytes);
            let outcome = loop {
                match fields.next() {
                    Ok(Some(_)) => continue,
                    other => break other,
                }
            };
            assert_eq!(outcome, Err(MalformedMessage), "{name}");
        }
    }
}
