//! The signature of an ONNX file, read from the file itself: the embedded engine has forgotten the
//! exact element types once it has loaded a model.
//!
//! Only the few fields needed are read, by a small reader of protobuf's wire format.

use std::ffi::CString;

use conch_backend_sdk::Error;

use crate::ort::data_type_from_onnx;
use conch_backend_sdk::engine::{Signature, TensorInfo};

/// Field numbers of the ONNX messages.
mod field {
    pub const MODEL_GRAPH: u64 = 7;
    pub const GRAPH_INITIALIZER: u64 = 5;
    pub const GRAPH_INPUT: u64 = 11;
    pub const GRAPH_OUTPUT: u64 = 12;
    pub const TENSOR_NAME: u64 = 8;
    pub const VALUE_NAME: u64 = 1;
    pub const VALUE_TYPE: u64 = 2;
    pub const TYPE_TENSOR: u64 = 1;
    pub const TENSOR_TYPE_ELEMENT: u64 = 1;
    pub const TENSOR_TYPE_SHAPE: u64 = 2;
    pub const SHAPE_DIMENSION: u64 = 1;
    pub const DIMENSION_VALUE: u64 = 1;
}

/// Reads inputs and outputs. Inputs that have a weight of their name are the weights that a request
/// may replace.
///
/// # Errors
/// `InvalidArgument` if the bytes are no ONNX model; `Unsupported` if an input or output is no
/// tensor.
pub fn signature(file: &[u8]) -> Result<Signature, Error> {
    let mut graph = None;
    for entry in Fields::new(file) {
        if let (field::MODEL_GRAPH, Content::Bytes(bytes)) = entry? {
            graph = Some(bytes);
        }
    }
    let graph = graph.ok_or_else(|| Error::invalid("the file has no ONNX graph"))?;
    let mut weights = Vec::new();
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    for entry in Fields::new(graph) {
        match entry? {
            (field::GRAPH_INITIALIZER, Content::Bytes(bytes)) => {
                weights.push(name_of(bytes, field::TENSOR_NAME)?);
            }
            (field::GRAPH_INPUT, Content::Bytes(bytes)) => inputs.push(tensor_info(bytes)?),
            (field::GRAPH_OUTPUT, Content::Bytes(bytes)) => outputs.push(tensor_info(bytes)?),
            _ => {}
        }
    }
    let (initializers, inputs) = inputs
        .into_iter()
        .partition(|info: &TensorInfo| weights.contains(&info.name));
    Ok(Signature {
        inputs,
        outputs,
        initializers,
    })
}

fn tensor_info(value: &[u8]) -> Result<TensorInfo, Error> {
    let name = name_of(value, field::VALUE_NAME)?;
    let tensor = message(value, field::VALUE_TYPE)?
        .map(|kind| message(kind, field::TYPE_TENSOR))
        .transpose()?
        .flatten()
        .ok_or_else(|| {
            Error::unsupported(format!(
                "Unsupported ONNX Type for I/O '{}', expected 'ONNX_TYPE_TENSOR'.",
                name.to_string_lossy()
            ))
        })?;
    let mut element = 0;
    let mut dims = Vec::new();
    for entry in Fields::new(tensor) {
        match entry? {
            (field::TENSOR_TYPE_ELEMENT, Content::Number(number)) => element = number,
            (field::TENSOR_TYPE_SHAPE, Content::Bytes(shape)) => {
                for entry in Fields::new(shape) {
                    if let (field::SHAPE_DIMENSION, Content::Bytes(dimension)) = entry? {
                        dims.push(dimension_of(dimension)?);
                    }
                }
            }
            _ => {}
        }
    }
    let data_type = i32::try_from(element)
        .ok()
        .and_then(data_type_from_onnx)
        .ok_or_else(|| {
            Error::unsupported(format!(
                "unsupported ONNX element type {element} of I/O '{}'",
                name.to_string_lossy()
            ))
        })?;
    Ok(TensorInfo {
        name,
        data_type,
        dims,
    })
}

/// A fixed dimension, or -1 for a named or unknown one.
fn dimension_of(dimension: &[u8]) -> Result<i64, Error> {
    let mut value = -1;
    for entry in Fields::new(dimension) {
        if let (field::DIMENSION_VALUE, Content::Number(number)) = entry? {
            value = i64::try_from(number)
                .ok()
                .filter(|&size| size > 0)
                .unwrap_or(-1);
        }
    }
    Ok(value)
}

