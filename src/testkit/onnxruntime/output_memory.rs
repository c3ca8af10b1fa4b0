//! Memory of outputs on a device.

use crate::cuda::Cuda;
use crate::memory::{DeviceValue, element_bytes};
use crate::real::Failure;
use crate::session::GpuSession;
use crate::settings::settings;

/// The memory of an output on the device: what the caller gave, or new.
pub fn target(
    given: Option<DeviceValue>,
    gpu: &GpuSession,
    cuda: &Cuda,
    len: usize,
) -> Result<DeviceValue, Failure> {
    if let Some(given) = given {
        if (given.device, given.len) != (gpu.device, len) {
            return Err(Failure::Double(format!(
                "misuse: memory of {} bytes on GPU {} for an output of {len} on GPU {}",
                given.len, given.device, gpu.device
            )));
        }
        return Ok(DeviceValue {
            is_owned: false,
            ..given
        });
    }
    if settings().room_bytes.is_some_and(|room| len > room) {
        return Err(Failure::Double(format!(
            "Failed to allocate memory for requested buffer of size {len}"
        )));
    }
    Ok(DeviceValue {
        device: gpu.device,
        address: cuda.allocate(len.max(1))?,
        len,
        is_owned: true,
    })
}

pub fn byte_count(element: i32, shape: &[i64]) -> Result<usize, Failure> {
    let count = shape.iter().try_fold(1_usize, |product, &dimension| {
        product.checked_mul(usize::try_from(dimension).ok()?)
    });
    let bytes = element_bytes(element)
        .zip(count)
        .and_then(|(size, count)| size.checked_mul(count));
    bytes.ok_or_else(|| Failure::Double("misuse: strings, or a shape, on a device".to_owned()))
}
