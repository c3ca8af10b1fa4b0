//! Device memory that a backend shares with a process of its own, by CUDA's IPC handles.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::allocator::{DeviceAllocator, MemoryManager, NoAllocator};
use super::memory::{MemorySource, MemoryTarget};
use super::stream::{DeviceStream, gpu};
use crate::{Error, InstanceContext};
use conch_cuda::{DeviceMemory, IpcHandle, IpcMapping};

/// Opens streams on any GPU for an instance of any kind, when they are needed. Costs nothing
/// before.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceAccess {
    /// Without one the driver stages copies of pageable memory.
    manager: Option<MemoryManager>,
}

impl DeviceAccess {
    pub fn of(context: &InstanceContext) -> DeviceAccess {
        DeviceAccess {
            manager: context.memory_manager,
        }
    }

    /// A stream on a GPU.
    ///
    /// # Errors
    /// As [`DeviceStream::open`].
    pub fn open(&self, device: i32) -> Result<DeviceStream, Error> {
        let allocator: DeviceAllocator = match self.manager {
            Some(manager) => Arc::new(manager),
            None => Arc::new(NoAllocator),
        };
        DeviceStream::open_on(device, 0, allocator)
    }
}

impl DeviceStream {
    /// Memory of this GPU that another process can map.
    ///
    /// # Errors
    /// `Unavailable` without room; `Internal` for what else the driver refuses.
    pub fn export(&self, len: u64) -> Result<ExportedMemory, Error> {
        let memory = DeviceMemory::allocate(self.stream.device(), len)
            .map_err(|error| self.refusal(&error))?;
        let handle = memory.ipc_handle().map_err(|error| self.refusal(&error))?;
        Ok(ExportedMemory {
            memory,
            handle: handle.0,
        })
    }

    /// Maps an allocation of another process on this GPU.
    ///
    /// # Errors
    /// `InvalidArgument` if the driver knows no such allocation.
    pub fn import(&self, handle: &[u8; 64]) -> Result<ImportedMemory, Error> {
        let opened = IpcMapping::open(self.stream.device(), IpcHandle(*handle));
        opened.map(ImportedMemory).map_err(|error| {
            let refused = self.refusal(&error);
            Error::invalid(format!("no memory of another process: {refused}"))
        })
    }
}

/// Memory of a GPU that another process can map by its handle; freed when dropped.
#[derive(Debug)]
pub struct ExportedMemory {
    memory: DeviceMemory,
    handle: [u8; 64],
}

impl ExportedMemory {
    pub fn handle(&self) -> &[u8; 64] {
        &self.handle
    }

    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The first `len` bytes, to be filled by copies.
    ///
    /// # Errors
    /// `Internal` if there are fewer.
    pub fn target(&self, len: usize) -> Result<MemoryTarget<'_>, Error> {
        if len as u64 > self.len() {
            return Err(Error::internal("a buffer on a GPU is too short"));
        }
        let base = ptr::with_exposed_provenance_mut::<c_void>(self.memory.base().0 as usize);
        let place = gpu(self.memory.device());
        // SAFETY: device memory, which is ours while `self` is borrowed; only copies write it.
        unsafe { MemoryTarget::new(base, len, place, c"a buffer on a GPU") }
    }
}

/// Memory of a GPU that another process has; unmapped when dropped. The other process may write it
/// at any time.
#[derive(Debug)]
pub struct ImportedMemory(IpcMapping);

impl ImportedMemory {
    /// Bytes of the whole allocation.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes in it, to be copied from; none unless they lie inside.
    pub fn source(&self, offset: u64, len: u64) -> Option<MemorySource<'_>> {
        if offset.checked_add(len)? > self.len() {
            return None;
        }
        let address = usize::try_from(self.0.base().0.checked_add(offset)?).ok()?;
        let base = ptr::with_exposed_provenance::<c_void>(address);
        let len = usize::try_from(len).ok()?;
        // SAFETY: inside the mapping, which lasts while `self` is borrowed; only copies read it.
        Some(unsafe { MemorySource::new(base, len, gpu(self.0.device())) })
    }
}
