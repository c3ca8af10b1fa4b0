//! How requests and responses are written into messages: fields one after the other, numbers in
//! little-endian order, texts behind their length in 4 bytes.
//!
//! - [`EXECUTE`]: a list of requests, each with its number (u64), flags (u32), timeout (u64), id,
//!   correlation id, whether it is traced (u8), trace context, parameters (JSON), names of outputs,
//!   inputs.
//! - [`REPLY`]: a list, of each request [`ROW_LATER`], [`ROW_AGAIN`], or [`ROW_RESPONSE`] and the
//!   response.
//! - [`SEND`]: the number of a request (u64), flags (u32), whether there is a response (u8), the
//!   response.
//! - [`INFER`]: the number of a call (u64; 0: it has one response), model, version (i64), id,
//!   correlation id, flags (u32), timeout (u64), priority (u64), the number of the request whose
//!   trace is the parent (u64), parameters (JSON), names of outputs, inputs.
//! - [`DELIVERY`]: whether it is the last (u8), whether there is a response (u8), the response.
//!
//! A response is 1 (u8) and an error's code (u32) and text, or 0 (u8), parameters (JSON), and
//! outputs. Lists begin with their count (u32).

use crate::DevicePlace;

/// The first byte of a message. Every other message is a JSON object.
pub const EXECUTE: u8 = 1;
pub const REPLY: u8 = 2;
pub const SEND: u8 = 3;
pub const INFER: u8 = 4;
pub const DELIVERY: u8 = 5;

/// What became of a request.
pub const ROW_LATER: u8 = 0;
pub const ROW_AGAIN: u8 = 1;
pub const ROW_RESPONSE: u8 = 2;

/// Dimensions that a tensor may have.
pub const RANK_MAX: usize = 64;

const CORRELATION_NUMBER: u8 = 0;
const CORRELATION_TEXT: u8 = 1;

const BEHIND: u8 = 0;
const RECEIVERS: u8 = 1;
const SENDERS: u8 = 2;
const DEVICE: u8 = 3;

/// Where the bytes of a tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorPlace<'m> {
    /// Behind the message, at this offset from its end (aligned).
    Behind(u64),
    /// In the receiver's own segment, at this offset.
    Receivers(u64),
    /// In a block of the sender's, which the receiver gives back.
    Senders { block: u64, offset: u64 },
    /// In the memory of a GPU: the bytes of a [`DevicePlace`].
    Device(&'m [u8; DevicePlace::BYTES]),
}

/// A request's correlation id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correlation<'m> {
    Number(u64),
    Text(&'m str),
}

/// One tensor of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRow<'m> {
    pub name: &'m str,
    /// The server's number of the data type.
    pub data_type: u32,
    pub dims: Dims<'m>,
    pub place: TensorPlace<'m>,
    pub bytes: u64,
}

/// Dimensions as they lie in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims<'m>(&'m [u8]);

impl<'m> Dims<'m> {
    pub fn rank(self) -> usize {
        self.0.len() / 8
    }

    pub fn iter(self) -> impl ExactSizeIterator<Item = i64> + 'm {
        let (numbers, _) = self.0.as_chunks::<8>();
        numbers.iter().map(|bytes| i64::from_le_bytes(*bytes))
    }
}

/// A message that is being written.
#[derive(Debug, Default)]
pub struct MessageWriter {
    bytes: Vec<u8>,
}

impl MessageWriter {
    pub fn new(kind: u8) -> MessageWriter {
        let mut bytes = Vec::with_capacity(256);
        bytes.push(kind);
        MessageWriter { bytes }
    }

    pub fn byte(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A text; what is longer than 4 GiB is cut, which no message is.
    pub fn text(&mut self, text: &str) {
        let len = u32::try_from(text.len()).unwrap_or(0);
        self.u32(len);
        self.bytes
            .extend_from_slice(&text.as_bytes()[..len as usize]);
    }

    pub fn correlation(&mut self, id: Correlation<'_>) {
        match id {
            Correlation::Number(number) => {
                self.byte(CORRELATION_NUMBER);
                self.u64(number);
            }
            Correlation::Text(text) => {
                self.byte(CORRELATION_TEXT);
                self.text(text);
            }
        }
    }

    pub fn tensor(
        &mut self,
        name: &str,
        data_type: u32,
        dims: &[i64],
        place: TensorPlace<'_>,
        bytes: u64,
    ) {
        self.text(name);
        self.u32(data_type);
        self.u32(u32::try_from(dims.len()).unwrap_or(u32::MAX));
        for dim in dims {
            self.i64(*dim);
        }
        match place {
            TensorPlace::Behind(offset) => {
                self.byte(BEHIND);
                self.u64(offset);
            }
            TensorPlace::Receivers(offset) => {
                self.byte(RECEIVERS);
                self.u64(offset);
            }
            TensorPlace::Senders { block, offset } => {
                self.byte(SENDERS);
                self.u64(block);
                self.u64(offset);
            }
            TensorPlace::Device(place) => {
                self.byte(DEVICE);
                self.bytes.extend_from_slice(place);
            }
        }
        self.u64(bytes);
    }

    /// Leaves room for a count; see [`MessageWriter::set_count`].
    pub fn count_later(&mut self) -> usize {
        let at = self.bytes.len();
        self.u32(0);
        at
    }

    /// Fills in a count for which room was left at `at`.
    pub fn set_count(&mut self, at: usize, count: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&count.to_le_bytes());
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A message is cut off, or has what no message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed message")
    }
}

