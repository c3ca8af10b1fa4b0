//! A response as bytes, for caches that keep nothing else.
//!
//! ```text
//! 0   magic "conchRSP"                    all numbers little-endian
//! 8   format, u32
//! 12  head length, u32
//! 16  total length, u64
//! 24  XXH3 of all after it
//! 32  key, 16 bytes
//! 48  output count, u32; each: name, data type u32, rank u32, dims i64..,
//!                              data offset u64, data length u64
//! ..  parameter count, u32; each: name, kind u32, value (text, i64, u8 or f64)
//! ..  head length: zeros up to the next multiple of 64, then the outputs' data, each so aligned
//! ..  total length
//! ```
//! Text is its length as u32 and its bytes. What comes back from a cache is checked for all of
//! this: a cache may be shared by servers of other releases, may lose bytes, and may take one key
//! for another. Other forms are refused and never read as this one.

use conch_config::DataType;
use conch_engine::cache::{CacheKey, CachedResponse};
use conch_engine::{Error, Output, Parameter, ParameterValue, Response, Shape};
use conch_memory::{ALIGNMENT_BYTES, ByteView};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// A response, ready to be written.
pub(super) struct EncodedEntry {
    /// Everything in front of the data.
    head: Vec<u8>,
    /// Where each output's data goes.
    data: Vec<(usize, ByteView)>,
    byte_size: usize,
}

impl EncodedEntry {
    /// # Errors
    /// INVALID_ARG if the CPU cannot read an output, INTERNAL if there is more of something than
    /// its field can say.
    pub(super) fn of(key: CacheKey, response: &Response) -> Result<EncodedEntry, Error> {
        let mut head = Vec::with_capacity(256);
        head.extend_from_slice(MAGIC);
        put_u32(&mut head, FORMAT);
        head.resize(CHECKED_FROM, 0);
        head.extend_from_slice(&key.0.to_le_bytes());
        put_count(&mut head, response.outputs.len())?;
        let mut offset_places = Vec::with_capacity(response.outputs.len());
        for output in &response.outputs {
            if output.data.as_slice().is_none() {
                return Err(Error::invalid(
                    "Only input buffers in CPU memory are allowed in cache currently",
                ));
            }
            put_text(&mut head, &output.name)?;
            put_u32(&mut head, output.data_type.number());
            put_count(&mut head, output.shape.len())?;
            for dim in &output.shape {
                head.extend_from_slice(&dim.to_le_bytes());
            }
            offset_places.push(head.len());
            head.extend_from_slice(&[0; 8]);
            head.extend_from_slice(&(output.data.len() as u64).to_le_bytes());
        }
        put_count(&mut head, response.parameters.len())?;
        for parameter in &response.parameters {
            put_text(&mut head, &parameter.name)?;
            match &parameter.value {
                ParameterValue::Text(text) => {
                    put_u32(&mut head, TEXT);
                    put_text(&mut head, text)?;
                }
                ParameterValue::Int(value) => {
                    put_u32(&mut head, INT);
                    head.extend_from_slice(&value.to_le_bytes());
                }
                ParameterValue::Bool(value) => {
                    put_u32(&mut head, BOOL);
                    head.push(u8::from(*value));
                }
                ParameterValue::Double(value) => {
                    put_u32(&mut head, DOUBLE);
                    head.extend_from_slice(&value.to_le_bytes());
                }
            }
        }
        let head_length = u32::try_from(head.len()).map_err(|_| too_much())?;
        put_at(&mut head, HEAD_LENGTH_AT, &head_length.to_le_bytes());
        let mut end = head.len();
        let mut data = Vec::with_capacity(offset_places.len());
        for (place, output) in offset_places.into_iter().zip(&response.outputs) {
            let start = end.next_multiple_of(ALIGNMENT_BYTES);
            put_at(&mut head, place, &(start as u64).to_le_bytes());
            end = start.checked_add(output.data.len()).ok_or_else(too_much)?;
            data.push((start, output.data.clone()));
        }
        put_at(&mut head, TOTAL_LENGTH_AT, &(end as u64).to_le_bytes());
        let mut form = EncodedEntry {
            head,
            data,
            byte_size: end,
        };
        let checksum = form.checksum();
        put_at(&mut form.head, CHECKSUM_AT, &checksum.to_le_bytes());
        Ok(form)
    }

    pub(super) fn byte_size(&self) -> usize {
        self.byte_size
    }

    /// All bytes in order, in pieces.
    fn for_each(&self, mut take: impl FnMut(&[u8])) {
        take(&self.head);
        let mut end = self.head.len();
        for (start, view) in &self.data {
            take(&PADDING[..start - end]);
            take(view.as_ref());
            end = start + view.len();
        }
    }

    fn checksum(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut skip = CHECKED_FROM;
        self.for_each(|piece| {
            let (_, rest) = piece.split_at(skip.min(piece.len()));
            skip -= piece.len() - rest.len();
            hash.update(rest);
        });
        hash.digest()
    }

    /// Fills `target`, which is as long as [`EncodedEntry::byte_size`] says.
    pub(super) fn write_to(&self, target: &mut [u8]) {
        let mut rest = target;
        self.for_each(|piece| {
            let (front, back) = std::mem::take(&mut rest).split_at_mut(piece.len());
            front.copy_from_slice(piece);
            rest = back;
        });
    }
}

