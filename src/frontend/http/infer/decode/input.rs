//! Inputs of a request: their shapes, and where their data is.

use conch_config::DataType;
use conch_engine::shared_memory::RequestRegions;
use conch_engine::{Error, Shape, truncated};
use conch_memory::{Block, ByteView, OutOfMemory, try_push};
use smallvec::SmallVec;

use super::{DecodeBounds, GivenInput, JsonLimits};
use crate::http::infer::region::read_window;
use crate::http::json::{JsonValue, tensor, within};

/// Dimensions that a message shows.
const DIMS_SHOWN_MAX: usize = 64;

/// Refuses an input that names several sources of its data, or none.
fn check_source(input: JsonValue<'_>) -> Result<(), Error> {
    let parameters = input.find("parameters");
    let is_set = |name: &str| parameters.is_some_and(|parameters| parameters.find(name).is_some());
    let sources = [
        ("data", input.find("data").is_some()),
        ("binary_data_size", is_set("binary_data_size")),
        ("shared_memory_region", is_set("shared_memory_region")),
    ];
    let set_count = sources.iter().filter(|(_, is_set)| *is_set).count();
    if set_count == 1 {
        return Ok(());
    }
    let mut message = "Input must set only one of the following fields: 'data', \
                       'binary_data_size' in 'parameters', \
                       'shared_memory_region' in 'parameters'. But"
        .to_owned();
    if set_count == 0 {
        message += " no field is set";
    } else {
        message += " set";
        for (name, _) in sources.iter().filter(|(_, is_set)| *is_set) {
            message = message + " '" + name + "'";
        }
    }
    Err(Error::invalid(message))
}

#[inline]
pub(super) fn read_input(
    input: JsonValue<'_>,
    tail: &ByteView,
    used: &mut usize,
    bounds: &DecodeBounds<'_>,
    usage: &mut Option<Box<RequestRegions>>,
) -> Result<GivenInput, Error> {
    check_source(input)?;
    let name = input
        .member("name")
        .map_err(within("Unable to parse 'name'"))?;
    let name_index = name
        .as_string_index()
        .map_err(within("Unable to parse 'name'"))?;
    let name = name.as_str()?;
    let type_name = input
        .member("datatype")
        .and_then(JsonValue::as_str)
        .map_err(within("Unable to parse 'datatype'"))?;
    let mut shape = Shape::new();
    for dim in input
        .member("shape")
        .and_then(JsonValue::as_array)
        .map_err(within("Unable to parse 'shape'"))?
    {
        let dim = dim
            .as_unsigned()
            .map_err(within("Unable to parse 'shape'"))?;
        // Beyond the signed range it wraps to a negative number, which is refused below as upstream
        // does.
        try_push(&mut shape, dim.cast_signed())?;
    }
    let data_type = DataType::from_name(type_name).ok_or_else(|| {
        Error::invalid(format!(
            "invalid datatype for input {name}",
            name = truncated(&name)
        ))
    })?;
    let parameters = input.find("parameters");
    let parameter = |key: &str| parameters.and_then(|parameters| parameters.find(key));
    let view = if let Some(size) = parameter("binary_data_size") {
        let size = size
            .as_unsigned()
            .map_err(within("Unable to parse 'binary_data_size'"))?;
        take_tail(tail, used, size, data_type, name, bounds.model_name)?
    } else if let Some(parameters) = parameters
        && let Some(window) = read_window(parameters, bounds.regions)?
    {
        usage.get_or_insert_default().add_input(window)
    } else {
        read_json(input, &shape, data_type, name, bounds.limits)?
    };
    Ok(GivenInput {
        name: name_index,
        data_type,
        shape,
        chunks: SmallVec::from_iter([view]),
    })
}

/// The next `size` bytes behind the JSON. Copied if they are not aligned to their elements:
/// backends read them as arrays.
fn take_tail(
    tail: &ByteView,
    used: &mut usize,
    size: u64,
    data_type: DataType,
    name: &str,
    model_name: &str,
) -> Result<ByteView, Error> {
    let available = tail.len() - *used;
    let wanted = usize::try_from(size).unwrap_or(usize::MAX);
    if wanted > available {
        let missing = size - available as u64;
        return Err(Error::invalid(format!(
            "unexpected size for input '{name}', expecting {missing} additional bytes for model \
             '{model_name}'",
            name = truncated(&name)
        )));
    }
    let view = aligned(tail, *used, wanted, data_type)?;
    *used += wanted;
    Ok(view)
}

