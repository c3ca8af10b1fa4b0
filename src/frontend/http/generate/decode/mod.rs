//! From a flat JSON object to a draft.
//!
//! A member that is called as one of the model's inputs is that input's tensor, whose shape is
//! guessed from its length; any other is a parameter of the request. Members of the object
//! `parameters` count as if they stood outside. Checks run in upstream's order, member by member.

use std::sync::Arc;

use conch_config::{DataType, ResolvedConfig, TensorSpec};
use conch_engine::request::messages::RequestIdPrefix;
use conch_engine::{Draft, DraftInput, Error, Parameter, Shape};
use conch_memory::{Block, ByteView, try_push, try_text};
use smallvec::SmallVec;

use crate::http::infer::decode::{JsonLimits, parameter_value, too_long};
use crate::http::json::{JsonDocument, JsonValue, tensor, within};

/// The member whose members count as if they stood outside of it.
const NESTED: &str = "parameters";

/// A tensor of input `index` of the model.
struct GivenTensor {
    index: usize,
    shape: Shape,
    data: ByteView,
}

/// A decoded request.
pub(super) struct GenerateRequest {
    config: Arc<ResolvedConfig>,
    id: Box<str>,
    parameters: Vec<Parameter>,
    inputs: SmallVec<[GivenTensor; 4]>,
}

/// Decodes `body` for a model with `config`. `limits` bound the tensors together.
///
/// # Errors
/// In upstream's words and codes.
pub(super) fn decode(
    body: ByteView,
    config: &Arc<ResolvedConfig>,
    limits: JsonLimits,
) -> Result<Box<GenerateRequest>, Error> {
    let input_bytes_max = limits.input_bytes_max;
    if body.len() as u64 > input_bytes_max {
        return Err(too_long(body.len() as u64, input_bytes_max));
    }
    let document = JsonDocument::parse_flat(body)?;
    let root = document.root();
    let id = match root.find("id") {
        Some(id) => id.as_str().map_err(within("Unable to parse 'id'"))?,
        None => "",
    };
    let mut reading = GenerateReader {
        decoded: Box::new(GenerateRequest {
            config: Arc::clone(config),
            id: try_text(id)?,
            parameters: Vec::new(),
            inputs: SmallVec::new(),
        }),
        used_bytes: 0,
        limits,
    };
    reading.read_object(root, true)?;
    Ok(reading.decoded)
}

impl GenerateRequest {
    /// Its tensors have arrived in full: what waits from here on is the server.
    pub(super) fn mark_complete(&self) {
        self.inputs
            .iter()
            .for_each(|given| given.data.mark_complete());
    }

    /// The draft for the engine. Tensors and parameters move out: call it once.
    pub(super) fn draft(&mut self) -> Draft<'_> {
        let given = std::mem::take(&mut self.inputs);
        let mut draft = Draft {
            id: &self.id,
            parameters: std::mem::take(&mut self.parameters),
            ..Draft::default()
        };
        for GivenTensor { index, shape, data } in given {
            let spec = self
                .config
                .inputs
                .get(index)
                .expect("it was found by its name");
            draft.inputs.push(DraftInput {
                name: &spec.name,
                data_type: spec.data_type,
                shape,
                chunks: SmallVec::from_iter([data]),
            });
        }
        draft
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn into_id(self) -> Box<str> {
        self.id
    }
}

struct GenerateReader {
    decoded: Box<GenerateRequest>,
    /// Bytes of all tensors so far.
    used_bytes: u64,
    limits: JsonLimits,
}

impl GenerateReader {
    fn read_object(&mut self, object: JsonValue<'_>, is_root: bool) -> Result<(), Error> {
        if !object.is_object() {
            return Err(Error::internal("attempt to get members for non-object"));
        }
        for (name, value, is_first) in object.members_marked() {
            let name = std::str::from_utf8(name)
                .map_err(|_| Error::invalid("a name in the request JSON is not valid UTF-8"))?;
            if is_root && name == NESTED {
                self.read_nested(value)?;
            } else {
                self.read_member(name, value, is_first)?;
            }
        }
        Ok(())
    }

    fn read_nested(&mut self, value: JsonValue<'_>) -> Result<(), Error> {
        if self.decoded.config.input(NESTED).is_some() {
            return Err(Error::invalid(format!(
                "Keyword '{NESTED}' for nested schema also given as input tensor name"
            )));
        }
        if !value.is_object() {
            return Err(Error::internal(format!(
                "Expected JSON object for keyword: '{NESTED}': attempt to access JSON non-object \
                 as object"
            )));
        }
        let context = format!("Converting keyword: '{NESTED}'");
        self.read_object(value, false).map_err(within(&context))
    }

