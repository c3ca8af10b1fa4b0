//! Header blocks of the peer.

use smallvec::SmallVec;

use super::static_table::STATIC_FIELDS;
use super::table::{DynamicTable, TABLE_BYTES_MAX};
use super::{DecodeError, HpackError, huffman, integer};

/// Size updates of the table in front of one block. The protocol needs two.
const TABLE_UPDATES_MAX: u32 = 4;
/// Bytes of a name or a value on the wire.
const STRING_BYTES_MAX: usize = 64 << 10;

/// A string, which may have been decoded.
type FieldText<'a> = Result<&'a [u8], SmallVec<[u8; 128]>>;

fn text<'a>(text: &'a FieldText<'_>) -> &'a [u8] {
    match text {
        Ok(plain) => plain,
        Err(decoded) => decoded,
    }
}

/// The name of a field: one that is known, or its own.
enum FieldName<'a> {
    Known(usize),
    Own(FieldText<'a>),
}

pub(crate) struct Decoder {
    table: DynamicTable,
    /// Of the block under way.
    update_count: u32,
    has_fields: bool,
}

impl Decoder {
    pub(crate) fn new() -> Decoder {
        Decoder {
            table: DynamicTable::new(),
            update_count: 0,
            has_fields: false,
        }
    }

    pub(crate) fn begin_block(&mut self) {
        self.update_count = 0;
        self.has_fields = false;
    }

    /// Reads the fields of a block under way, each as a whole, and gives them to `visit`. Returns
    /// how many bytes they take; those behind them are part of a field unless the block `is_over`.
    ///
    /// # Errors
    /// As [`HpackError`] says.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        is_over: bool,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, HpackError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.field(rest, &mut visit) {
                Ok(behind) => rest = behind,
                Err(DecodeError::Incomplete) if !is_over => break,
                Err(DecodeError::Incomplete) => return Err(HpackError::Malformed),
                Err(DecodeError::Invalid(error)) => return Err(error),
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// Reads the first field of `bytes`, or an update of the table; returns the bytes behind it.
    fn field<'a>(
        &mut self,
        bytes: &'a [u8],
        visit: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<&'a [u8], DecodeError> {
        let first = *bytes.first().ok_or(DecodeError::Incomplete)?;
        if first & 0x80 != 0 {
            let (index, rest) = integer::read(bytes, 7)?;
            let (name, value) = self.get(index)?;
            visit(name, value);
            self.has_fields = true;
            return Ok(rest);
        }
        if first & 0xe0 == 0x20 {
            return self.update(bytes);
        }
        let is_kept = first & 0x40 != 0;
        let (index, rest) = integer::read(bytes, if is_kept { 6 } else { 4 })?;
        let (name, rest) = match index {
            0 => {
                let (name, rest) = string(rest)?;
                (FieldName::Own(name), rest)
            }
            index => (FieldName::Known(index), rest),
        };
        let (value, rest) = string(rest)?;
        let value = text(&value);
        self.has_fields = true;
        match &name {
            FieldName::Own(name) => {
                visit(text(name), value);
                if is_kept {
                    self.table.insert(text(name), value);
                }
            }
            FieldName::Known(index) => {
                let (name, _) = self.get(*index)?;
                visit(name, value);
                if is_kept {
                    // The entry that it is read from may have to leave.
                    let name = SmallVec::<[u8; 64]>::from_slice(name);
                    self.table.insert(&name, value);
                }
            }
        }
        Ok(rest)
    }

    fn update<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
        let (limit, rest) = integer::read(bytes, 5)?;
        if self.has_fields || limit > TABLE_BYTES_MAX {
            return Err(HpackError::Malformed.into());
        }
        self.update_count += 1;
        if self.update_count > TABLE_UPDATES_MAX {
            return Err(HpackError::TooManyUpdates.into());
        }
        self.table.set_limit(limit);
        Ok(rest)
    }

    fn get(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        let known = index.checked_sub(1).ok_or(HpackError::Malformed)?;
        match STATIC_FIELDS.get(known) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => {
                let field = self.table.get(known - STATIC_FIELDS.len());
                field.ok_or(HpackError::Malformed)
            }
        }
    }
}

