//! Streams: work of a device, in order.

use std::sync::Arc;

use cudarc::driver::sys;

use crate::error::check;
use crate::{CudaError, Device, DeviceAddress, Event};

/// A queue of work for a device. It never waits for the default stream.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    handle: sys::CUstream,
}

// SAFETY: the driver allows streams to be used from any thread; the handle is never dereferenced
// here.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// `priority` counts down: lower numbers go first, 0 is usual; the driver clamps it.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn new(device: &Arc<Device>, priority: i32) -> Result<Stream, CudaError> {
        let _current = device.current()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the result is writable.
        check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(&raw mut handle, flags, priority)
        })?;
        Ok(Stream {
            device: Arc::clone(device),
            handle,
        })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The driver's handle, which the runtime API takes as well, for backends. It lives as long as
    /// the stream.
    pub fn raw_handle(&self) -> *mut std::ffi::c_void {
        self.handle.cast()
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Enqueues a copy of `len` bytes between any two places: host memory, or memory of any device.
    /// From pageable host memory the driver takes the bytes before this returns; into it, this
    /// returns once they are there. Pinned memory makes both asynchronous.
    ///
    /// # Safety
    /// Both ranges stay valid, and no one else writes what is read or uses what is written, until
    /// the copy is done: until an [`Event`] recorded afterwards is reached, or
    /// [`Stream::synchronize`] has returned.
    ///
    /// # Errors
    /// What the driver refuses; nothing was enqueued then.
    pub unsafe fn copy(
        &self,
        to: DeviceAddress,
        from: DeviceAddress,
        len: usize,
    ) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        let _current = self.device.current()?;
        // SAFETY: the stream lives; the rest is promised by the caller.
        check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(to.0, from.0, len, self.handle)
        })
    }

    /// Enqueues the filling of device memory with `value`.
    ///
    /// # Safety
    /// As for [`Stream::copy`].
    ///
    /// # Errors
    /// What the driver refuses.
    pub unsafe fn fill(&self, at: DeviceAddress, value: u8, len: usize) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        let _current = self.device.current()?;
        // SAFETY: as above.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(at.0, value, len, self.handle)
        })
    }

    /// Marks this place of the stream.
    ///
    /// # Errors
    /// What the driver refuses: an event of another device.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        let _current = self.device.current()?;
        // SAFETY: stream and event live.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(event.handle(), self.handle)
        })
    }

    /// Has what is enqueued from now on wait for `event`, which may be of another device.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        let _current = self.device.current()?;
        // SAFETY: stream and event live; no flags are needed.
        check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(self.handle, event.handle(), 0)
        })
    }

    /// Blocks until all that was enqueued is done. Waits for this stream alone, not the device.
    ///
    /// # Errors
    /// What failed in the stream.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.device.current()?;
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.handle)
        })
    }

    /// Whether all that was enqueued is done. Never blocks.
    ///
    /// # Errors
    /// What failed in the stream.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _current = self.device.current()?;
        // SAFETY: the stream lives.
        match check("cuStreamQuery", unsafe { sys::cuStreamQuery(self.handle) }) {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_ready() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: made in `new`, destroyed once; the driver finishes what is enqueued.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        }
    }
}
