//! Values whose data lies on a device, and descriptions of such memory.
//!
//! A value is one of the real library's over the device's address, which nobody dereferences there;
//! what is known of it beside is here.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::cuda::Cuda;
use crate::real::{Failure, Raw, Status, check, real, status, text};

/// A value on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceValue {
    pub device: i32,
    pub address: u64,
    pub len: usize,
    /// The double's own memory, freed with the value.
    pub is_owned: bool,
}

#[derive(Default)]
struct Registry {
    values: HashMap<usize, DeviceValue>,
    /// Descriptions of memory, by address: the device.
    infos: HashMap<usize, i32>,
}

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a value, if it lies on a device.
pub fn value(raw: Raw) -> Option<DeviceValue> {
    registry().values.get(&raw.addr()).copied()
}

/// The device that a description is of; none: main memory.
pub fn device_of(info: Raw) -> Option<i32> {
    registry().infos.get(&info.addr()).copied()
}

/// Values on devices that are live.
pub fn live_count() -> usize {
    registry().values.len()
}

/// Registers a value that lies on a device.
pub fn register(raw: Raw, value: DeviceValue) {
    registry().values.insert(raw.addr(), value);
}

pub unsafe extern "C" fn create_memory_info(
    name: *const c_char,
    allocator: c_int,
    id: c_int,
    kind: c_int,
    info: *mut Raw,
) -> Status {
    status((|| {
        let real = real()?;
        // SAFETY: the contracts are the same. The real library knows the name on every machine.
        unsafe { check(real.create_memory_info(name, allocator, id, kind, info))? };
        // SAFETY: the name is a C string; the result was written.
        let (name, made) = unsafe { (text(name), *info) };
        if name == "Cuda" {
            registry().infos.insert(made.addr(), id);
        }
        Ok(())
    })())
}

pub unsafe extern "C" fn release_memory_info(info: Raw) {
    registry().infos.remove(&info.addr());
    if let Ok(real) = real() {
        // SAFETY: the contracts are the same.
        unsafe { real.release_memory_info(info) };
    }
}

pub unsafe extern "C" fn create_tensor_with_data(
    info: Raw,
    data: *mut c_void,
    len: usize,
    shape: *const i64,
    rank: usize,
    element: c_int,
    value: *mut Raw,
) -> Status {
    let Some(device) = device_of(info) else {
        return status((|| {
            // SAFETY: the contracts are the same.
            let made = unsafe {
                real()?.create_tensor_with_data(info, data, len, shape, rank, element, value)
            };
            check(made)
        })());
    };
    status((|| {
        let address = data.addr() as u64;
        // Memory of one device that is said to be of another, or of the host, is a misuse.
        if len > 0 {
            let cuda = Cuda::get()?;
            cuda.enter(device)?;
            let found = cuda.device_of(address)?;
            if found != device {
                return Err(Failure::Double(format!(
                    "misuse: {address:#x} lies on GPU {found}, not on {device}"
                )));
            }
        }
        // SAFETY: the shape is as long as said, the result writable.
        let made = unsafe { tensor_over(data, len, shape, rank, element)? };
        register(
            made,
            DeviceValue {
                device,
                address,
                len,
                is_owned: false,
            },
        );
        // SAFETY: the result is writable.
        unsafe { value.write(made) };
        Ok(())
    })())
}

/// A value of the real library over an address.
///
/// # Safety
/// The shape is as long as said. The value's data is only used as what it is.
pub unsafe fn tensor_over(
    data: *mut c_void,
    len: usize,
    shape: *const i64,
    rank: usize,
    element: c_int,
) -> Result<Raw, Failure> {
    let real = real()?;
    let (mut info, mut made) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the results are writable; the description is ours, and copied.
    unsafe {
        check(real.create_cpu_memory_info(0, 0, &raw mut info))?;
        let created = check(real.create_tensor_with_data(
            info,
            data,
            len,
            shape,
            rank,
            element,
            &raw mut made,
        ));
        real.release_memory_info(info);
        created?;
    }
    Ok(made)
}

pub unsafe extern "C" fn release_value(raw: Raw) {
    let gone = registry().values.remove(&raw.addr());
    if let Some(value) = gone.filter(|value| value.is_owned)
        && let Ok(cuda) = Cuda::get()
        && cuda.enter(value.device).is_ok()
    {
        cuda.free(value.address);
    }
    if let Ok(real) = real() {
        // SAFETY: the contracts are the same.
        unsafe { real.release_value(raw) };
    }
}

/// Element type, shape and address of a value.
pub struct TensorDescription {
    pub element: c_int,
    pub shape: Vec<i64>,
    pub data: *mut c_void,
}

/// # Errors
/// The real library's own.
///
/// # Safety
/// The value is live and holds no strings.
pub unsafe fn describe(value: Raw) -> Result<TensorDescription, Failure> {
    let real = real()?;
    let (mut info, mut element, mut rank) = (ptr::null_mut(), 0, 0);
    let mut data = ptr::null_mut();
    // SAFETY: the value is live, the results are writable; the information is ours.
    unsafe {
        check(real.tensor_info(value, &raw mut info))?;
        check(real.element_type(info, &raw mut element))?;
        check(real.dimension_count(info, &raw mut rank))?;
        let mut shape = vec![0; rank];
        check(real.dimensions(info, shape.as_mut_ptr(), rank))?;
        real.release_tensor_info(info);
        check(real.tensor_data(value, &raw mut data))?;
        Ok(TensorDescription {
            element,
            shape,
            data,
        })
    }
}

/// Bytes of an element, by `ONNXTensorElementDataType`; none for strings and what is not known.
pub fn element_bytes(element: c_int) -> Option<usize> {
    match element {
        2 | 3 | 9 => Some(1),
        4 | 5 | 10 | 16 => Some(2),
        1 | 6 | 12 => Some(4),
        7 | 11 | 13 => Some(8),
        _ => None,
    }
}
