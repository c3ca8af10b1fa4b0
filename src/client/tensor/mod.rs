//! Tensors as they are on the wire: little-endian elements in row-major order, each element of
//! BYTES behind its length in four bytes. Where they come from: text ([`literal`]), files
//! ([`npy`]), nowhere ([`fill`]).

pub(crate) mod elements;
pub(crate) mod fill;
pub(crate) mod literal;
pub(crate) mod npy;
pub(crate) mod shape;

use conch_config::DataType;

/// A tensor as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WireTensor {
    pub(crate) data_type: DataType,
    pub(crate) shape: Vec<i64>,
    pub(crate) bytes: Vec<u8>,
}

/// Bytes of a tensor that is made or read from a file. What is larger is no value to type.
pub(crate) const TENSOR_BYTES_MAX: u64 = 2 << 30;
