//! Addresses of devices.

/// An address in the memory of a device. The CPU never reads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `offset` bytes further on.
    pub fn at(self, offset: u64) -> DeviceAddress {
        DeviceAddress(self.0 + offset)
    }
}