/// Reads a string; returns the bytes behind it.
fn string(bytes: &[u8]) -> Result<(FieldText<'_>, &[u8]), DecodeError> {
    let first = *bytes.first().ok_or(DecodeError::Incomplete)?;
    let (length, rest) = integer::read(bytes, 7)?;
    if length > STRING_BYTES_MAX {
        return Err(HpackError::TooLong.into());
    }
    let (own, rest) = rest
        .split_at_checked(length)
        .ok_or(DecodeError::Incomplete)?;
    if first & 0x80 == 0 {
        return Ok((Ok(own), rest));
    }
    let mut decoded = SmallVec::new();
    huffman::decode(own, &mut decoded).map_err(|_| HpackError::Malformed)?;
    Ok((Err(decoded), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = Vec<(String, String)>;
    type TextPairs<'a> = &'a [(&'a str, &'a str)];

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Pairs, HpackError> {
        let mut fields = Vec::new();
        decoder.begin_block();
        decoder.decode(block, true, |name, value| {
            let own = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            fields.push((own(name), own(value)));
        })?;
        Ok(fields)
    }

    fn pairs(fields: &[(&str, &str)]) -> Pairs {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        fields.iter().map(own).collect()
    }

    /// RFC 7541, C.4: requests of one connection, with Huffman codes.
    #[test]
    fn examples_of_the_specification() {
        let mut decoder = Decoder::new();
        let table: [(&[u8], TextPairs<'_>); 3] = [
            (
                &[
                    0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0,
                    0xab, 0x90, 0xf4, 0xff,
                ],
                &[
                    (":method", "GET"),
                    (":scheme", "http"),
                    (":path", "/"),
                    (":authority", "www.example.com"),
                ],
            ),
            (
                &[
                    0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf,
                ],
                &[
                    (":method", "GET"),
                    (":scheme", "http"),
                    (":path", "/"),
                    (":authority", "www.example.com"),
                    ("cache-control", "no-cache"),
                ],
            ),
            (
                &[
                    0x82, 0x87, 0x85, 0xbf, 0x40, 0x88, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d,
                    0x7f, 0x89, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf,
                ],
                &[
                    (":method", "GET"),
                    (":scheme", "https"),
                    (":path", "/index.html"),
                    (":authority", "www.example.com"),
                    ("custom-key", "custom-value"),
                ],
            ),
        ];
        for (block, expected) in table {
            assert_eq!(decode(&mut decoder, block), Ok(pairs(expected)));
        }
    }

    #[test]
    fn a_field_is_read_as_a_whole_or_not_at_all() {
        let block = [
            0x82, 0x40, 0x01, b'a', 0x01, b'b', 0xbe, 0x0f, 0x2e, 0x02, b'c', b'd',
        ];
        let whole = decode(&mut Decoder::new(), &block);
        assert_eq!(
            whole,
            Ok(pairs(&[
                (":method", "GET"),
                ("a", "b"),
                ("a", "b"),
                (STATIC_FIELDS[61 - 1].0, "cd"),
            ]))
        );
        for cut in 0..=block.len() {
            let mut decoder = Decoder::new();
            let mut fields = 0;
            let used = decoder.decode(&block[..cut], false, |_, _| fields += 1);
            let used = used.expect("only cut off");
            decoder
                .decode(&block[used..], true, |_, _| fields += 1)
                .expect("the rest");
            assert_eq!(fields, 4, "{cut}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let mut long = vec![0x00];
        integer::write(&mut long, 0, 7, STRING_BYTES_MAX + 1);
        let table: [(&[u8], HpackError); 9] = [
            (&[0x80], HpackError::Malformed),
            (&[0xbe], HpackError::Malformed),
            (&[0x7e, 0x01, b'a'], HpackError::Malformed),
            (&[0x40, 0x02, b'a'], HpackError::Malformed),
            (&[0x82, 0x20], HpackError::Malformed),
            (&[0x3f, 0xe2, 0x1f], HpackError::Malformed),
            (&[0x20, 0x20, 0x20, 0x20, 0x20], HpackError::TooManyUpdates),
            (&[0x00, 0x81, 0x00], HpackError::Malformed),
            (&long, HpackError::TooLong),
        ];
        for (block, error) in table {
            assert_eq!(decode(&mut Decoder::new(), block), Err(error), "{block:?}");
        }
        assert!(decode(&mut Decoder::new(), &[0x3f, 0xe1, 0x1f, 0x82]).is_ok());
    }

    #[test]
    fn the_table_forgets_the_oldest() {
        let mut decoder = Decoder::new();
        let insert = |decoder: &mut Decoder, name: u8, length: usize| {
            let mut block = vec![0x40, 0x01, name];
            integer::write(&mut block, 0, 7, length);
            block.extend(vec![b'v'; length]);
            decode(decoder, &block).expect("a field")
        };
        for name in b'a'..=b'e' {
            insert(&mut decoder, name, 1000);
        }
        let name_at = |decoder: &mut Decoder, index: u8| {
            decode(decoder, &[0x80 | index]).map(|fields| fields[0].0.clone())
        };
        assert_eq!(name_at(&mut decoder, 62).as_deref(), Ok("e"));
        assert_eq!(name_at(&mut decoder, 64).as_deref(), Ok("c"));
        assert!(name_at(&mut decoder, 65).is_err());
        // A name that is read from an entry which leaves for it.
        let mut block = vec![0x40 | 0x3f, 64 - 0x3f];
        integer::write(&mut block, 0, 7, 3100);
        block.extend(vec![b'w'; 3100]);
        assert_eq!(decode(&mut decoder, &block).expect("a field")[0].0, "c");
        assert_eq!(name_at(&mut decoder, 62).as_deref(), Ok("c"));
        assert!(
            name_at(&mut decoder, 63).is_err(),
            "1,033 and 3,133 bytes are too many"
        );
        insert(&mut decoder, b'z', 5000);
        assert!(name_at(&mut decoder, 62).is_err(), "it emptied the table");
        insert(&mut decoder, b'y', 10);
        assert!(decode(&mut decoder, &[0x20]).is_ok());
        assert!(name_at(&mut decoder, 62).is_err());
    }
}
