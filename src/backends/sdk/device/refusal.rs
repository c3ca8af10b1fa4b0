//! Errors of the driver, as those of the SDK.

use conch_cuda::{CudaError, Device};

use crate::Error;

/// An error for what the driver refused: `Unavailable` where the device has no room.
pub(super) fn refusal(device: &Device, error: &CudaError) -> Error {
    refusal_of(device.ordinal(), error)
}

pub(super) fn refusal_of(ordinal: i32, error: &CudaError) -> Error {
    let text = format!("GPU {ordinal}: {error}");
    match error.is_out_of_memory() {
        true => Error::unavailable(text),
        false => Error::internal(text),
    }
}
