//! Device memory that grows where it is.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conch_memory::{ByteView, MemoryKind, MemoryPlace};
use cudarc::driver::sys;

use crate::error::check;
use crate::retired::RetiredQueue;
use crate::{CudaError, Device, DeviceAddress, Stream};

/// Reserved addresses of a device, of which a part from the beginning has memory. Growing moves
/// nothing and keeps the content, so views stay good. Usable from every thread.
///
/// ```text
///   base            len()                              reserved_bytes()
///    ├── piece ─┬─ piece ──┤ addresses without memory ────┤
/// ```
#[derive(Debug)]
pub struct GrowableMemory {
    /// None only while it is dropped.
    addresses: Option<GrowableAddresses>,
    /// Who unmaps and frees.
    retired: Option<RetiredQueue<GrowableAddresses>>,
}

/// What is left of a [`GrowableMemory`] that nobody uses. Its drop unmaps and frees, which may
/// block: the driver waits for the device.
#[derive(Debug)]
pub struct GrowableAddresses {
    device: Arc<Device>,
    base: DeviceAddress,
    reserved_bytes: usize,
    granularity_bytes: usize,
    /// The piece behind each mapped range, in order: handle and bytes.
    pieces: Mutex<Vec<(sys::CUmemGenericAllocationHandle, usize)>>,
}

impl GrowableMemory {
    /// Reserves `reserved_bytes` of addresses, rounded up; none has memory yet. What is left at the
    /// end goes to `retired`; without, or if nobody listens there, the last user frees it.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn reserve(
        device: &Arc<Device>,
        reserved_bytes: usize,
        retired: Option<RetiredQueue<GrowableAddresses>>,
    ) -> Result<GrowableMemory, CudaError> {
        let _current = device.current()?;
        let mut granularity_bytes = 0;
        let properties = properties(device);
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the result is writable, the properties are readable.
        check("cuMemGetAllocationGranularity", unsafe {
            sys::cuMemGetAllocationGranularity(
                &raw mut granularity_bytes,
                &raw const properties,
                minimum,
            )
        })?;
        let granularity_bytes = granularity_bytes.max(1);
        let reserved_bytes = reserved_bytes
            .max(1)
            .checked_next_multiple_of(granularity_bytes)
            .unwrap_or(usize::MAX / granularity_bytes * granularity_bytes);
        let mut base = 0;
        // SAFETY: the result is writable; any address will do.
        check("cuMemAddressReserve", unsafe {
            sys::cuMemAddressReserve(&raw mut base, reserved_bytes, 0, 0, 0)
        })?;
        let addresses = GrowableAddresses {
            device: Arc::clone(device),
            base: DeviceAddress(base),
            reserved_bytes,
            granularity_bytes,
            pieces: Mutex::default(),
        };
        Ok(GrowableMemory {
            addresses: Some(addresses),
            retired,
        })
    }

    fn addresses(&self) -> &GrowableAddresses {
        self.addresses.as_ref().expect("only drop takes it")
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.addresses().device
    }

    pub fn base(&self) -> DeviceAddress {
        self.addresses().base
    }

    /// Bytes that have memory.
    pub fn len(&self) -> usize {
        self.addresses().lock().iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn reserved_bytes(&self) -> usize {
        self.addresses().reserved_bytes
    }

    /// Gives memory to at least `len` bytes from the base. New memory is zeros: the device may have
    /// served another model with it. Returns false, and changes nothing, if more than the
    /// reservation is asked for. Blocks in the driver, and until `stream` has written the zeros.
    ///
    /// # Errors
    /// What the driver refuses; what was mapped before stays.
    pub fn grow(&self, len: usize, stream: &Stream) -> Result<bool, CudaError> {
        let addresses = self.addresses();
        if len > addresses.reserved_bytes {
            return Ok(false);
        }
        let mut pieces = addresses.lock();
        let mapped_bytes: usize = pieces.iter().map(|(_, bytes)| bytes).sum();
        // Within the reservation, which is a multiple itself.
        let wanted_bytes = len.next_multiple_of(addresses.granularity_bytes);
        let more_bytes = wanted_bytes.saturating_sub(mapped_bytes);
        if more_bytes == 0 {
            return Ok(true);
        }
        let device = &addresses.device;
        let _current = device.current()?;
        let at = addresses.base.at(mapped_bytes as u64);
        let piece = create(device, more_bytes)?;
        if let Err(error) = map(device, at, piece, more_bytes) {
            // SAFETY: created just now, and mapped nowhere.
            let _ = unsafe { sys::cuMemRelease(piece) };
            return Err(error);
        }
        // From here on it is unmapped and released with the others.
        pieces.push((piece, more_bytes));
        // SAFETY: the range was mapped just now, nobody else knows it, and it stays until the wait
        // is over.
        let filled = unsafe { stream.fill(at, 0, more_bytes) };
        if let Err(error) = filled.and_then(|()| stream.synchronize()) {
            pieces.pop();
            addresses.unmap(at, piece, more_bytes);
            return Err(error);
        }
        Ok(true)
    }

    /// Waits until what was given up to the same queue before is freed, `limit` at most. Whether
    /// any of it was freed meanwhile.
    pub fn wait_until_freed(&self, limit: Duration) -> bool {
        let retired = self.retired.as_ref();
        retired.is_some_and(|retired| retired.wait_until_freed(limit))
    }

    /// The first `len` bytes, which the view keeps; none if they have no memory. The CPU cannot go
    /// there.
    pub fn view(self: &Arc<Self>, len: usize) -> Option<ByteView> {
        if len > self.len() {
            return None;
        }
        let address = usize::try_from(self.base().0).ok()?;
        let base = NonNull::new(std::ptr::without_provenance_mut(address))?;
        let place = MemoryPlace {
            kind: MemoryKind::Gpu,
            id: i64::from(self.device().ordinal()),
        };
        // SAFETY: what is mapped stays at its place while the owner lives; the CPU never goes
        // there.
        Some(unsafe { ByteView::shared(base, len, place, Arc::clone(self) as _) })
    }
}

