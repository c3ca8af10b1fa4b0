//! One input against its configuration: type, shape, reshape, bytes.

use std::sync::Arc;

use conch_config::{DataType, ResolvedConfig, TensorSpec};
use conch_memory::{Budget, ByteView};

use crate::Error;
use crate::private_copy::to_private;
use crate::request::draft::DraftInput;
use crate::request::messages::Dims;
use crate::tensor::{Input, Shape};
use crate::validation::request_label::RequestLabel;

/// Bytes of the length in front of each BYTES element.
const LENGTH_BYTES: usize = 4;

const BATCH_NOTE: &str = "NOTE: Setting a non-zero max_batch_size in the model config requires a \
                          batch dimension to be prepended to each input shape. If you want to \
                          specify the full shape including the batch dim in your input dims \
                          config, try setting max_batch_size to zero. See the model configuration \
                          docs for more info on max_batch_size.";

/// Checks one input, takes its bytes, and gives it the shape that the backend sees. `label` is its
/// name in messages. A copy is charged to `budget`.
pub(super) fn check(
    request: &RequestLabel<'_>,
    config: &ResolvedConfig,
    spec: &TensorSpec,
    label: &str,
    batch_size: u32,
    input: &mut DraftInput<'_>,
    budget: Option<&Arc<Budget>>,
) -> Result<Input, Error> {
    let model = request.model;
    if is_content_checked(spec.data_type, spec.is_shape_tensor) {
        // What is checked must be what the backend gets. Frontends copy in slices before; this is
        // for what they left.
        let is_foreign = |chunk: &&mut ByteView| chunk.is_shared() || !chunk.place().is_host();
        for chunk in input.chunks.iter_mut().filter(is_foreign) {
            *chunk = to_private(chunk, budget)?;
        }
    }
    if input.data_type != spec.data_type {
        return Err(request.invalid(format_args!(
            "inference input '{label}' data-type is '{}', but model '{model}' expects '{}'",
            input.data_type.name(),
            spec.data_type.name()
        )));
    }
    // A shape tensor has no batch dimension of its own.
    let has_batch_dim = config.is_batching() && !spec.is_shape_tensor;
    let dims = input.shape.get(usize::from(has_batch_dim)..).unwrap_or(&[]);
    check_dims(request, config, spec, label, dims, &input.shape)?;

    let shape = backend_shape(spec, dims, batch_size);
    let byte_size = sum_bytes(&input.chunks);
    if !spec.is_non_linear_format_io {
        match spec.data_type.element_bytes() {
            None => check_elements(request, label, &shape, &input.chunks)?,
            Some(element_bytes) => {
                let counted = if spec.is_shape_tensor {
                    &input.shape
                } else {
                    &shape
                };
                let expected = byte_count(label, counted, element_bytes)?;
                if byte_size != expected {
                    return Err(request.invalid(format_args!(
                        "input byte size mismatch for input '{label}' for model '{model}'. \
                         Expected {expected}, got {byte_size}"
                    )));
                }
            }
        }
    }
    Ok(Input {
        name: spec.name.clone(),
        data_type: spec.data_type,
        shape,
        chunks: std::mem::take(&mut input.chunks),
        byte_size,
    })
}

/// The shape that the backend sees: with the batch dimension, and reshaped if the model says so.
fn backend_shape(spec: &TensorSpec, dims: &[i64], batch_size: u32) -> Shape {
    let mut shape = Shape::new();
    if batch_size > 0 {
        shape.push(i64::from(batch_size));
    }
    let Some(reshape) = &spec.reshape else {
        shape.extend_from_slice(dims);
        return shape;
    };
    // Validated with the model: as many variable dimensions on both sides, in the same order.
    let mut variable = spec
        .dims
        .iter()
        .zip(dims)
        .filter(|(configured, _)| **configured == -1)
        .map(|(_, got)| *got);
    shape.extend(reshape.iter().map(|dim| match dim {
        -1 => variable.next().unwrap_or(1),
        dim => *dim,
    }));
    shape
}

/// Whether admission looks at an input's bytes, and not only at how many there are.
pub fn is_content_checked(data_type: DataType, is_shape_tensor: bool) -> bool {
    data_type == DataType::Bytes || is_shape_tensor
}

