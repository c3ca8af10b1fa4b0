//! The stream of an instance.

use std::ffi::c_void;
use std::sync::Arc;

use conch_cuda::{Device, DeviceAddress, Driver, Event, Stream};
use conch_memory::{MemoryKind, MemoryPlace};

use super::allocator::DeviceAllocator;
use super::plan::PlannedCopy;
use super::staging::Staging;
use crate::{Error, InstanceContext, Kind};

/// A queue of work on the GPU of one instance, in the device's primary context, and what the
/// instance's copies need: an event, and pinned memory that it keeps between batches (at most
/// 16 MiB).
pub struct DeviceStream {
    pub(super) stream: Arc<Stream>,
    pub(super) event: Event,
    pub(super) staging: Staging,
    pub(super) allocator: DeviceAllocator,
    /// Kept between batches, so that a steady load allocates nothing here.
    pub(super) planned: Vec<PlannedCopy>,
}

impl DeviceStream {
    /// Opens the stream of an instance; none if it is not of KIND_GPU, for which the driver is left
    /// alone. `priority` is [`ModelConfig::stream_priority`](crate::ModelConfig::stream_priority).
    /// Blocks for some 100 ms if it is the first to use the device.
    ///
    /// # Errors
    /// `Unavailable` without a driver; `InvalidArgument` if it has no such device; `Internal` for
    /// what else it refuses.
    pub fn open(context: &InstanceContext, priority: i32) -> Result<Option<DeviceStream>, Error> {
        if context.kind != Kind::Gpu {
            return Ok(None);
        }
        let manager = context
            .memory_manager
            .ok_or_else(|| Error::internal("server gave no memory manager"))?;
        DeviceStream::open_on(context.device_id, priority, Arc::new(manager)).map(Some)
    }

    /// A stream of a GPU for an instance of any kind.
    pub(super) fn open_on(
        id: i32,
        priority: i32,
        allocator: DeviceAllocator,
    ) -> Result<DeviceStream, Error> {
        let refused = |error: &dyn std::fmt::Display| Error::internal(format!("GPU {id}: {error}"));
        let driver = Driver::load().map_err(|absent| Error::unavailable(absent.to_string()))?;
        let devices = driver.devices().map_err(|error| refused(&error))?;
        let properties = devices
            .into_iter()
            .find(|device| device.ordinal == id)
            .ok_or_else(|| Error::invalid(format!("there is no GPU {id}")))?;
        let device = driver.open(properties).map_err(|error| refused(&error))?;
        let stream = DeviceStream::on(&device, priority, allocator);
        stream.map_err(|error| refused(&error))
    }

    pub(super) fn on(
        device: &Arc<Device>,
        priority: i32,
        allocator: DeviceAllocator,
    ) -> Result<DeviceStream, conch_cuda::CudaError> {
        Ok(DeviceStream {
            stream: Arc::new(Stream::new(device, priority)?),
            event: Event::new(device)?,
            staging: Staging::new(Arc::clone(&allocator)),
            allocator,
            planned: Vec::new(),
        })
    }

    /// The stream itself, for an engine that enqueues work of its own.
    pub fn handle(&self) -> StreamHandle {
        StreamHandle(Arc::clone(&self.stream))
    }

    pub(super) fn refused(&self, error: conch_cuda::CudaError) -> Error {
        Error::internal(format!("GPU {}: {error}", self.stream.device().ordinal()))
    }

    /// The memory that the instance computes in.
    pub fn place(&self) -> MemoryPlace {
        MemoryPlace {
            kind: MemoryKind::Gpu,
            id: i64::from(self.stream.device().ordinal()),
        }
    }
}

/// A stream that an engine shares with the instance. It lives as long as the last handle.
#[derive(Clone, Debug)]
pub struct StreamHandle(Arc<Stream>);

impl StreamHandle {
    /// The driver's handle, which the runtime API takes as well.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw_handle()
    }

    /// The number of its GPU, as the driver counts.
    pub fn device(&self) -> i32 {
        self.0.device().ordinal()
    }

    /// Enqueues a copy between two addresses of the device.
    ///
    /// # Safety
    /// Both have `len` bytes, and stay as they are until the stream has got there.
    pub(super) unsafe fn copy(&self, to: u64, from: u64, len: usize) -> Result<(), Error> {
        // SAFETY: by this function's contract.
        let copied = unsafe { self.0.copy(DeviceAddress(to), DeviceAddress(from), len) };
        copied.map_err(|error| Error::internal(format!("GPU {}: {error}", self.device())))
    }

    /// Blocks until all that was enqueued is done.
    ///
    /// # Errors
    /// `Internal` with what failed in the stream.
    pub fn synchronize(&self) -> Result<(), Error> {
        let waited = self.0.synchronize();
        waited.map_err(|error| Error::internal(format!("GPU {}: {error}", self.device())))
    }
}