/// What was written under `key`. Shares the bytes of `written`.
///
/// # Errors
/// INTERNAL for anything but a form of this release that was written under this key.
pub(super) fn read(key: CacheKey, written: &ByteView) -> Result<CachedResponse, Error> {
    let bytes = written.as_ref();
    let mut reader = EntryReader(bytes);
    if reader.read_bytes(8)? != MAGIC {
        return Err(Error::internal("the cached response has a foreign form"));
    }
    let format = reader.u32()?;
    if format != FORMAT {
        return Err(Error::internal(format!(
            "the cached response has form {format}, expected {FORMAT}"
        )));
    }
    let head_length = reader.count()?;
    let total_length = reader.u64()?;
    if total_length != bytes.len() as u64 {
        return Err(Error::internal(format!(
            "the cached response has {} bytes, expected {total_length}",
            bytes.len()
        )));
    }
    let checksum = reader.u64()?;
    if checksum != xxh3_64(reader.0) {
        return Err(Error::internal("the cached response was changed"));
    }
    if u128::from_le_bytes(reader.array()?) != key.0 {
        return Err(Error::internal("the cached response has another key"));
    }
    let head = bytes.get(..head_length).ok_or_else(cut)?;
    let mut reader = EntryReader(head.get(CHECKED_FROM + 16..).ok_or_else(cut)?);
    let mut outputs = Vec::new();
    for _ in 0..reader.count()? {
        outputs.push(read_output(&mut reader, written)?);
    }
    let mut parameters = Vec::new();
    for _ in 0..reader.count()? {
        parameters.push(read_parameter(&mut reader)?);
    }
    if !reader.0.is_empty() {
        return Err(cut());
    }
    Ok(CachedResponse {
        outputs: outputs.into(),
        parameters: parameters.into(),
    })
}

fn read_output(reader: &mut EntryReader<'_>, written: &ByteView) -> Result<Output, Error> {
    let name = reader.text()?.into();
    let data_type = DataType::from_number(reader.u32()?).ok_or_else(cut)?;
    let mut shape = Shape::new();
    for _ in 0..reader.count()? {
        shape.push(i64::from_le_bytes(reader.array()?));
    }
    let start = usize::try_from(reader.u64()?).map_err(|_| cut())?;
    let length = usize::try_from(reader.u64()?).map_err(|_| cut())?;
    let end = start.checked_add(length).ok_or_else(cut)?;
    Ok(Output {
        name,
        data_type,
        shape,
        data: written.slice(start, end).ok_or_else(cut)?,
    })
}

fn read_parameter(reader: &mut EntryReader<'_>) -> Result<Parameter, Error> {
    let name = reader.text()?.into();
    let value = match reader.u32()? {
        TEXT => ParameterValue::Text(reader.text()?.into()),
        INT => ParameterValue::Int(i64::from_le_bytes(reader.array()?)),
        BOOL => ParameterValue::Bool(reader.read_bytes(1)? != [0]),
        DOUBLE => ParameterValue::Double(f64::from_le_bytes(reader.array()?)),
        _ => return Err(cut()),
    };
    Ok(Parameter { name, value })
}

/// What is left to be read.
struct EntryReader<'a>(&'a [u8]);

impl<'a> EntryReader<'a> {
    fn read_bytes(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (front, back) = self.0.split_at_checked(count).ok_or_else(cut)?;
        self.0 = back;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.read_bytes(N)?.try_into().map_err(|_| cut())
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn count(&mut self) -> Result<usize, Error> {
        usize::try_from(self.u32()?).map_err(|_| cut())
    }

    fn text(&mut self) -> Result<&'a str, Error> {
        let count = self.count()?;
        std::str::from_utf8(self.read_bytes(count)?).map_err(|_| cut())
    }
}

fn put_u32(head: &mut Vec<u8>, number: u32) {
    head.extend_from_slice(&number.to_le_bytes());
}

fn put_count(head: &mut Vec<u8>, count: usize) -> Result<(), Error> {
    put_u32(head, u32::try_from(count).map_err(|_| too_much())?);
    Ok(())
}

fn put_text(head: &mut Vec<u8>, text: &str) -> Result<(), Error> {
    put_count(head, text.len())?;
    head.extend_from_slice(text.as_bytes());
    Ok(())
}

fn put_at(head: &mut [u8], place: usize, bytes: &[u8]) {
    head[place..place + bytes.len()].copy_from_slice(bytes);
}

fn cut() -> Error {
    Error::internal("the cached response is incomplete")
}

fn too_much() -> Error {
    Error::internal("the response is too large for a cache")
}

const MAGIC: &[u8; 8] = b"conchRSP";
const FORMAT: u32 = 1;
const HEAD_LENGTH_AT: usize = 12;
const TOTAL_LENGTH_AT: usize = 16;
const CHECKSUM_AT: usize = 24;
const CHECKED_FROM: usize = 32;
const PADDING: [u8; ALIGNMENT_BYTES] = [0; ALIGNMENT_BYTES];

const TEXT: u32 = 0;
const INT: u32 = 1;
const BOOL: u32 = 2;
const DOUBLE: u32 = 3;

#[cfg(test)]
mod tests;
