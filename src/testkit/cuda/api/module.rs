//! Modules of kernels, and launches.

use std::ffi::{CStr, c_char, c_uint, c_void};

use super::stream::Stream;
use crate::call::{call, give, take};
use crate::code::{
    Code, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, NOT_FOUND,
    NOT_SUPPORTED, UNSUPPORTED_PTX_VERSION,
};
use crate::driver::{Driver, lock};
use crate::kernel::{self, Launch};
use crate::modules::{self, LoadedModule};

/// A `CUmodule` or a `CUfunction`: a number, not an address.
pub type Module = *mut c_void;
pub type Function = *mut c_void;

/// The error log and its size, among the options of the compiler.
const ERROR_LOG: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;

/// More than any text of a kernel here has.
const TEXT_BYTES_MAX: usize = 1 << 20;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Module, image: *const c_void) -> Code {
    call("cuModuleLoadData", |driver| {
        // SAFETY: the caller passes null or a place for the result, and null or a text.
        unsafe { load(driver, module, image, &mut String::new()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Module,
    image: *const c_void,
    count: c_uint,
    options: *const c_uint,
    values: *mut *mut c_void,
) -> Code {
    call("cuModuleLoadDataEx", |driver| {
        let mut log = String::new();
        // SAFETY: the caller passes null or a place for the result, and null or a text.
        let outcome = unsafe { load(driver, module, image, &mut log) };
        // SAFETY: the caller passes `count` options with their values.
        unsafe { give_log(&log, count, options, values) }?;
        outcome
    })
}

/// # Safety
/// The place must be null or valid for a write, the image null or a text that ends with NUL.
unsafe fn load(
    driver: &Driver,
    place: *mut Module,
    image: *const c_void,
    log: &mut String,
) -> Result<(), Code> {
    let device = driver.current()?;
    if place.is_null() || image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    let text = text.to_str().map_err(|_| INVALID_IMAGE)?;
    // Compiled code, which the driver would take.
    if text.starts_with("\u{7f}ELF") || text.len() > TEXT_BYTES_MAX {
        return Err(INVALID_IMAGE);
    }
    let module = kernel::parse(text).map_err(|error| {
        *log = format!("{error}\nptxas fatal   : Ptx assembly aborted due to errors\n");
        INVALID_PTX
    })?;
    let (major, minor) = driver.config.capability;
    if module.version > modules::newest_version(driver.config.version) {
        let (major, minor) = module.version;
        *log = format!(
            "ptxas application ptx input, line 1; fatal   : Unsupported .version {major}.{minor}\n"
        );
        return Err(UNSUPPORTED_PTX_VERSION);
    }
    if module.target > (10 * major + minor).unsigned_abs() {
        return Err(NO_BINARY_FOR_GPU);
    }
    let handle = driver.next_handle();
    let module = LoadedModule::new(device.ordinal, module);
    lock(&driver.modules).modules.insert(handle, module);
    // SAFETY: not null, hence valid by this function's contract.
    unsafe { give(place, std::ptr::without_provenance_mut(handle)) }
}

/// Writes the log where the caller wants it, cut to its room, and the bytes that it has.
///
/// # Safety
/// The lists have `count` entries; the buffer among the values has as many bytes as its size says.
unsafe fn give_log(
    log: &str,
    count: c_uint,
    options: *const c_uint,
    values: *mut *mut c_void,
) -> Result<(), Code> {
    let (mut buffer, mut room, mut size_at) = (std::ptr::null_mut::<c_void>(), 0, None);
    for index in 0..count as usize {
        // SAFETY: the lists have that many entries, by this function's contract.
        let (option, value) = unsafe { (take(options.add(index))?, take(values.add(index))?) };
        match option {
            ERROR_LOG => buffer = value,
            ERROR_LOG_BYTES => (room, size_at) = (value.addr(), Some(index)),
            _ => {}
        }
    }
    let Some(size_at) = size_at.filter(|_| !buffer.is_null() && room > 0) else {
        return Ok(());
    };
    let len = log.len().min(room - 1);
    // SAFETY: the buffer has `room` bytes, of which `len` and the end are written; the size is
    // among the values.
    unsafe {
        std::ptr::copy_nonoverlapping(log.as_ptr(), buffer.cast::<u8>(), len);
        buffer.cast::<u8>().add(len).write(0);
        let size = std::ptr::without_provenance_mut(len);
        give(values.add(size_at), size)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Module) -> Code {
    call("cuModuleUnload", |driver| {
        driver.current()?;
        lock(&driver.modules).unload(module.addr())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut Function,
    module: Module,
    name: *const c_char,
) -> Code {
    call("cuModuleGetFunction", |driver| {
        driver.current()?;
        if function.is_null() || name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes a C string.
        let name = unsafe { CStr::from_ptr(name) }
            .to_str()
            .map_err(|_| NOT_FOUND)?;
        let handle = driver.next_handle();
        lock(&driver.modules).add_function(module.addr(), name, handle)?;
        // SAFETY: the caller passes a place for the result.
        unsafe { give(function, std::ptr::without_provenance_mut(handle)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Function,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Stream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    call("cuLaunchKernel", |driver| {
        driver.current()?;
        let found = lock(&driver.modules).function(function.addr());
        let (device, kernel) = found.ok_or(INVALID_HANDLE)?;
        // No kernel here has shared memory, or takes its parameters as one block.
        if shared_bytes > 0 || !extra.is_null() {
            return Err(NOT_SUPPORTED);
        }
        let mut values = vec![0_u8; kernel.parameter_bytes()];
        for (index, parameter) in kernel.parameters.iter().enumerate() {
            if parameters.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the caller passes a place for each parameter of the kernel.
            let place = unsafe { take(parameters.add(index)) }?;
            if place.is_null() {
                return Err(INVALID_VALUE);
            }
            let room = &mut values[parameter.offset..parameter.offset + parameter.bytes];
            // SAFETY: the caller's place has as many bytes as the parameter.
            unsafe {
                std::ptr::copy_nonoverlapping(place.cast(), room.as_mut_ptr(), parameter.bytes);
            }
        }
        let launch = Launch {
            device,
            kernel,
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            parameters: values,
        };
        kernel::launch(driver, launch, stream.addr())
    })
}
