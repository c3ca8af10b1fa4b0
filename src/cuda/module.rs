//! Kernels: PTX text, which the driver compiles for its device when it is loaded, and the functions
//! in it. No toolkit has a part in this.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys;

use crate::driver::first_missing;
use crate::error::check;
use crate::{CudaError, Device};

/// Why there is no kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// The driver has no such function; what needs no kernels works all the same.
    TooOld(&'static str),
    /// The driver refuses a call that is not the compilation.
    Refused(CudaError),
    /// The compiler in the driver did not take the text; `log` is what it says, or empty.
    Compile { error: CudaError, log: String },
}

impl fmt::Display for KernelError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::TooOld(function) => write!(
                formatter,
                "the driver is too old for kernels: it has no function {function}"
            ),
            KernelError::Refused(error) => error.fmt(formatter),
            KernelError::Compile { error, log } if log.is_empty() => error.fmt(formatter),
            KernelError::Compile { error, log } => write!(formatter, "{error}: {log}"),
        }
    }
}

impl std::error::Error for KernelError {}

impl From<CudaError> for KernelError {
    fn from(error: CudaError) -> KernelError {
        KernelError::Refused(error)
    }
}

/// Compiled kernels of one device. Unloaded when dropped; functions hold it.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    handle: sys::CUmodule,
}

// SAFETY: the driver allows modules to be used from any thread; the handle is never dereferenced
// here.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Has the driver compile PTX text. Blocks while it does: milliseconds for a small kernel, none
    /// where the driver's cache on disk has it.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn compile(device: &Arc<Device>, ptx: &CStr) -> Result<Arc<Module>, KernelError> {
        use sys::CUjit_option_enum as Jit;
        if let Some(name) = first_missing(&FUNCTIONS) {
            return Err(KernelError::TooOld(name));
        }
        let _current = device.current()?;
        let mut handle = std::ptr::null_mut();
        let mut log = [0_u8; LOG_BYTES_MAX];
        let mut options = [
            Jit::CU_JIT_ERROR_LOG_BUFFER,
            Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(LOG_BYTES_MAX - 1),
        ];
        // SAFETY: the text ends with NUL; there are as many values as options; the log outlives the
        // call and is as long as told, and longer by the NUL at its end.
        let outcome = check("cuModuleLoadDataEx", unsafe {
            sys::cuModuleLoadDataEx(
                &raw mut handle,
                ptx.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        outcome.map_err(|error| KernelError::Compile {
            error,
            log: one_line(&log),
        })?;
        Ok(Arc::new(Module {
            device: Arc::clone(device),
            handle,
        }))
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The kernel (`.entry`) of this name.
    ///
    /// # Errors
    /// What the driver refuses: there is none of that name.
    pub fn function(self: &Arc<Self>, name: &CStr) -> Result<Function, CudaError> {
        let _current = self.device.current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module lives, the name ends with NUL, the result is writable.
        check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&raw mut handle, self.handle, name.as_ptr())
        })?;
        Ok(Function {
            module: Arc::clone(self),
            handle,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: loaded in `compile`, unloaded once; no function is left.
            let _ = unsafe { sys::cuModuleUnload(self.handle) };
        }
    }
}

/// A kernel that can be launched on a stream of its device.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<Module>,
    handle: sys::CUfunction,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as for `Module`.
unsafe impl Sync for Function {}

impl Function {
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    pub(crate) fn handle(&self) -> sys::CUfunction {
        self.handle
    }
}

/// The log as one line, for messages.
fn one_line(log: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(log).unwrap_or_default();
    let text = text.to_string_lossy();
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// Enough for the first errors; the driver cuts what does not fit.
const LOG_BYTES_MAX: usize = 4096;

/// The functions of modules and launches.
const FUNCTIONS: [&str; 4] = [
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuLaunchKernel",
];
