//! Device memory that grows where it is.

use std::sync::Arc;

use cudarc::driver::sys;

use crate::error::check;
use crate::{CudaError, Device, DeviceAddress};

/// Reserved addresses of a device, of which a part from the beginning has memory. Growing moves
/// nothing and keeps the content. Unmapped and freed when dropped.
#[derive(Debug)]
pub struct GrowableMemory {
    device: Arc<Device>,
    base: DeviceAddress,
    reserved_bytes: usize,
    granularity_bytes: usize,
    /// The piece behind each mapped range, in order: handle and bytes.
    pieces: Vec<(sys::CUmemGenericAllocationHandle, usize)>,
}

impl GrowableMemory {
    /// Reserves `reserved_bytes` of addresses, rounded up; none has memory yet.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn reserve(
        device: &Arc<Device>,
        reserved_bytes: usize,
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
            .checked_next_multiple_of(granularity_bytes)
            .unwrap_or(usize::MAX / granularity_bytes * granularity_bytes);
        let mut base = 0;
        // SAFETY: the result is writable; any address will do.
        check("cuMemAddressReserve", unsafe {
            sys::cuMemAddressReserve(&raw mut base, reserved_bytes, 0, 0, 0)
        })?;
        Ok(GrowableMemory {
            device: Arc::clone(device),
            base: DeviceAddress(base),
            reserved_bytes,
            granularity_bytes,
            pieces: Vec::new(),
        })
    }

    pub fn base(&self) -> DeviceAddress {
        self.base
    }

    /// Bytes that have memory.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Gives memory to at least `len` bytes from the base. Returns false, and changes nothing, if
    /// more than the reservation is asked for.
    ///
    /// # Errors
    /// What the driver refuses; what was mapped before stays.
    pub fn grow(&mut self, len: usize) -> Result<bool, CudaError> {
        let mapped_bytes = self.len();
        if len > self.reserved_bytes {
            return Ok(false);
        }
        let wanted_bytes = len.next_multiple_of(self.granularity_bytes);
        let Some(more_bytes) = wanted_bytes
            .checked_sub(mapped_bytes)
            .filter(|more| *more > 0)
        else {
            return Ok(true);
        };
        let _current = self.device.current()?;
        let piece = create(&self.device, more_bytes)?;
        let at = self.base.at(mapped_bytes as u64);
        if let Err(error) = map(&self.device, at, piece, more_bytes) {
            // SAFETY: created just now, and mapped nowhere.
            let _ = unsafe { sys::cuMemRelease(piece) };
            return Err(error);
        }
        self.pieces.push((piece, more_bytes));
        Ok(true)
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

impl Drop for GrowableMemory {
    fn drop(&mut self) {
        let Ok(_current) = self.device.current() else {
            return;
        };
        let mut at = self.base;
        for (piece, bytes) in self.pieces.drain(..) {
            // SAFETY: mapped there by `grow`, unmapped and released once.
            let _ = unsafe { sys::cuMemUnmap(at.0, bytes) };
            // SAFETY: as above.
            let _ = unsafe { sys::cuMemRelease(piece) };
            at = at.at(bytes as u64);
        }
        // SAFETY: reserved in `reserve`, freed once, with nothing mapped.
        let _ = unsafe { sys::cuMemAddressFree(self.base.0, self.reserved_bytes) };
    }
}
