//! Where the bytes of a tensor lie in the memory of a GPU, as a message says it.

/// Bytes by which CUDA names an allocation to other processes (`CUipcMemHandle`).
pub const IPC_HANDLE_BYTES: usize = 64;

/// A part of an allocation of the sender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlace {
    /// The ordinal of the GPU, which both processes count alike.
    pub device: u32,
    /// From the backend: the number of its buffer. From the stub: 0, or [`DevicePlace::TEMPORARY`].
    pub number: u64,
    /// From the beginning of the allocation.
    pub offset: u64,
    pub handle: [u8; IPC_HANDLE_BYTES],
}

impl DevicePlace {
    /// Bytes in a message.
    pub const BYTES: usize = 4 + 8 + 8 + IPC_HANDLE_BYTES;

    /// The number of memory that goes away when the message is done with.
    pub const TEMPORARY: u64 = 1;

    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (device, rest) = bytes.split_at_mut(4);
        let (number, rest) = rest.split_at_mut(8);
        let (offset, handle) = rest.split_at_mut(8);
        device.copy_from_slice(&self.device.to_le_bytes());
        number.copy_from_slice(&self.number.to_le_bytes());
        offset.copy_from_slice(&self.offset.to_le_bytes());
        handle.copy_from_slice(&self.handle);
        bytes
    }

    /// None unless the length is that of a place.
    pub fn from_bytes(bytes: &[u8]) -> Option<DevicePlace> {
        let (device, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (offset, handle) = rest.split_first_chunk()?;
        Some(DevicePlace {
            device: u32::from_le_bytes(*device),
            number: u64::from_le_bytes(*number),
            offset: u64::from_le_bytes(*offset),
            handle: handle.try_into().ok()?,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let place = DevicePlace {
            device: 3,
            number: u64::MAX - 1,
            offset: 1 << 40,
            handle: std::array::from_fn(|index| index as u8),
        };
        let bytes = place.to_bytes();
        assert_eq!(DevicePlace::from_bytes(&bytes), Some(place));
        assert_eq!(DevicePlace::from_bytes(&bytes[1..]), None);
        assert_eq!(DevicePlace::from_bytes(&[]), None);
    }
}
