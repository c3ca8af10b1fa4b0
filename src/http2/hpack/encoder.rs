//! Header blocks of ours.
//!
//! Few fields come again with every answer: these go into the peer's table once, and are one byte
//! from then on. All others are sent as they are, and no table remembers them.

use super::integer;
use super::static_table::STATIC_FIELDS;
use super::table::{FIELD_BYTES, TABLE_BYTES_MAX};

/// Kinds of fields that come again and again.
pub(crate) const REPEATED_MAX: usize = 4;
/// What they may take of the peer's table.
const REPEATED_BYTES_MAX: usize = 512;

/// A field of an answer. Names are lower-case.
#[derive(Clone, Copy, Debug)]
pub struct HeaderField<'a> {
    name: &'static str,
    value: &'a [u8],
    /// Which of the fields that come again it is.
    repeated: Option<u8>,
}

impl<'a> HeaderField<'a> {
    pub const fn new(name: &'static str, value: &'a [u8]) -> HeaderField<'a> {
        HeaderField {
            name,
            value,
            repeated: None,
        }
    }

    pub(crate) fn byte_count(&self) -> usize {
        self.name.len() + self.value.len()
    }

    /// A field that every answer has, always with the same value: number `kind` of at most four,
    /// with at most 512 bytes in all, 32 for each included.
    pub const fn repeated(kind: u8, name: &'static str, value: &'static [u8]) -> HeaderField<'a> {
        assert!((kind as usize) < REPEATED_MAX);
        HeaderField {
            name,
            value,
            repeated: Some(kind),
        }
    }
}
/// The index of the status 200.
const STATUS_OK: u8 = 8;

pub(crate) struct Encoder {
    /// How many fields were in the peer's table when each kind was put in; none: it is not there.
    inserted: [Option<u8>; REPEATED_MAX],
    count: u8,
    /// The peer's table is large enough.
    has_table: bool,
    /// A size of 0 is to be told with the next block.
    owes_update: bool,
}

impl Encoder {
    pub(crate) fn new() -> Encoder {
        Encoder {
            inserted: [None; REPEATED_MAX],
            count: 0,
            has_table: true,
            owes_update: false,
        }
    }

    /// The peer's table may have so many bytes.
    pub(crate) fn set_table_limit(&mut self, byte_limit: usize) {
        if self.has_table && byte_limit < TABLE_BYTES_MAX {
            // Rare: it is not worth to keep a table of another size.
            self.has_table = false;
            self.owes_update = true;
            self.inserted = [None; REPEATED_MAX];
        }
    }

    /// Appends the status, and then the fields, to a block.
    pub(crate) fn encode_status(&mut self, out: &mut Vec<u8>, status: u16) {
        self.begin(out);
        if status == 200 {
            out.push(0x80 | STATUS_OK);
            return;
        }
        match STATIC_FIELDS.iter().position(|(name, value)| {
            *name == ":status" && value.parse::<u16>().is_ok_and(|known| known == status)
        }) {
            Some(known) => integer::write(out, 0x80, 7, known + 1),
            None => {
                let mut digits = [0; 3];
                let mut rest = status;
                for digit in digits.iter_mut().rev() {
                    *digit = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
                literal(out, 0x00, 4, ":status", &digits);
            }
        }
    }

    /// Tells the peer what it must know of its table, in front of a block.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.owes_update) {
            out.push(0x20);
        }
    }

    pub(crate) fn encode(&mut self, out: &mut Vec<u8>, field: &HeaderField<'_>) {
        let HeaderField { name, value, .. } = field;
        let place = field
            .repeated
            .filter(|_| self.has_table)
            .and_then(|kind| self.inserted.get_mut(usize::from(kind)));
        match place {
            Some(Some(before)) => {
                let index = STATIC_FIELDS.len() + usize::from(self.count - *before);
                integer::write(out, 0x80, 7, index);
            }
            Some(place) => {
                debug_assert!(name.len() + value.len() + FIELD_BYTES <= REPEATED_BYTES_MAX / 4);
                *place = Some(self.count);
                self.count += 1;
                literal(out, 0x40, 6, name, value);
            }
            None => literal(out, 0x00, 4, name, value),
        }
    }
}

/// A field with its value as it is, and its name if it is not known.
fn literal(out: &mut Vec<u8>, flags: u8, prefix_bits: u32, name: &str, value: &[u8]) {
    match STATIC_FIELDS.iter().position(|(known, _)| *known == name) {
        Some(known) => integer::write(out, flags, prefix_bits, known + 1),
        None => {
            out.push(flags);
            integer::write(out, 0, 7, name.len());
            out.extend_from_slice(name.as_bytes());
        }
    }
    integer::write(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;
    use crate::tests::fields;

    const FIELDS: [HeaderField<'_>; 4] = [
        HeaderField::repeated(0, "content-type", b"application/grpc"),
        HeaderField::new("grpc-message", b"why"),
        HeaderField::repeated(1, "grpc-accept-encoding", b"identity, deflate, gzip"),
        HeaderField::repeated(2, "grpc-status", b"0"),
    ];

    fn block(encoder: &mut Encoder, status: u16) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.encode_status(&mut out, status);
        for field in &FIELDS {
            encoder.encode(&mut out, field);
        }
        out
    }

    #[test]
    fn what_comes_again_becomes_a_byte() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let first = block(&mut encoder, 200);
        let second = block(&mut encoder, 200);
        assert_eq!(second.len(), 4 + (1 + 1 + 12 + 1 + 3), "{second:?}");
        let seen = fields(&mut decoder, &first);
        assert_eq!(seen.len(), 5);
        assert_eq!(seen[0], (":status".into(), "200".into()));
        for (pair, field) in seen[1..].iter().zip(&FIELDS) {
            assert_eq!(pair.0, field.name);
            assert_eq!(pair.1.as_bytes(), field.value);
        }
        assert_eq!(fields(&mut decoder, &second), seen);
    }

    #[test]
    fn without_a_table_nothing_is_remembered() {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let before = fields(&mut decoder, &block(&mut encoder, 404));
        encoder.set_table_limit(100);
        let first = block(&mut encoder, 404);
        assert_eq!(first.first(), Some(&0x20), "its size is told");
        let second = block(&mut encoder, 404);
        assert_eq!(first[1..], second);
        assert_eq!(fields(&mut decoder, &first), before);
        assert_eq!(fields(&mut decoder, &second), before);
        assert_eq!(fields(&mut decoder, &block(&mut encoder, 418))[0].1, "418");
    }
}