fn check_dims(
    request: &RequestLabel<'_>,
    config: &ResolvedConfig,
    spec: &TensorSpec,
    label: &str,
    dims: &[i64],
    whole: &[i64],
) -> Result<(), Error> {
    let mut agrees = dims.len() == spec.dims.len();
    if agrees {
        for (got, expected) in dims.iter().zip(&spec.dims) {
            if *got == -1 {
                return Err(request.invalid(format_args!(
                    "All input dimensions should be specified for input '{label}' for model '{}', \
                     got {}",
                    request.model,
                    Dims(whole)
                )));
            }
            if *expected != -1 && got != expected {
                agrees = false;
                break;
            }
        }
    }
    if agrees {
        return Ok(());
    }
    let mut expected = Shape::new();
    if config.is_batching() {
        expected.push(-1);
    }
    expected.extend_from_slice(&spec.dims);
    let note = if config.is_batching() { BATCH_NOTE } else { "" };
    Err(request.invalid(format_args!(
        "unexpected shape for input '{label}' for model '{}'. Expected {}, got {}. {note}",
        request.model,
        Dims(&expected),
        Dims(whole)
    )))
}

/// How many elements `shape` has.
///
/// # Errors
/// INVALID_ARG for a negative dimension and for more than 63 bits hold; `invalid` and `excess` are
/// upstream's words.
fn element_count(label: &str, shape: &[i64], invalid: &str, excess: &str) -> Result<u64, Error> {
    let mut count = 1_u64;
    for dim in shape {
        let Ok(dim) = u64::try_from(*dim) else {
            return Err(Error::invalid(format!(
                "tensor '{label}' {invalid} {}",
                Dims(shape)
            )));
        };
        count = count
            .checked_mul(dim)
            .filter(|count| i64::try_from(*count).is_ok())
            .ok_or_else(|| {
                Error::invalid(format!(
                    "{excess} for tensor '{label}' exceeds maximum size of {}",
                    i64::MAX
                ))
            })?;
    }
    Ok(count)
}

pub(crate) fn byte_count(label: &str, shape: &[i64], element_bytes: usize) -> Result<u64, Error> {
    const EXCESS: &str = "byte size";
    element_count(label, shape, "contains an invalid dimension", EXCESS)?
        .checked_mul(element_bytes as u64)
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| {
            Error::invalid(format!(
                "{EXCESS} for tensor '{label}' exceeds maximum size of {}",
                i64::MAX
            ))
        })
}

fn sum_bytes(chunks: &[ByteView]) -> u64 {
    chunks.iter().map(|chunk| chunk.len() as u64).sum()
}

/// Walks the elements of a BYTES tensor without copying: each a 4-byte length and so many bytes, as
/// many as the shape says. Bytes on a GPU are the backend's to check.
///
/// # Errors
/// INVALID_ARG as soon as there is one element too many, a length is cut off, or at the end one is
/// missing.
fn check_elements(
    request: &RequestLabel<'_>,
    label: &str,
    shape: &[i64],
    chunks: &[ByteView],
) -> Result<(), Error> {
    let model = request.model;
    let expected = element_count(
        label,
        shape,
        "contains an invalid dimension in shape",
        "element count",
    )?;
    let mut count = 0_u64;
    let (mut length, mut remaining) = (0_usize, 0_usize);
    for chunk in chunks {
        let Some(mut bytes) = chunk.as_slice() else {
            return Ok(());
        };
        while !bytes.is_empty() {
            if remaining == 0 {
                let Some((indicator, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
                    return Err(request.invalid(format_args!(
                        "incomplete string length indicator for inference input '{label}' for \
                         model '{model}', expecting {LENGTH_BYTES} bytes but only {} bytes \
                         available. Please make sure the string length indicator is in one \
                         buffer.",
                        bytes.len()
                    )));
                };
                count += 1;
                if count > expected {
                    return Err(request.invalid(format_args!(
                        "unexpected number of string elements {count} for inference input \
                         '{label}' for model '{model}', expecting {expected}"
                    )));
                }
                length = u32::from_le_bytes(*indicator) as usize;
                remaining = length;
                bytes = rest;
            }
            let (_, rest) = bytes.split_at(remaining.min(bytes.len()));
            remaining -= bytes.len() - rest.len();
            bytes = rest;
        }
    }
    if remaining > 0 {
        // Upstream leaves this to the backend, in these words of its common code. Here nothing past
        // the bytes is ever reached.
        return Err(request.invalid(format_args!(
            "incomplete string data for inference input '{label}', expecting string of length \
             {length} but only {} bytes available",
            length - remaining
        )));
    }
    if count != expected {
        return Err(request.invalid(format_args!(
            "expected {expected} string elements for inference input '{label}' for model \
             '{model}', got {count}"
        )));
    }
    Ok(())
}

const _: () = assert!(DataType::Bytes.element_bytes().is_none());
