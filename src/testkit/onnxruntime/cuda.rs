//! The driver, as the provider CUDA uses it: found by its name, like everything that is opened at
//! run time.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

pub struct Cuda {
    context: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int,
    set_current: unsafe extern "C" fn(*mut c_void) -> c_int,
    allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize, *mut c_void) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> c_int,
    synchronize: unsafe extern "C" fn(*mut c_void) -> c_int,
    query: unsafe extern "C" fn(*mut c_void) -> c_int,
    attribute: unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int,
    call: unsafe extern "C" fn(*mut c_void, HostFunction, *mut c_void) -> c_int,
    read: unsafe extern "C" fn(*mut c_void, u64, usize, usize) -> c_int,
    write: unsafe extern "C" fn(u64, *const c_void, usize, usize) -> c_int,
}

/// `CUhostFn`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_int = 9;

/// # Safety
/// The library has the function `name` of type `F`.
unsafe fn find<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    // SAFETY: the library is open, the name a C string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: a function of that type, by this function's contract.
    (!symbol.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&symbol) })
}

fn outcome(call: &str, code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!("CUDA failure {code}: {call}")),
    }
}

impl Cuda {
    /// # Errors
    /// That the driver is not there, or lacks functions.
    pub fn get() -> Result<&'static Cuda, String> {
        static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();
        let cuda = CUDA.get_or_init(Cuda::open).as_ref();
        cuda.ok_or_else(|| "CUDA failure 100: no CUDA-capable device is detected".to_owned())
    }

    fn open() -> Option<Cuda> {
        // SAFETY: the name is a C string; the driver's initialisers are harmless.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the types are those of the driver's header.
        unsafe {
            Some(Cuda {
                context: find(library, c"cuDevicePrimaryCtxRetain")?,
                set_current: find(library, c"cuCtxSetCurrent")?,
                allocate: find(library, c"cuMemAlloc_v2")?,
                free: find(library, c"cuMemFree_v2")?,
                to_host: find(library, c"cuMemcpyDtoHAsync_v2")?,
                to_device: find(library, c"cuMemcpyHtoDAsync_v2")?,
                synchronize: find(library, c"cuStreamSynchronize")?,
                query: find(library, c"cuStreamQuery")?,
                attribute: find(library, c"cuPointerGetAttribute")?,
                call: find(library, c"cuLaunchHostFunc")?,
                read: find(library, c"conch_cuda_double_read")?,
                write: find(library, c"conch_cuda_double_write")?,
            })
        }
    }

    /// Makes the primary context of a device current, as `cudaSetDevice` does.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn enter(&self, device: i32) -> Result<(), String> {
        let mut context = ptr::null_mut();
        // SAFETY: the result is writable. The context stays retained, as by the runtime library.
        unsafe {
            outcome(
                "cuDevicePrimaryCtxRetain",
                (self.context)(&raw mut context, device),
            )?;
            outcome("cuCtxSetCurrent", (self.set_current)(context))
        }
    }

    /// # Errors
    /// What the driver refuses.
    pub fn allocate(&self, len: usize) -> Result<u64, String> {
        let mut address = 0;
        // SAFETY: the result is writable.
        outcome("cuMemAlloc", unsafe {
            (self.allocate)(&raw mut address, len)
        })?;
        Ok(address)
    }

    pub fn free(&self, address: u64) {
        // SAFETY: the driver refuses what it did not give.
        let _ = unsafe { (self.free)(address) };
    }

    /// Enqueues a copy to the host, which is there when the stream has got to it.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn fetch(
        &self,
        target: &mut [u8],
        address: u64,
        stream: *mut c_void,
    ) -> Result<(), String> {
        if target.is_empty() {
            return Ok(());
        }
        let (base, len) = (target.as_mut_ptr().cast(), target.len());
        // SAFETY: the target is that long, and its memory is not pinned, so the driver is done with
        // it when this returns. It refuses addresses that are none.
        outcome("cuMemcpyDtoHAsync", unsafe {
            (self.to_host)(base, address, len, stream)
        })
    }

    /// Enqueues a copy to the device.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn store(&self, address: u64, source: &[u8], stream: *mut c_void) -> Result<(), String> {
        if source.is_empty() {
            return Ok(());
        }
        let (base, len) = (source.as_ptr().cast(), source.len());
        // SAFETY: the source is that long, and its memory is not pinned, so the driver has taken
        // the bytes when this returns. It refuses addresses that are none.
        outcome("cuMemcpyHtoDAsync", unsafe {
            (self.to_device)(address, base, len, stream)
        })
    }

    /// # Errors
    /// What failed in the stream.
    pub fn synchronize(&self, stream: *mut c_void) -> Result<(), String> {
        // SAFETY: the driver refuses streams that are none.
        outcome("cuStreamSynchronize", unsafe { (self.synchronize)(stream) })
    }

    /// Has the stream call a function of the host, in place of a kernel.
    ///
    /// # Errors
    /// What the driver refuses.
    ///
    /// # Safety
    /// The function may be called with `data`, once, until the stream is done with it.
    pub unsafe fn enqueue(
        &self,
        stream: *mut c_void,
        function: HostFunction,
        data: *mut c_void,
    ) -> Result<(), String> {
        // SAFETY: by this function's contract; the driver refuses streams that are none.
        outcome("cuLaunchHostFunc", unsafe {
            (self.call)(stream, function, data)
        })
    }

    /// Reads what a kernel of the device reads.
    ///
    /// # Errors
    /// What a kernel would fail for.
    pub fn read(&self, target: &mut [u8], address: u64, device: i32) -> Result<(), String> {
        let (base, len) = (target.as_mut_ptr().cast(), target.len());
        let device = usize::try_from(device).unwrap_or(usize::MAX);
        // SAFETY: the target is that long; the driver refuses addresses that are none.
        outcome("kernel", unsafe { (self.read)(base, address, len, device) })
    }

    /// Writes what a kernel of the device writes.
    ///
    /// # Errors
    /// What a kernel would fail for.
    pub fn write(&self, address: u64, source: &[u8], device: i32) -> Result<(), String> {
        let (base, len) = (source.as_ptr().cast(), source.len());
        let device = usize::try_from(device).unwrap_or(usize::MAX);
        // SAFETY: the source is that long; the driver refuses addresses that are none.
        outcome("kernel", unsafe {
            (self.write)(address, base, len, device)
        })
    }

    /// That a stream is one of the driver's.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn check_stream(&self, stream: *mut c_void) -> Result<(), String> {
        // SAFETY: as above.
        match unsafe { (self.query)(stream) } {
            NOT_READY => Ok(()),
            code => outcome("cuStreamQuery", code),
        }
    }

    /// The device that an address lies on.
    ///
    /// # Errors
    /// What the driver refuses: an address that is no device memory.
    pub fn device_of(&self, address: u64) -> Result<i32, String> {
        let mut device: c_int = -1;
        // SAFETY: the result is writable and of the attribute's type.
        let code = unsafe { (self.attribute)((&raw mut device).cast(), DEVICE_ORDINAL, address) };
        outcome("cuPointerGetAttribute", code).map(|()| device)
    }
}
