//! Tensors in registered memory, as the JSON of a request names it.

use conch_engine::shared_memory::RegionWindow;
use conch_engine::{Error, Regions};

use crate::http::json::{JsonValue, within};

/// The part of a region that a tensor's parameters name, if any. Without a size it is empty,
/// without a region the other two count for nothing, but must be numbers.
pub(super) fn read_window(
    parameters: JsonValue<'_>,
    regions: &Regions,
) -> Result<Option<RegionWindow>, Error> {
    let region = parameters
        .find("shared_memory_region")
        .map(JsonValue::as_str)
        .transpose()
        .map_err(within("Unable to parse 'shared_memory_region'"))?;
    let offset = parameters
        .find("shared_memory_offset")
        .map_or(Ok(0), JsonValue::as_unsigned)
        .map_err(within("Unable to parse 'shared_memory_offset'"))?;
    let byte_size = parameters
        .find("shared_memory_byte_size")
        .map_or(Ok(0), JsonValue::as_unsigned)
        .map_err(within("Unable to parse 'shared_memory_byte_size'"))?;
    region
        .map(|region| regions.window(region, offset, byte_size))
        .transpose()
}
