//! The stream that an engine computes on.

use std::ffi::c_void;
use std::sync::Arc;

use conch_cuda::{
    CaptureError, ComputeCapability, CudaError, CudaGraph, CurrentDevice, Driver, Stream,
};
use conch_memory::{MemoryKind, MemoryPlace};

use crate::device::allocator::{DeviceAllocator, NoAllocator};
use crate::{Error, InstanceContext, Kind};

/// The stream of an instance on which its engine computes. Copies are the same stream, which lives
/// as long as the last.
#[derive(Clone)]
pub struct EngineStream {
    stream: Arc<Stream>,
    allocator: DeviceAllocator,
}

/// Work of an engine, captured on its stream.
#[derive(Debug)]
pub struct EngineGraph(pub(super) CudaGraph);

impl EngineStream {
    /// Opens the stream of an instance; none if it is not of KIND_GPU. `priority` is
    /// [`ModelConfig::stream_priority`](crate::ModelConfig::stream_priority).
    ///
    /// # Errors
    /// As [`DeviceStream::open`](crate::DeviceStream::open).
    pub fn open(context: &InstanceContext, priority: i32) -> Result<Option<Self>, Error> {
        if context.kind != Kind::Gpu {
            return Ok(None);
        }
        let allocator: DeviceAllocator = match context.memory_manager {
            Some(manager) => Arc::new(manager),
            None => Arc::new(NoAllocator),
        };
        EngineStream::on(context.device_id, priority, allocator).map(Some)
    }

    /// A stream on a GPU, for what a model asks its engine before there is an instance.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn on_device(id: i32) -> Result<Self, Error> {
        EngineStream::on(id, 0, Arc::new(NoAllocator))
    }

    fn on(id: i32, priority: i32, allocator: DeviceAllocator) -> Result<Self, Error> {
        let refused = |error: CudaError| Error::internal(format!("GPU {id}: {error}"));
        let driver = Driver::load().map_err(|absent| Error::unavailable(absent.to_string()))?;
        let properties = driver.devices().map_err(refused)?;
        let properties = properties
            .into_iter()
            .find(|device| device.ordinal == id)
            .ok_or_else(|| Error::invalid(format!("there is no GPU {id}")))?;
        let device = driver.open(properties).map_err(refused)?;
        Ok(EngineStream {
            stream: Arc::new(Stream::new(&device, priority).map_err(refused)?),
            allocator,
        })
    }

    /// The driver's handle, which the runtime API takes as well.
    pub fn raw_handle(&self) -> *mut c_void {
        self.stream.raw_handle()
    }

    /// The memory of the device.
    pub fn place(&self) -> MemoryPlace {
        MemoryPlace {
            kind: MemoryKind::Gpu,
            id: i64::from(self.stream.device().ordinal()),
        }
    }

    /// The generation of the device, as `9.0`.
    pub fn compute_capability(&self) -> String {
        let capability: ComputeCapability = self.stream.device().properties().capability;
        capability.to_string()
    }

    /// Has calls of this thread use the device while the guard lives.
    ///
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn current(&self) -> Result<CurrentDevice<'_>, Error> {
        let current = self.stream.device().current();
        current.map_err(|error| self.refusal(&error))
    }

    /// Blocks until all that was enqueued is done.
    ///
    /// # Errors
    /// `Internal` with what failed in the stream.
    pub fn synchronize(&self) -> Result<(), Error> {
        let waited = self.stream.synchronize();
        waited.map_err(|error| self.refusal(&error))
    }

    /// Captures what `work` enqueues on the stream. Nothing of it is done meanwhile.
    ///
    /// # Errors
    /// Those of `work`; `Unsupported` if the driver is too old; `Internal` for what it refuses.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<EngineGraph, Error> {
        match self.stream.capture(work) {
            Ok(graph) => Ok(EngineGraph(graph)),
            Err(CaptureError::Work(error)) => Err(error),
            Err(CaptureError::Refused(error)) => Err(self.refusal(&error)),
            Err(CaptureError::TooOld(name)) => Err(Error::unsupported(format!(
                "the driver is too old: it has no function {name}"
            ))),
        }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn allocator(&self) -> &DeviceAllocator {
        &self.allocator
    }

    pub(super) fn refusal(&self, error: &CudaError) -> Error {
        let text = format!("GPU {}: {error}", self.stream.device().ordinal());
        match error.is_out_of_memory() {
            true => Error::unavailable(text),
            false => Error::internal(text),
        }
    }
}
