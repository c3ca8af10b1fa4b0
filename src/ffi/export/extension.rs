//! What conch offers plug-ins beyond Triton's C API.

use std::ffi::c_void;

use conch_abi as abi;
use conch_engine::Error;
use conch_memory::Charge;

use super::export;
use crate::boundary::{HandleTag, borrow, borrow_mut, delete, handles, write_handle};
use crate::host::LentRelease;

handles! {
    CONCH_MemoryCharge => MemoryCharge, "memory charge", tagged;
}

/// Bytes of the server's memory limit that a plug-in holds for itself.
#[repr(C)]
pub(crate) struct MemoryCharge {
    tag: HandleTag<abi::CONCH_MemoryCharge>,
    charge: Charge,
}

export! {
    fn CONCH_MemoryChargeNew(
        charge: *mut *mut abi::CONCH_MemoryCharge,
        model: *mut abi::TRITONBACKEND_Model,
    ) {
        let made = MemoryCharge {
            tag: HandleTag::new(),
            charge: Charge::empty(&borrow(model)?.budget().for_plugins()),
        };
        write_handle(charge, Box::new(made))
    }

    fn CONCH_MemoryChargeSet(charge: *mut abi::CONCH_MemoryCharge, byte_size: u64) {
        let charge = &mut borrow_mut(charge)?.charge;
        charge.shrink(byte_size);
        charge
            .cover(byte_size)
            .map_err(|error| Error::unavailable(error.to_string()))
    }

    fn CONCH_MemoryChargeDelete(charge: *mut abi::CONCH_MemoryCharge) {
        delete(charge)
    }

    fn CONCH_OutputLend(
        output: *mut abi::TRITONBACKEND_Output,
        base: *const c_void,
        byte_size: u64,
        release: Option<unsafe extern "C" fn(userp: *mut c_void)>,
        userp: *mut c_void,
    ) {
        let release = release.ok_or_else(|| Error::invalid("release was nullptr"))?;
        // SAFETY: by the header, the bytes stay readable until `release` is called.
        unsafe { borrow_mut(output)?.lend(base, byte_size, LentRelease { release, userp }) }
    }
}
