//! Raw requests: the whole body is the one input, whose name, type and shape the model's
//! configuration gives.

use conch_config::{DataType, ResolvedConfig};
use conch_memory::ByteView;

use crate::Error;
use crate::request::draft::DraftInputs;
use crate::tensor::Shape;
use crate::validation::request_label::RequestLabel;

/// What messages call the input.
pub(super) const LABEL: &str = "raw_input";

/// Gives the one input its type and shape; a BYTES element gets its length in front.
///
/// # Errors
/// INVALID_ARG if the configuration does not determine them.
pub(super) fn deduce(
    request: &RequestLabel<'_>,
    config: &ResolvedConfig,
    inputs: &mut DraftInputs<'_>,
) -> Result<(), Error> {
    let ([spec], [input]) = (&config.inputs[..], &mut inputs[..]) else {
        return Err(request.invalid(format_args!(
            "Raw request must only have 1 input (found {}) to be deduced but got {} inputs in '{}' \
             model configuration",
            inputs.len(),
            config.inputs.len(),
            request.model
        )));
    };
    let mut shape = Shape::new();
    if config.is_batching() {
        shape.push(1);
    }
    let mut variable = None;
    let mut element_count = Some(1_u64);
    for dim in &spec.dims {
        match u64::try_from(*dim) {
            Ok(dim) => element_count = element_count.and_then(|count| count.checked_mul(dim)),
            Err(_) if variable.is_some() => {
                return Err(request.invalid(format_args!(
                    "The shape of the raw input '{}' can not be deduced because there are more \
                     than one variable-sized dimension",
                    spec.name
                )));
            }
            Err(_) => variable = Some(shape.len()),
        }
        shape.push(*dim);
    }
    let byte_count = inputs_bytes(&input.chunks);
    match (spec.data_type.element_bytes(), variable) {
        (None, variable) => {
            if variable.is_some() || element_count != Some(1) {
                return Err(request.invalid(format_args!(
                    "For BYTE datatype raw input '{}', the model must have input shape [1]",
                    spec.name
                )));
            }
            // A body beyond 4 GiB has no length in this format; it then fails the check of its
            // elements.
            let length = u32::try_from(byte_count).unwrap_or(u32::MAX);
            input
                .chunks
                .insert(0, ByteView::copy_of(&length.to_le_bytes()));
        }
        (Some(element_bytes), Some(axis)) => {
            let unit = element_count.and_then(|count| count.checked_mul(element_bytes as u64));
            let length = unit
                .and_then(|unit| byte_count.checked_div(unit))
                .unwrap_or(0);
            if let Some(dim) = shape.get_mut(axis) {
                *dim = i64::try_from(length).unwrap_or(i64::MAX);
            }
        }
        (Some(_), None) => {}
    }
    input.data_type = spec.data_type;
    input.shape = shape;
    debug_assert!(spec.data_type != DataType::Bytes || input.chunks.len() > 1 || byte_count == 0);
    Ok(())
}

fn inputs_bytes(chunks: &[ByteView]) -> u64 {
    chunks.iter().map(|chunk| chunk.len() as u64).sum()
}
