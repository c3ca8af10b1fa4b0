//! Tensors in registered memory, as the parameters of a message name it.

use conch_engine::shared_memory::RegionWindow;
use conch_engine::{Regions, truncated};

use super::message::{MessageParameters, ParameterChoice, find};
use crate::grpc::status::{GrpcStatus, invalid};

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionPart<'a> {
    pub(super) region: &'a str,
    offset: u64,
    byte_size: u64,
}

impl<'a> RegionPart<'a> {
    /// The part that a tensor's parameters name, if any.
    pub(super) fn read(
        parameters: &MessageParameters<'a>,
        tensor: &str,
    ) -> Result<Option<RegionPart<'a>>, GrpcStatus> {
        let region = match find(parameters, "shared_memory_region") {
            None => None,
            Some(ParameterChoice::Text(region)) => Some(region),
            Some(_) => return Err(wrong_kind("shared_memory_region", tensor, "string_param")),
        };
        let number = |name| match (find(parameters, name), region) {
            (None, _) => Ok(None),
            (Some(_), None) => Err(invalid(format!(
                "'{name}' can not be specified without 'shared_memory_region' parameter for tensor \
                 '{tensor}'",
                tensor = truncated(&tensor)
            ))),
            // A negative one lies outside of every region, as in upstream's unsigned arithmetic.
            (Some(ParameterChoice::Int(value)), Some(_)) => Ok(Some(value.cast_unsigned())),
            (Some(_), Some(_)) => Err(wrong_kind(name, tensor, "int64_param")),
        };
        let offset = number("shared_memory_offset")?.unwrap_or(0);
        let byte_size = number("shared_memory_byte_size")?;
        let Some(region) = region else {
            return Ok(None);
        };
        let byte_size = byte_size.ok_or_else(|| {
            invalid(format!(
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' \
                 parameter for tensor '{tensor}'",
                tensor = truncated(&tensor)
            ))
        })?;
        Ok(Some(RegionPart {
            region,
            offset,
            byte_size,
        }))
    }

    /// The bytes themselves.
    pub(super) fn window(&self, regions: &Regions) -> Result<RegionWindow, GrpcStatus> {
        Ok(regions.window(self.region, self.offset, self.byte_size)?)
    }
}

fn wrong_kind(parameter: &str, tensor: &str, expected: &str) -> GrpcStatus {
    invalid(format!(
        "invalid value type for '{parameter}' parameter for tensor '{tensor}', expected \
         {expected}.",
        tensor = truncated(&tensor)
    ))
}

/// Whether the head of a request may name a region: the text of the parameter is in it.
pub(super) fn is_mentioned(head: &[u8]) -> bool {
    const NAME: &[u8] = b"shared_memory_region";
    head.windows(NAME.len()).any(|window| window == NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let region = ("shared_memory_region", ParameterChoice::Text("r"));
        let size = ("shared_memory_byte_size", ParameterChoice::Int(4));
        let read = |parameters: &[(&'static str, ParameterChoice<'static>)]| {
            let parameters = parameters.iter().copied().collect();
            RegionPart::read(&parameters, "T").map_err(|status| status.message.into_owned())
        };
        let part = |offset, byte_size| RegionPart {
            region: "r",
            offset,
            byte_size,
        };
        assert_eq!(read(&[("other", ParameterChoice::Int(1))]), Ok(None));
        assert_eq!(read(&[region, size]), Ok(Some(part(0, 4))));
        let negative = [
            region,
            ("shared_memory_offset", ParameterChoice::Int(-1)),
            ("shared_memory_byte_size", ParameterChoice::Int(-2)),
        ];
        assert_eq!(read(&negative), Ok(Some(part(u64::MAX, u64::MAX - 1))));
        assert!(is_mentioned(b"..shared_memory_region.."));
        assert!(!is_mentioned(b"shared_memory_regio") && !is_mentioned(b""));
    }
}
