//! Memory of the server's memory manager, for instances on GPUs.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;
use conch_cuda::{Device, DeviceMemory};
use conch_memory::MemoryPlace;

use super::memory::raw_kind;
use super::refusal::refusal;
use crate::Error;

/// A source of pinned memory and of device memory. Blocks stay where they are until they are freed.
pub(super) trait AllocateMemory: Send + Sync {
    /// The address of `byte_count` bytes.
    ///
    /// # Errors
    /// `Unavailable` if there is no room; whatever else the server reports.
    fn allocate(&self, place: MemoryPlace, byte_count: usize) -> Result<u64, Error>;
    fn free(&self, place: MemoryPlace, address: u64);
}

pub(super) type DeviceAllocator = Arc<dyn AllocateMemory>;

/// A block of memory; freed when dropped.
pub(super) struct MemoryAllocation {
    owner: Owner,
    address: u64,
    len: usize,
}

/// Where a block goes back to.
enum Owner {
    Server {
        allocator: DeviceAllocator,
        place: MemoryPlace,
    },
    Driver(#[expect(dead_code, reason = "freed when dropped")] DeviceMemory),
}

impl MemoryAllocation {
    /// # Errors
    /// As [`AllocateMemory::allocate`].
    pub(super) fn new(
        allocator: &DeviceAllocator,
        place: MemoryPlace,
        len: usize,
    ) -> Result<Self, Error> {
        Ok(MemoryAllocation {
            address: allocator.allocate(place, len)?,
            owner: Owner::Server {
                allocator: Arc::clone(allocator),
                place,
            },
            len,
        })
    }

    /// Memory of the driver's: for what is large and stays, which would fill the server's pool.
    ///
    /// # Errors
    /// `Unavailable` if the device has no room; `Internal` for what else the driver refuses.
    pub(super) fn of_driver(device: &Arc<Device>, len: usize) -> Result<Self, Error> {
        let memory = DeviceMemory::allocate(device, len as u64);
        let memory = memory.map_err(|error| refusal(device, &error))?;
        Ok(MemoryAllocation {
            address: memory.base().0,
            owner: Owner::Driver(memory),
            len,
        })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for MemoryAllocation {
    fn drop(&mut self) {
        if let Owner::Server { allocator, place } = &self.owner {
            allocator.free(*place, self.address);
        }
    }
}

/// The server's memory manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryManager {
    raw: NonNull<abi::TRITONBACKEND_MemoryManager>,
}

// SAFETY: the server lets any thread use its memory manager.
unsafe impl Send for MemoryManager {}
// SAFETY: as above.
unsafe impl Sync for MemoryManager {}

impl MemoryManager {
    /// The one that serves an instance's backend, and lives as long as that.
    ///
    /// # Errors
    /// Whatever the server reports.
    ///
    /// # Safety
    /// `instance` is live during the call.
    pub(crate) unsafe fn of(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
    ) -> Result<Self, Error> {
        let mut model = ptr::null_mut();
        let mut backend = ptr::null_mut();
        let mut raw = ptr::null_mut();
        // SAFETY: the instance is live, and so are its model and backend; the results are writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceModel(
                instance,
                &raw mut model,
            ))?;
            Error::check(abi::TRITONBACKEND_ModelBackend(model, &raw mut backend))?;
            Error::check(abi::TRITONBACKEND_BackendMemoryManager(
                backend,
                &raw mut raw,
            ))?;
        }
        NonNull::new(raw)
            .map(|raw| MemoryManager { raw })
            .ok_or_else(|| Error::internal("server gave a null memory manager"))
    }
}

/// Of instances to which the server gives no memory manager.
pub(super) struct NoAllocator;

impl AllocateMemory for NoAllocator {
    fn allocate(&self, _place: MemoryPlace, _byte_count: usize) -> Result<u64, Error> {
        Err(Error::unavailable("server gave no memory manager"))
    }

    fn free(&self, _place: MemoryPlace, _address: u64) {}
}

impl AllocateMemory for MemoryManager {
    fn allocate(&self, place: MemoryPlace, byte_count: usize) -> Result<u64, Error> {
        let mut buffer: *mut c_void = ptr::null_mut();
        // SAFETY: the manager is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_MemoryManagerAllocate(
                self.raw.as_ptr(),
                &raw mut buffer,
                raw_kind(place.kind),
                place.id,
                byte_count as u64,
            ))?;
        }
        if buffer.is_null() {
            return Err(Error::out_of_memory(byte_count));
        }
        Ok(buffer.expose_provenance() as u64)
    }

    fn free(&self, place: MemoryPlace, address: u64) {
        let buffer = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the manager is live; the memory came from `allocate` and is given back once.
        let freed = unsafe {
            Error::check(abi::TRITONBACKEND_MemoryManagerFree(
                self.raw.as_ptr(),
                buffer,
                raw_kind(place.kind),
                place.id,
            ))
        };
        if let Err(error) = freed {
            crate::error!("failed to free memory: {error}");
        }
    }
}
