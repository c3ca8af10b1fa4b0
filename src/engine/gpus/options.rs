//! How GPUs are used.

use std::collections::BTreeMap;

/// What the flags say of GPUs. The defaults are those of the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuOptions {
    /// Devices of older generations are left alone (`--min-supported-compute-capability`).
    pub capability_min: f64,
    /// Let devices reach each other's memory (`--enable-peer-access`).
    pub enables_peer_access: bool,
    /// Bytes of each pool of pinned memory; there is one per NUMA node with a GPU in use.
    pub pinned_pool_bytes: u64,
    /// Bytes of the pool of single devices (`--cuda-memory-pool-byte-size`).
    pub device_pool_bytes: BTreeMap<i32, u64>,
    /// Bytes of addresses of each growable state on single devices
    /// (`--cuda-virtual-address-size`).
    pub device_virtual_bytes: BTreeMap<i32, u64>,
    /// How much of a device's memory may be in use for another instance to be made, from 0 to 1
    /// (`--model-load-gpu-limit`).
    pub load_limits: BTreeMap<i32, f64>,
}

impl GpuOptions {
    pub(super) fn pool_bytes_of(&self, device_id: i32) -> u64 {
        const DEFAULT_BYTES: u64 = 64 << 20;
        let told = self.device_pool_bytes.get(&device_id).copied();
        told.unwrap_or(DEFAULT_BYTES)
    }

    pub(super) fn virtual_bytes_of(&self, device_id: i32) -> u64 {
        const DEFAULT_BYTES: u64 = 1 << 30;
        let told = self.device_virtual_bytes.get(&device_id).copied();
        told.unwrap_or(DEFAULT_BYTES)
    }
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions {
            capability_min: CAPABILITY_MIN,
            enables_peer_access: true,
            pinned_pool_bytes: 256 << 20,
            device_pool_bytes: BTreeMap::new(),
            device_virtual_bytes: BTreeMap::new(),
            load_limits: BTreeMap::new(),
        }
    }
}

/// As upstream is built.
const CAPABILITY_MIN: f64 = 6.0;
