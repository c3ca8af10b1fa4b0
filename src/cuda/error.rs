//! What the driver refuses.

use std::ffi::CStr;
use std::fmt;

use cudarc::driver::sys;

/// A call of the driver that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CudaError {
    call: &'static str,
    code: sys::CUresult,
}

impl CudaError {
    /// The driver's number of the error.
    pub fn code(self) -> u32 {
        self.code as u32
    }

    /// The device has no room left; other calls go on.
    pub fn is_out_of_memory(self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Every later call on the device fails, until the process ends.
    pub fn is_sticky(self) -> bool {
        use sys::CUresult as Code;
        matches!(
            self.code,
            Code::CUDA_ERROR_ILLEGAL_ADDRESS
                | Code::CUDA_ERROR_LAUNCH_FAILED
                | Code::CUDA_ERROR_LAUNCH_TIMEOUT
                | Code::CUDA_ERROR_ECC_UNCORRECTABLE
                | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
                | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
                | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
                | Code::CUDA_ERROR_MISALIGNED_ADDRESS
                | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
                | Code::CUDA_ERROR_INVALID_PC
                | Code::CUDA_ERROR_ASSERT
                | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
                | Code::CUDA_ERROR_DEVICE_UNAVAILABLE
                | Code::CUDA_ERROR_SYSTEM_NOT_READY
        )
    }

    pub(crate) fn is_not_ready(self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_NOT_READY
    }

    pub(crate) fn is_already_enabled(self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    }

    fn text_of(
        self,
        ask: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult,
    ) -> &'static str {
        let mut text = std::ptr::null();
        // SAFETY: only a driver that is loaded makes errors; `text` is writable.
        let outcome = unsafe { ask(self.code, &raw mut text) };
        if outcome != sys::CUresult::CUDA_SUCCESS || text.is_null() {
            return "unknown error";
        }
        // SAFETY: the driver gives a text that ends with NUL and is never freed.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_str().unwrap_or("unknown error")
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, text) = (
            self.text_of(sys::cuGetErrorName),
            self.text_of(sys::cuGetErrorString),
        );
        write!(formatter, "{}: {name}: {text}", self.call)
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl std::error::Error for CudaError {}

/// The outcome of `call`.
pub(crate) fn check(call: &'static str, code: sys::CUresult) -> Result<(), CudaError> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(CudaError { call, code }),
    }
}
