//! Whether devices still work. An error that stays (an illegal address, a device that is gone)
//! breaks a device's context: every call fails from then on, until the process ends. Requests are
//! told by the calls that they need; here it is noticed without any, for readiness and the index.

use std::sync::{MutexGuard, PoisonError};

use conch_log as log;

use super::host::{Gpu, GpuHost};
use crate::Error;

impl GpuHost {
    /// Asks the driver whether the devices in use still work, and returns the numbers of those that
    /// do not. May block in the driver.
    pub fn look_after_devices(&self) -> Vec<i32> {
        let mut broken_ids = Vec::new();
        for gpu in self.gpus() {
            let Some(memory) = gpu.memory() else { continue };
            let device_id = gpu.device_id();
            // A cheap call, which waits for nothing and fails as all others do.
            let refused = memory.device().memory_info().err();
            let found = refused.filter(|error| error.is_sticky()).map(|error| {
                Error::unavailable(format!("GPU {device_id} is out of service: {error}"))
            });
            broken_ids.extend(found.is_some().then_some(device_id));
            let mut fault = gpu.lock_fault();
            match (&*fault, &found) {
                (None, Some(error)) => log::error!(
                    "{}; models with instances there are not ready until the server starts anew",
                    error.message
                ),
                (Some(_), None) => log::info!("GPU {device_id} works again"),
                _ => {}
            }
            *fault = found;
        }
        broken_ids
    }

    /// Why a device of this process does not work any more, as of the last look; none for a device
    /// that does, or that there is not.
    pub(crate) fn fault_of(device_id: i32) -> Option<Error> {
        let mut gpus = GpuHost::current()?.gpus().iter();
        gpus.find(|gpu| gpu.device_id() == device_id)?.fault()
    }
}

impl Gpu {
    /// Why it does not work any more, as of the last look.
    pub fn fault(&self) -> Option<Error> {
        self.lock_fault().clone()
    }

    fn lock_fault(&self) -> MutexGuard<'_, Option<Error>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