fn message(bytes: &[u8], number: u64) -> Result<Option<&[u8]>, Error> {
    let mut found = None;
    for entry in Fields::new(bytes) {
        if let (field, Content::Bytes(content)) = entry?
            && field == number
        {
            found = Some(content);
        }
    }
    Ok(found)
}

fn name_of(bytes: &[u8], number: u64) -> Result<CString, Error> {
    let name = message(bytes, number)?.unwrap_or_default();
    CString::new(name).map_err(|_| Error::invalid("the ONNX graph has a name with a NUL"))
}

/// A field's content, as far as the wire tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Fixed-size content, which no field read here has.
    Other,
}

/// The fields of a message, in order.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Fields { rest: bytes }
    }

    fn next_field(&mut self) -> Option<(u64, Content<'a>)> {
        let tag = self.number()?;
        let content = match tag & 7 {
            0 => Content::Number(self.number()?),
            1 => self.read_bytes(8).map(|_| Content::Other)?,
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Content::Bytes(self.read_bytes(length)?)
            }
            5 => self.read_bytes(4).map(|_| Content::Other)?,
            _ => return None,
        };
        Some((tag >> 3, content))
    }

    /// A base-128 number of at most 10 bytes.
    fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = *self.read_bytes(1)?.first()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn read_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Content<'a>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        Some(match self.next_field() {
            Some(field) => Ok(field),
            None => {
                // Nothing behind a broken field can be trusted.
                self.rest = &[];
                Err(Error::invalid("the file is no ONNX model"))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use conch_backend_sdk::DataType;

    use super::*;

    fn number(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
        [
            number(field << 3 | 2),
            number(content.len() as u64),
            content.to_vec(),
        ]
        .concat()
    }

    fn varint(field: u64, value: u64) -> Vec<u8> {
        [number(field << 3), number(value)].concat()
    }

    fn value(name: &str, element: u64, dims: &[Option<u64>]) -> Vec<u8> {
        let shape: Vec<u8> = dims
            .iter()
            .flat_map(|dim| match dim {
                Some(size) => bytes(1, &varint(1, *size)),
                None => bytes(1, &bytes(2, b"N")),
            })
            .collect();
        let tensor = [varint(1, element), bytes(2, &shape)].concat();
        [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()
    }

    fn model() -> Vec<u8> {
        let graph = [
            bytes(5, &bytes(8, b"W")),
            bytes(11, &value("A", 7, &[None, Some(16)])),
            bytes(11, &value("W", 1, &[Some(300)])),
            bytes(12, &value("B", 9, &[])),
        ]
        .concat();
        [varint(1, 8), bytes(7, &graph), bytes(8, &varint(2, 13))].concat()
    }

    #[test]
    fn reads_a_signature() {
        let signature = signature(&model()).unwrap();
        let info = |name: &str, data_type, dims: &[i64]| TensorInfo {
            name: CString::new(name).unwrap(),
            data_type,
            dims: dims.to_vec(),
        };
        assert_eq!(signature.inputs, [info("A", DataType::Int64, &[-1, 16])]);
        assert_eq!(signature.initializers, [info("W", DataType::Fp32, &[300])]);
        assert_eq!(signature.outputs, [info("B", DataType::Bool, &[])]);
    }

    #[test]
    fn refuses_anything_else_without_panic() {
        let whole = model();
        assert!(signature(b"").is_err());
        assert!(signature(b"hello").is_err());
        // A sequence instead of a tensor: field 4 of the type.
        let graph = bytes(12, &[bytes(1, b"S"), bytes(2, &bytes(4, b""))].concat());
        assert!(signature(&bytes(7, &graph)).is_err());
        let graph = bytes(12, &value("C", 14, &[]));
        assert!(signature(&bytes(7, &graph)).is_err());
        // Cut anywhere and changed anywhere: an answer or an error, no panic.
        for end in 0..whole.len() {
            let _ = signature(&whole[..end]);
        }
        for index in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[index] ^= flip;
                let _ = signature(&changed);
            }
        }
    }
}