    fn read_member(
        &mut self,
        name: &str,
        value: JsonValue<'_>,
        is_first: bool,
    ) -> Result<(), Error> {
        let config = Arc::clone(&self.decoded.config);
        let Some((index, spec)) = config.input(name) else {
            if !is_first {
                return Ok(());
            }
            let parameter = Parameter {
                name: try_text(name)?,
                value: parameter_value(name, value)?,
            };
            return Ok(try_push(&mut self.decoded.parameters, parameter)?);
        };
        let (shape, data) = self.read_tensor(&config, spec, value)?;
        if self.decoded.inputs.iter().any(|known| known.index == index) {
            return Err(Error::invalid(format!(
                "{}input '{name}' already exists in request",
                RequestIdPrefix(&self.decoded.id)
            )));
        }
        self.decoded.inputs.push(GivenTensor { index, shape, data });
        Ok(())
    }

    fn read_tensor(
        &mut self,
        config: &ResolvedConfig,
        spec: &TensorSpec,
        value: JsonValue<'_>,
    ) -> Result<(Shape, ByteView), Error> {
        let name = &*spec.name;
        let text = ElementSource::of(value);
        let count = text.outer_count();
        let size = match spec.data_type.element_bytes() {
            None => text.bytes_size()?,
            // Far from overflowing: each element takes a byte of text.
            Some(bytes) => count.saturating_mul(bytes),
        };
        let (used_bytes, bytes_max) = (self.used_bytes, self.limits.input_bytes_max);
        let total = used_bytes.saturating_add(size as u64);
        if total > bytes_max {
            return Err(Error::invalid(format!(
                "request size of {used_bytes} bytes with input '{name}' of size {size} bytes \
                 exceeds the maximum allowed input size of {bytes_max}. Use --http-max-input-size \
                 to increase the limit."
            )));
        }
        self.used_bytes = total;
        let batch = config.is_batching().then_some(-1);
        let dims = batch.into_iter().chain(spec.dims.iter().copied()).collect();
        let shape = fit(dims, count).ok_or_else(|| {
            Error::invalid(format!(
                "The schema can not convert input '{name}' to tensor with proper shape"
            ))
        })?;
        let mut block = Block::try_with_capacity(size)?;
        text.read(spec, count, &mut block, self.limits.strict_integers)?;
        Ok((shape, ByteView::from(block)))
    }
}

/// A tensor's elements as they stand in the request: an array, or one element alone.
enum ElementSource<'d> {
    Text(&'d [u8]),
    /// The content of one string.
    Bytes(&'d [u8]),
}

impl<'d> ElementSource<'d> {
    fn of(value: JsonValue<'d>) -> ElementSource<'d> {
        match (value.bytes(), value.literal()) {
            (Some(bytes), _) => ElementSource::Bytes(bytes),
            (None, text) => ElementSource::Text(text.unwrap_or(b"null")),
        }
    }

    fn outer_count(&self) -> usize {
        match self {
            ElementSource::Text(text) if text.starts_with(b"[") => tensor::outer_count(text),
            _ => 1,
        }
    }

    /// Bytes that it takes as a BYTES tensor.
    fn bytes_size(&self) -> Result<usize, Error> {
        match self {
            ElementSource::Text(text) => tensor::bytes_size(text),
            ElementSource::Bytes(bytes) => Ok(4 + bytes.len()),
        }
    }

    fn read(
        &self,
        spec: &TensorSpec,
        count: usize,
        target: &mut Block,
        is_strict: bool,
    ) -> Result<(), Error> {
        match (self, spec.data_type) {
            (ElementSource::Bytes(bytes), DataType::Bytes) => {
                let length = u32::try_from(bytes.len())
                    .map_err(|_| Error::invalid("a string is too long for a tensor"))?;
                target.extend_from_slice(&length.to_le_bytes());
                target.extend_from_slice(bytes);
                Ok(())
            }
            // No other type takes a string, whatever it holds.
            (ElementSource::Bytes(_), data_type) => {
                tensor::read(br#""""#, &spec.name, data_type, count, target, is_strict)
            }
            (ElementSource::Text(text), data_type) => {
                tensor::read(text, &spec.name, data_type, count, target, is_strict)
            }
        }
    }
}

/// `dims` with `count` elements in place of what is variable: the innermost variable dimension
/// takes what the fixed ones leave, the others are 1. None if that does not come out even.
fn fit(dims: Shape, count: usize) -> Option<Shape> {
    let mut left = i64::try_from(count).ok()?;
    let mut shape = dims;
    if shape.contains(&0) {
        // Nothing can be divided by it, but an empty list fits.
        shape.iter_mut().for_each(|dim| *dim = (*dim).max(0));
        return (left == 0).then_some(shape);
    }
    for dim in shape.iter().filter(|dim| **dim != -1) {
        if left.checked_rem(*dim)? != 0 {
            return None;
        }
        left /= dim;
    }
    for dim in shape.iter_mut().rev().filter(|dim| **dim == -1) {
        *dim = std::mem::replace(&mut left, 1);
    }
    (left == 1).then_some(shape)
}

#[cfg(test)]
mod tests;
