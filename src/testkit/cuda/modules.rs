//! Modules that are loaded, and the functions that callers looked up in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::code::{Code, INVALID_HANDLE, NOT_FOUND};
use crate::kernel::{Kernel, Module};

pub struct LoadedModule {
    /// Ordinal of the device whose context it belongs to.
    pub device: usize,
    kernels: Vec<Arc<Kernel>>,
}

impl LoadedModule {
    pub fn new(device: usize, module: Module) -> LoadedModule {
        let kernels = module.kernels.into_iter().map(Arc::new).collect();
        LoadedModule { device, kernels }
    }
}

struct ModuleFunction {
    module: usize,
    device: usize,
    kernel: Arc<Kernel>,
}

#[derive(Default)]
pub struct Modules {
    pub modules: BTreeMap<usize, LoadedModule>,
    functions: BTreeMap<usize, ModuleFunction>,
}

impl Modules {
    /// Its functions end with it; a launch that is enqueued still runs.
    pub fn unload(&mut self, module: usize) -> Result<(), Code> {
        self.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        self.functions
            .retain(|_, function| function.module != module);
        Ok(())
    }

    pub fn unload_all(&mut self, device: usize) {
        self.modules.retain(|_, module| module.device != device);
        self.functions
            .retain(|_, function| function.device != device);
    }

    pub fn add_function(&mut self, module: usize, name: &str, handle: usize) -> Result<(), Code> {
        let found = self.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let kernel = found.kernels.iter().find(|kernel| kernel.name == name);
        let function = ModuleFunction {
            module,
            device: found.device,
            kernel: Arc::clone(kernel.ok_or(NOT_FOUND)?),
        };
        self.functions.insert(handle, function);
        Ok(())
    }

    /// The device and the kernel of a function.
    pub fn function(&self, handle: usize) -> Option<(usize, Arc<Kernel>)> {
        let found = self.functions.get(&handle)?;
        Some((found.device, Arc::clone(&found.kernel)))
    }
}

/// The newest PTX that a driver of this version of CUDA takes.
pub fn newest_version(driver: i32) -> (u32, u32) {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    let minor = minor.unsigned_abs();
    match (major, minor) {
        (..9, _) => (5, 0),
        (9, minor) => (6, minor),
        (10, minor) => (6, 3 + minor),
        (11, minor) => (7, minor),
        (12, ..=5) => (8, minor),
        (12, 6) => (8, 5),
        (12, minor) => (8, minor - 1),
        (_, minor) => (9, minor),
    }
}
