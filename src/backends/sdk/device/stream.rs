//! The stream of an instance.

use std::ffi::c_void;
use std::sync::Arc;

use conch_cuda::{
    CaptureError, ComputeCapability, CudaError, CudaGraph, CurrentDevice, Device, DeviceAddress,
    Driver, Event, Stream,
};
use conch_memory::{MemoryKind, MemoryPlace};

use super::allocator::DeviceAllocator;
use super::plan::PlannedCopy;
use super::refusal::{refusal, refusal_of};
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
        let refused = |error: CudaError| refusal_of(id, &error);
        let driver = Driver::load().map_err(|absent| Error::unavailable(absent.to_string()))?;
        let devices = driver.devices().map_err(refused)?;
        let properties = devices
            .into_iter()
            .find(|device| device.ordinal == id)
            .ok_or_else(|| Error::invalid(format!("there is no GPU {id}")))?;
        let device = driver.open(properties).map_err(refused)?;
        DeviceStream::on(&device, priority, allocator)
    }

    pub(super) fn on(
        device: &Arc<Device>,
        priority: i32,
        allocator: DeviceAllocator,
    ) -> Result<DeviceStream, Error> {
        let refused = |error: CudaError| refusal(device, &error);
        Ok(DeviceStream {
            stream: Arc::new(Stream::new(device, priority).map_err(refused)?),
            event: Event::new(device).map_err(refused)?,
            staging: Staging::new(Arc::clone(&allocator)),
            allocator,
            planned: Vec::new(),
        })
    }

    /// Another stream of the same device.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn another(&self, priority: i32) -> Result<DeviceStream, Error> {
        DeviceStream::on(self.stream.device(), priority, Arc::clone(&self.allocator))
    }

    /// The stream itself, for an engine that enqueues work of its own.
    pub fn handle(&self) -> StreamHandle {
        StreamHandle(Arc::clone(&self.stream))
    }

    pub(super) fn refusal(&self, error: &CudaError) -> Error {
        refusal(self.stream.device(), error)
    }

    /// The memory that the instance computes in.
    pub fn place(&self) -> MemoryPlace {
        gpu(self.stream.device())
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

    /// The memory of its GPU.
    pub fn place(&self) -> MemoryPlace {
        gpu(self.0.device())
    }

    /// The generation of its GPU, as `9.0`.
    pub fn compute_capability(&self) -> String {
        let capability: ComputeCapability = self.0.device().properties().capability;
        capability.to_string()
    }

    /// Has calls of this thread use the GPU while the guard lives.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn current(&self) -> Result<CurrentDevice<'_>, Error> {
        let current = self.0.device().current();
        current.map_err(|error| refusal(self.0.device(), &error))
    }

    /// Captures what `work` enqueues on the stream. Nothing of it is done meanwhile.
    ///
    /// # Errors
    /// Those of `work`; `Unsupported` if the driver is too old; `Internal` for what it refuses.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<CudaGraph, Error> {
        self.0.capture(work).map_err(|error| match error {
            CaptureError::Work(error) => error,
            CaptureError::Refused(error) => refusal(self.0.device(), &error),
            CaptureError::TooOld(name) => {
                Error::unsupported(format!("the driver is too old: it has no function {name}"))
            }
        })
    }

    /// Enqueues a copy between two addresses of the device.
    ///
    /// # Safety
    /// Both have `len` bytes, and stay as they are until the stream has got there.
    pub(super) unsafe fn copy(&self, to: u64, from: u64, len: usize) -> Result<(), Error> {
        // SAFETY: by this function's contract.
        let copied = unsafe { self.0.copy(DeviceAddress(to), DeviceAddress(from), len) };
        copied.map_err(|error| refusal(self.0.device(), &error))
    }

    /// Blocks until all that was enqueued is done.
    ///
    /// # Errors
    /// `Internal` with what failed in the stream.
    pub fn synchronize(&self) -> Result<(), Error> {
        let waited = self.0.synchronize();
        waited.map_err(|error| refusal(self.0.device(), &error))
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.0
    }

    pub(super) fn is_same(&self, other: &StreamHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The memory of a GPU.
pub(super) fn gpu(device: &Device) -> MemoryPlace {
    MemoryPlace {
        kind: MemoryKind::Gpu,
        id: i64::from(device.ordinal()),
    }
}