impl std::error::Error for Malformed {}

/// Reads a message. Every field is checked against its end.
#[derive(Clone, Copy, Debug)]
pub struct MessageReader<'m> {
    rest: &'m [u8],
}

impl<'m> MessageReader<'m> {
    pub fn new(message: &'m [u8]) -> MessageReader<'m> {
        MessageReader { rest: message }
    }

    fn take(&mut self, len: usize) -> Result<&'m [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn chunk<const N: usize>(&mut self) -> Result<&'m [u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.chunk().copied()
    }

    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let [value] = self.array()?;
        Ok(value)
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    /// The count of a list, each of whose elements takes up at least one byte.
    pub fn count(&mut self) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u32()?).map_err(|_| Malformed)?;
        match count <= self.rest.len() {
            true => Ok(count),
            false => Err(Malformed),
        }
    }

    pub fn text(&mut self) -> Result<&'m str, Malformed> {
        let len = usize::try_from(self.u32()?).map_err(|_| Malformed)?;
        std::str::from_utf8(self.take(len)?).map_err(|_| Malformed)
    }

    pub fn correlation(&mut self) -> Result<Correlation<'m>, Malformed> {
        match self.byte()? {
            CORRELATION_NUMBER => self.u64().map(Correlation::Number),
            CORRELATION_TEXT => self.text().map(Correlation::Text),
            _ => Err(Malformed),
        }
    }

    pub fn tensor(&mut self) -> Result<TensorRow<'m>, Malformed> {
        let name = self.text()?;
        let data_type = self.u32()?;
        let rank = usize::try_from(self.u32()?).map_err(|_| Malformed)?;
        if rank > RANK_MAX {
            return Err(Malformed);
        }
        let dims = Dims(self.take(rank * 8)?);
        let place = match self.byte()? {
            BEHIND => TensorPlace::Behind(self.u64()?),
            RECEIVERS => TensorPlace::Receivers(self.u64()?),
            SENDERS => TensorPlace::Senders {
                block: self.u64()?,
                offset: self.u64()?,
            },
            DEVICE => TensorPlace::Device(self.chunk()?),
            _ => return Err(Malformed),
        };
        Ok(TensorRow {
            name,
            data_type,
            dims,
            place,
            bytes: self.u64()?,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const DEVICE_PLACE: [u8; DevicePlace::BYTES] = [5; DevicePlace::BYTES];

    fn sample() -> Vec<u8> {
        let mut message = MessageWriter::new(INFER);
        message.u64(7);
        message.text("naïve");
        message.correlation(Correlation::Text("abc"));
        message.correlation(Correlation::Number(u64::MAX));
        let at = message.count_later();
        message.tensor("X", 11, &[2, -1], TensorPlace::Behind(64), 24);
        let place = TensorPlace::Senders {
            block: 128,
            offset: 192,
        };
        message.tensor("", 1, &[], place, 1);
        message.tensor("Y", 1, &[0; RANK_MAX], TensorPlace::Receivers(9), 0);
        message.tensor("Z", 1, &[4], TensorPlace::Device(&DEVICE_PLACE), 4);
        message.set_count(at, 4);
        message.byte(1);
        message.bytes().to_vec()
    }

    type Read<'m> = (u64, &'m str, Vec<TensorRow<'m>>);

    fn read(message: &[u8]) -> Result<Read<'_>, Malformed> {
        let mut reader = MessageReader::new(message);
        if reader.byte()? != INFER {
            return Err(Malformed);
        }
        let (number, text) = (reader.u64()?, reader.text()?);
        reader.correlation()?;
        reader.correlation()?;
        let count = reader.count()?;
        let rows = (0..count)
            .map(|_| reader.tensor())
            .collect::<Result<_, _>>()?;
        reader.flag()?;
        Ok((number, text, rows))
    }

    #[test]
    fn what_is_written_is_read() {
        let message = sample();
        let (number, text, rows) = read(&message).unwrap();
        assert_eq!((number, text, rows.len()), (7, "naïve", 4));
        assert_eq!(
            (rows[0].name, rows[0].data_type, rows[0].bytes),
            ("X", 11, 24)
        );
        assert_eq!(rows[0].dims.iter().collect::<Vec<_>>(), [2, -1]);
        assert_eq!(rows[0].place, TensorPlace::Behind(64));
        assert_eq!(rows[1].dims.rank(), 0);
        assert_eq!(rows[2].dims.rank(), RANK_MAX);
        assert_eq!(rows[2].place, TensorPlace::Receivers(9));
        assert_eq!(rows[3].place, TensorPlace::Device(&DEVICE_PLACE));
    }

    #[test]
    fn what_is_cut_off_or_changed_is_refused_or_another_message() {
        let message = sample();
        for len in 0..message.len() {
            assert_eq!(read(&message[..len]).unwrap_err(), Malformed, "{len}");
        }
        for at in 0..message.len() {
            for bit in 0..8 {
                let mut changed = message.clone();
                changed[at] ^= 1 << bit;
                if let Ok((_, text, rows)) = read(&changed) {
                    assert!(text.len() + rows.len() < changed.len());
                }
            }
        }
    }
}
