//! The engine within: rten, for machines without an ONNX Runtime library.
//!
//! It computes in 32-bit floats and integers and 8-bit integers only. Other types are converted on
//! the way in and out: 64-bit integers and booleans through 32-bit integers (a value that does not
//! fit is refused), 64- and 16-bit floats through 32-bit ones. Strings are refused when the model
//! is loaded. Unsupported operators too, by rten.

use std::path::Path;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use half::{bf16, f16};
use rten::{NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{Tensor, TensorView};
use sdk::{DataType, Error, element_count};

use crate::onnx_file;
use conch_backend_sdk::engine::{Feed, Signature, Target};

pub const DESCRIPTION: &str = "the embedded engine rten 0.27, since no ONNX Runtime library was \
                               found (set the backend setting onnxruntime-library or \
                               CONCH_ONNXRUNTIME_LIBRARY, or put libonnxruntime.so beside the \
                               backend). It has fewer operators, no strings, computes 64-bit \
                               integers in 32 bits and 64-bit and 16-bit floats as 32-bit floats, \
                               ignores the session options of the configuration except \
                               intra_op_thread_count, and is slower";

/// A model loaded into rten.
pub struct Session {
    model: rten::Model,
    signature: Signature,
    threads: Option<Arc<ThreadPool>>,
}

impl Session {
    /// # Errors
    /// `Unavailable` if the file cannot be read; `Unsupported` for what rten cannot do.
    pub fn load(path: &Path, thread_count: Option<i32>) -> Result<Self, Error> {
        let file = std::fs::read(path).map_err(|error| {
            Error::unavailable(format!("cannot read {}: {error}", path.display()))
        })?;
        let signature = onnx_file::signature(&file)?;
        drop(file);
        for info in signature.inputs.iter().chain(&signature.outputs) {
            if info.data_type == DataType::Bytes {
                return Err(Error::unsupported(format!(
                    "the embedded engine has no strings, which '{}' is made of; {NEEDS_LIBRARY}",
                    info.name()
                )));
            }
        }
        // From the path, so that weights kept in files beside the model are found.
        let model = rten::Model::load_file(path).map_err(|error| {
            Error::unsupported(format!(
                "the embedded engine cannot load {}: {error}; {NEEDS_LIBRARY}",
                path.display()
            ))
        })?;
        let threads = usize::try_from(thread_count.unwrap_or(1))
            .ok()
            .filter(|&count| count > 0)
            .map(|count| Arc::new(ThreadPool::with_num_threads(count)));
        Ok(Session {
            model,
            signature,
            threads,
        })
    }

    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Runs the model; outputs in the order of `targets`.
    ///
    /// # Errors
    /// `InvalidArgument` if an input has a value that 32 bits do not hold; `Internal` for what rten
    /// reports.
    pub fn run(
        &self,
        feeds: &[Feed<'_>],
        targets: &[Target<'_, '_>],
    ) -> Result<Vec<Output>, Error> {
        let inputs = feeds
            .iter()
            .map(|feed| {
                let id = self.node(&feed.name.to_string_lossy())?;
                Ok((id, value_from(feed)?))
            })
            .collect::<Result<Vec<(NodeId, ValueOrView)>, Error>>()?;
        let wanted = targets
            .iter()
            .map(|target| self.node(target.info.name()))
            .collect::<Result<Vec<_>, Error>>()?;
        let mut options = RunOptions::default();
        options.thread_pool.clone_from(&self.threads);
        let values = self
            .model
            .run(inputs, &wanted, Some(options))
            .map_err(|error| Error::internal(format!("embedded engine: {error}")))?;
        values
            .into_iter()
            .zip(targets)
            .map(|(value, target)| output_from(value, target.info.data_type))
            .collect()
    }

    fn node(&self, name: &str) -> Result<NodeId, Error> {
        self.model
            .node_id(name)
            .map_err(|error| Error::internal(format!("embedded engine: '{name}': {error}")))
    }
}

const NEEDS_LIBRARY: &str = "this model needs the ONNX Runtime library";

/// An output as Triton wants it.
#[derive(Debug, PartialEq)]
pub struct Output {
    pub data_type: DataType,
    pub shape: Vec<i64>,
    pub bytes: Vec<u8>,
}

fn value_from(feed: &Feed<'_>) -> Result<ValueOrView<'static>, Error> {
    let shape = feed
        .shape
        .iter()
        .map(|&dimension| usize::try_from(dimension))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| Error::invalid("an input with a negative dimension"))?;
    let name = feed.name.to_string_lossy();
    let bytes = feed.host()?;
    let value = match feed.data_type {
        DataType::Fp32 => value(shape, bytes.to_elements::<f32>()),
        DataType::Fp64 => value(shape, floats(bytes, |b| f64::from_le_bytes(b) as f32)),
        DataType::Fp16 => value(shape, floats(bytes, |b| f16::from_le_bytes(b).to_f32())),
        DataType::Bf16 => value(shape, floats(bytes, |b| bf16::from_le_bytes(b).to_f32())),
        DataType::Int32 => value(shape, bytes.to_elements::<i32>()),
        DataType::Int64 => value(shape, integers(&name, bytes, i64::from_le_bytes)?),
        DataType::Int16 => value(shape, integers(&name, bytes, i16::from_le_bytes)?),
        DataType::Uint16 => value(shape, integers(&name, bytes, u16::from_le_bytes)?),
        DataType::Uint32 => value(shape, integers(&name, bytes, u32::from_le_bytes)?),
        DataType::Uint64 => value(shape, integers(&name, bytes, u64::from_le_bytes)?),
        DataType::Bool => value(
            shape,
            bytes.chunks().map(|[byte]| i32::from(byte != 0)).collect(),
        ),
        DataType::Int8 => value(shape, bytes.to_elements::<i8>()),
        DataType::Uint8 => value(shape, bytes.to_vec()),
        DataType::Bytes => return Err(Error::unsupported("the embedded engine has no strings")),
    };
    value.map(ValueOrView::from).ok_or_else(|| {
        Error::invalid(format!(
            "input '{name}' has not as many bytes as its shape says"
        ))
    })
}

fn value<T>(shape: Vec<usize>, elements: Vec<T>) -> Option<Value>
where
    Value: From<Tensor<T>>,
{
    Value::from_shape(shape, elements).ok()
}

fn floats<const N: usize>(bytes: sdk::TensorBytes<'_>, read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.chunks().map(read).collect()
}

fn integers<const N: usize, T: TryInto<i32> + Copy + std::fmt::Display>(
    name: &str,
    bytes: sdk::TensorBytes<'_>,
    read: impl Fn([u8; N]) -> T,
) -> Result<Vec<i32>, Error> {
    bytes
        .chunks()
        .map(|element| {
            let element = read(element);
            element.try_into().map_err(|_| {
                Error::invalid(format!(
                    "input '{name}' has the value {element}, and the embedded engine computes \
                     integers in 32 bits"
                ))
            })
        })
        .collect()
}

fn output_from(value: Value, data_type: DataType) -> Result<Output, Error> {
    match value {
        Value::FloatTensor(tensor) => {
            output(tensor.view(), data_type, |element, bytes| match data_type {
                DataType::Fp32 => extend(bytes, &element.to_le_bytes()),
                DataType::Fp64 => extend(bytes, &f64::from(element).to_le_bytes()),
                DataType::Fp16 => extend(bytes, &f16::from_f32(element).to_le_bytes()),
                DataType::Bf16 => extend(bytes, &bf16::from_f32(element).to_le_bytes()),
                _ => false,
            })
        }
        Value::Int32Tensor(tensor) => {
            // Narrow types wrap as the wide computation would have, had it been done in them.
            output(tensor.view(), data_type, |element, bytes| match data_type {
                DataType::Int32 | DataType::Uint32 => extend(bytes, &element.to_le_bytes()),
                DataType::Int64 | DataType::Uint64 => {
                    extend(bytes, &i64::from(element).to_le_bytes())
                }
                DataType::Int16 | DataType::Uint16 => {
                    extend(bytes, &(element as i16).to_le_bytes())
                }
                DataType::Int8 | DataType::Uint8 => extend(bytes, &(element as i8).to_le_bytes()),
                DataType::Bool => extend(bytes, &[u8::from(element != 0)]),
                _ => false,
            })
        }
        Value::Int8Tensor(tensor) => output(tensor.view(), data_type, |element, bytes| {
            data_type == DataType::Int8 && extend(bytes, &element.to_le_bytes())
        }),
        Value::UInt8Tensor(tensor) => output(tensor.view(), data_type, |element, bytes| {
            data_type == DataType::Uint8 && extend(bytes, &[element])
        }),
        _ => Err(Error::unsupported("the embedded engine made a sequence")),
    }
}

fn extend(bytes: &mut Vec<u8>, element: &[u8]) -> bool {
    bytes.extend_from_slice(element);
    true
}

/// Converts element by element; `write` says false where a type cannot be made of the engine's.
fn output<T: Copy>(
    tensor: TensorView<'_, T>,
    data_type: DataType,
    write: impl Fn(T, &mut Vec<u8>) -> bool,
) -> Result<Output, Error> {
    let shape: Vec<i64> = tensor.shape().iter().map(|&size| size as i64).collect();
    let capacity = element_count(&shape)
        .unwrap_or(0)
        .saturating_mul(data_type.element_bytes().unwrap_or(1));
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(capacity)
        .map_err(|_| Error::out_of_memory(capacity))?;
    for &element in tensor.iter() {
        if !write(element, &mut bytes) {
            return Err(Error::internal(format!(
                "the embedded engine made an output of another type than {}",
                data_type.name()
            )));
        }
    }
    Ok(Output {
        data_type,
        shape,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::engine::FeedData;

    fn through(data_type: DataType, bytes: &[u8], shape: &[i64]) -> Result<Output, Error> {
        let feed = Feed {
            name: c"X",
            data_type,
            shape,
            data: FeedData::Host(bytes.into()),
        };
        match value_from(&feed)? {
            ValueOrView::Value(value) => output_from(value, data_type),
            ValueOrView::View(_) => Err(Error::internal("a view")),
        }
    }

    #[test]
    fn values_survive_the_way_in_and_out() {
        for (data_type, bytes) in [
            (
                DataType::Fp32,
                [1.5f32, -2.0].map(f32::to_le_bytes).concat(),
            ),
            (
                DataType::Fp64,
                [1.5f64, -2.0].map(f64::to_le_bytes).concat(),
            ),
            (
                DataType::Fp16,
                [f16::from_f32(1.5), f16::from_f32(-2.0)]
                    .map(f16::to_le_bytes)
                    .concat(),
            ),
            (
                DataType::Bf16,
                [bf16::from_f32(1.5), bf16::from_f32(-2.0)]
                    .map(bf16::to_le_bytes)
                    .concat(),
            ),
            (DataType::Int64, [7i64, -9].map(i64::to_le_bytes).concat()),
            (DataType::Uint64, [7u64, 9].map(u64::to_le_bytes).concat()),
            (
                DataType::Int32,
                [i32::MIN, i32::MAX].map(i32::to_le_bytes).concat(),
            ),
            (DataType::Uint32, [0u32, 9].map(u32::to_le_bytes).concat()),
            (
                DataType::Int16,
                [i16::MIN, i16::MAX].map(i16::to_le_bytes).concat(),
            ),
            (
                DataType::Uint16,
                [0u16, u16::MAX].map(u16::to_le_bytes).concat(),
            ),
            (DataType::Int8, vec![0x80, 0x7f]),
            (DataType::Uint8, vec![0, 255]),
            (DataType::Bool, vec![0, 1]),
        ] {
            let output = through(data_type, &bytes, &[1, 2]).unwrap();
            assert_eq!(output.bytes, bytes, "{data_type:?}");
            assert_eq!(output.shape, [1, 2]);
            assert_eq!(output.data_type, data_type);
        }
    }

    #[test]
    fn refuses_what_it_cannot_hold() {
        let large = (i64::from(i32::MAX) + 1).to_le_bytes();
        let error = through(DataType::Int64, &large, &[1]).unwrap_err();
        assert!(error.message().contains("2147483648"), "{error}");
        assert!(through(DataType::Uint32, &u32::MAX.to_le_bytes(), &[1]).is_err());
        assert!(through(DataType::Bytes, &[], &[0]).is_err());
        // Bytes that do not fit the shape.
        assert!(through(DataType::Fp32, &[0; 8], &[3]).is_err());
        assert!(through(DataType::Fp32, &[0; 8], &[-1]).is_err());
    }

    #[test]
    fn refuses_outputs_of_another_kind() {
        let value = Value::from_shape([1usize], vec![1i32]).unwrap();
        assert!(output_from(value, DataType::Fp32).is_err());
        let value = Value::from_shape([1usize], vec![1f32]).unwrap();
        assert!(output_from(value, DataType::Int32).is_err());
    }
}
