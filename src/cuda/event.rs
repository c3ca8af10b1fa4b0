//! Events: marks in a stream.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::sys;
use cudarc::driver::sys::CUevent_flags_enum as Flag;

use crate::error::check;
use crate::{CudaError, Device};

const TIMED_STEP: Duration = Duration::from_micros(200);

/// A mark in a stream that can be asked for, without the times that would make it slow. One that
/// was never recorded counts as reached.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: sys::CUevent,
    /// The driver wakes a thread that waits for it.
    wakes: bool,
}

// SAFETY: the driver allows events to be used from any thread; the handle is never dereferenced
// here.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// # Errors
    /// What the driver refuses.
    pub fn new(device: &Arc<Device>) -> Result<Event, CudaError> {
        let flags = Flag::CU_EVENT_DISABLE_TIMING as u32 | Flag::CU_EVENT_BLOCKING_SYNC as u32;
        Event::with_flags(device, flags)
    }

    /// An event that also knows when it was reached. Recording it costs half as much as if it
    /// could wake a thread.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn timed(device: &Arc<Device>) -> Result<Event, CudaError> {
        Event::with_flags(device, 0)
    }

    fn with_flags(device: &Arc<Device>, flags: u32) -> Result<Event, CudaError> {
        let _current = device.current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the result is writable.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&raw mut handle, flags)
        })?;
        Ok(Event {
            device: Arc::clone(device),
            handle,
            wakes: flags & Flag::CU_EVENT_BLOCKING_SYNC as u32 != 0,
        })
    }

    pub(crate) fn handle(&self) -> sys::CUevent {
        self.handle
    }

    /// Whether the stream has passed the mark. Never blocks.
    ///
    /// # Errors
    /// What failed in the stream before the mark.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        let _current = self.device.current()?;
        // SAFETY: the event lives.
        match check("cuEventQuery", unsafe { sys::cuEventQuery(self.handle) }) {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_ready() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The time from `other` until this event, on the device's clock; negative if this one came
    /// first. Both are timed, of one device, and reached.
    ///
    /// # Errors
    /// What the driver refuses: an event that is not reached, or without a time.
    pub fn ns_since(&self, other: &Event) -> Result<i64, CudaError> {
        let _current = self.device.current()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both events live, and the result is writable.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime(&raw mut milliseconds, other.handle, self.handle)
        })?;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a cast of a float saturates"
        )]
        Ok((f64::from(milliseconds) * 1e6) as i64)
    }

    /// Blocks, without spinning, until the stream has passed the mark. A timed event is asked every
    /// 200 us: nobody waits for one but those who end.
    ///
    /// # Errors
    /// What failed in the stream before the mark.
    pub fn wait(&self) -> Result<(), CudaError> {
        if !self.wakes {
            while !self.is_reached()? {
                thread::sleep(TIMED_STEP);
            }
            return Ok(());
        }
        let _current = self.device.current()?;
        // SAFETY: the event lives.
        check("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(self.handle)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: made in `with_flags`, destroyed once; the driver keeps what it still needs.
            let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
        }
    }
}
