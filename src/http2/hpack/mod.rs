//! HPACK: header fields on the wire.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod static_table;
mod table;

pub(crate) use decoder::Decoder;
pub(crate) use encoder::Encoder;
pub use encoder::HeaderField;
#[cfg(test)]
pub(crate) use huffman::tests::encode as huffman_of;

/// What is wrong with a header block; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HpackError {
    Malformed,
    /// The size of the table is changed too often.
    TooManyUpdates,
    /// One field is longer than a whole list may be.
    TooLong,
}

/// Why a field cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// Its end has not come.
    Incomplete,
    Invalid(HpackError),
}

impl From<HpackError> for DecodeError {
    fn from(error: HpackError) -> DecodeError {
        DecodeError::Invalid(error)
    }
}
