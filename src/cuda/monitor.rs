//! What a GPU is doing, from NVIDIA's management library (NVML), found at run time.

use std::fmt;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// The management library, loaded and initialised. Its calls may take milliseconds; some block
/// while a device is reset.
#[derive(Debug)]
pub struct GpuMonitor {
    nvml: Nvml,
}

/// Why nothing is known of what GPUs do.
#[derive(Debug)]
pub struct MonitorAbsent(NvmlError);

impl fmt::Display for MonitorAbsent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl std::error::Error for MonitorAbsent {}

/// Figures of one device at one moment; what it does not tell is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuReading {
    /// Part of the last sample period in which a kernel ran, 0 to 1.
    pub utilization: Option<f64>,
    pub memory_total_bytes: Option<u64>,
    pub memory_used_bytes: Option<u64>,
    pub power_usage_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    /// Since the driver was loaded.
    pub energy_joules: Option<f64>,
}

impl GpuMonitor {
    /// Loads the library; blocks while it does.
    ///
    /// # Errors
    /// [`MonitorAbsent`] where there is none, or it refuses.
    pub fn start() -> Result<GpuMonitor, MonitorAbsent> {
        let nvml = Nvml::init().map_err(MonitorAbsent)?;
        Ok(GpuMonitor { nvml })
    }

    /// The figures of the device with this UUID; none for one that is not there (any more).
    pub fn read(&self, uuid: &str) -> GpuReading {
        const MILLI: f64 = 1e-3;
        let Ok(device) = self.nvml.device_by_uuid(uuid) else {
            return GpuReading::default();
        };
        let memory = device.memory_info().ok();
        let watts = |milliwatts: u32| f64::from(milliwatts) * MILLI;
        GpuReading {
            utilization: device
                .utilization_rates()
                .ok()
                .map(|rates| f64::from(rates.gpu) / 100.0),
            memory_total_bytes: memory.as_ref().map(|memory| memory.total),
            memory_used_bytes: memory.as_ref().map(|memory| memory.used),
            power_usage_watts: device.power_usage().ok().map(watts),
            power_limit_watts: device.enforced_power_limit().ok().map(watts),
            energy_joules: device
                .total_energy_consumption()
                .ok()
                .map(|millijoules| millijoules as f64 * MILLI),
        }
    }
}