/// The `size` bytes at `start` of `tail`, which has so many; copied if they are not aligned to
/// their elements.
pub(super) fn aligned(
    tail: &ByteView,
    start: usize,
    size: usize,
    data_type: DataType,
) -> Result<ByteView, OutOfMemory> {
    let view = tail.slice(start, start + size);
    let view = view.unwrap_or_else(ByteView::empty);
    let is_aligned = data_type
        .element_bytes()
        .is_none_or(|bytes| view.as_ptr().addr().is_multiple_of(bytes));
    if is_aligned {
        return Ok(view);
    }
    ByteView::try_copy_of(view.as_ref())
}

fn read_json(
    input: JsonValue<'_>,
    shape: &Shape,
    data_type: DataType,
    name: &str,
    limits: JsonLimits,
) -> Result<ByteView, Error> {
    let JsonLimits {
        input_bytes_max,
        strict_integers,
    } = limits;
    let count = element_count(shape, name)?;
    if count == 0 {
        return Ok(ByteView::empty());
    }
    let text = input
        .member("data")
        .and_then(JsonValue::as_tensor_data)
        .map_err(within("Unable to parse 'data'"))?;
    let size = match data_type.element_bytes() {
        None => tensor::bytes_size(text)? as u64,
        Some(bytes) => {
            let size = count.checked_mul(bytes as u64);
            let size = size.filter(|size| i64::try_from(*size).is_ok());
            size.ok_or_else(|| size_overflow(name, count, bytes))?
        }
    };
    if size > input_bytes_max {
        return Err(Error::invalid(format!(
            "JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed \
             value of {input_bytes_max} bytes. Use --http-max-input-size to increase the limit.",
            name = truncated(&name)
        )));
    }
    // A shape may promise far more than the text holds: each element takes two bytes of it, but for
    // the last.
    if data_type.element_bytes().is_some() && count > (text.len() as u64).div_ceil(2) {
        return Err(match data_type {
            DataType::Fp16 | DataType::Bf16 => tensor::read(
                text,
                name,
                data_type,
                0,
                &mut Block::with_capacity(0),
                false,
            )
            .err()
            .unwrap_or_else(too_few),
            _ => too_few(),
        });
    }
    let (size, count) = (
        usize::try_from(size).map_err(|_| Error::invalid("the tensor is too large"))?,
        usize::try_from(count).map_err(|_| Error::invalid("the tensor is too large"))?,
    );
    let mut block = Block::try_with_capacity(size)?;
    tensor::read(text, name, data_type, count, &mut block, strict_integers)?;
    Ok(ByteView::from(block))
}

#[cold]
fn size_overflow(name: &str, count: u64, element_bytes: usize) -> Error {
    Error::invalid(format!(
        "byte size overflow for input '{name}': element count ({count}) * data type size \
         ({element_bytes}) exceeds maximum allowed size ({})",
        i64::MAX,
        name = truncated(&name)
    ))
}

fn too_few() -> Error {
    Error::internal("Failed to parse 'data' field: shape does not match true shape")
}

/// Upstream's count: 0 also for a shape without dimensions.
fn element_count(shape: &Shape, name: &str) -> Result<u64, Error> {
    if shape.iter().any(|dim| *dim < 0) {
        return Err(Error::invalid(format!(
            "invalid shape for input '{name}': shape {} contains one or more invalid dimensions",
            shape_text(shape),
            name = truncated(&name)
        )));
    }
    if shape.is_empty() || shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1i64, |count, dim| count.checked_mul(*dim))
        .and_then(|count| u64::try_from(count).ok())
        .ok_or_else(|| {
            Error::invalid(format!(
                "invalid shape for input '{name}': shape {} causes total element count to exceed \
                 maximum size of {}",
                shape_text(shape),
                i64::MAX,
                name = truncated(&name)
            ))
        })
}

fn shape_text(shape: &Shape) -> String {
    let dims = shape.iter().take(DIMS_SHOWN_MAX);
    let dims: Vec<String> = dims.map(i64::to_string).collect();
    let more = if shape.len() > DIMS_SHOWN_MAX {
        ",..."
    } else {
        ""
    };
    format!("[{}{more}]", dims.join(","))
}