impl Drop for GrowableMemory {
    fn drop(&mut self) {
        if let (Some(addresses), Some(retired)) = (self.addresses.take(), &self.retired) {
            retired.retire(addresses);
        }
    }
}

impl GrowableAddresses {
    fn lock(&self) -> MutexGuard<'_, Vec<(sys::CUmemGenericAllocationHandle, usize)>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the memory of a range away. The context is current.
    fn unmap(&self, at: DeviceAddress, piece: sys::CUmemGenericAllocationHandle, bytes: usize) {
        // SAFETY: mapped there by `grow`, unmapped and released once.
        let _ = unsafe { sys::cuMemUnmap(at.0, bytes) };
        // SAFETY: as above.
        let _ = unsafe { sys::cuMemRelease(piece) };
    }
}

impl Drop for GrowableAddresses {
    fn drop(&mut self) {
        let Ok(_current) = self.device.current() else {
            return;
        };
        let mut at = self.base;
        let pieces = std::mem::take(&mut *self.lock());
        for (piece, bytes) in pieces {
            self.unmap(at, piece, bytes);
            at = at.at(bytes as u64);
        }
        // SAFETY: reserved in `reserve`, freed once, with nothing mapped.
        let _ = unsafe { sys::cuMemAddressFree(self.base.0, self.reserved_bytes) };
    }
}

fn properties(device: &Device) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(device: &Device) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device.ordinal(),
    }
}

fn create(device: &Device, bytes: usize) -> Result<sys::CUmemGenericAllocationHandle, CudaError> {
    let mut piece = 0;
    let properties = properties(device);
    // SAFETY: the result is writable, the properties are readable.
    check("cuMemCreate", unsafe {
        sys::cuMemCreate(&raw mut piece, bytes, &raw const properties, 0)
    })?;
    Ok(piece)
}

fn map(
    device: &Device,
    at: DeviceAddress,
    piece: sys::CUmemGenericAllocationHandle,
    bytes: usize,
) -> Result<(), CudaError> {
    // SAFETY: the range is reserved and not mapped; the piece has these bytes.
    check("cuMemMap", unsafe {
        sys::cuMemMap(at.0, bytes, 0, piece, 0)
    })?;
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the range was mapped just now; the description is readable.
    check("cuMemSetAccess", unsafe {
        sys::cuMemSetAccess(at.0, bytes, &raw const access, 1)
    })
    .inspect_err(|_| {
        // SAFETY: as above; nothing uses the range yet.
        let _ = unsafe { sys::cuMemUnmap(at.0, bytes) };
    })
}
