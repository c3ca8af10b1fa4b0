//! The library that has torch's kernels for GPUs.

use std::ffi::c_void;
use std::path::Path;

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::beside;

use super::library::open;

/// What a build of torch for GPUs has beside its library for CPUs.
pub const CUDA_LIBRARY: &str = "libtorch_cuda.so";

sdk::opaque_types! {
    /// What has torch use a stream on a thread, `CUDAStreamGuardHandle`.
    RawGuard
}

sdk::functions! {
    /// What is used of torch's library for GPUs. Contracts are those of `aoti_torch/c/shim.h`.
    pub(super) struct CudaFunctions;

    unsafe extern "C" {
        aoti_torch_create_cuda_stream_guard as create_guard(
            *mut c_void, i32, *mut *mut RawGuard
        ) -> i32;
        aoti_torch_delete_cuda_stream_guard as delete_guard(*mut RawGuard) -> i32;
    }
}

impl CudaFunctions {
    /// Opens the library for GPUs beside torch's own at `torch`, which registers its kernels there.
    ///
    /// # Errors
    /// `Unavailable` if it is not there, or what it needs is not.
    pub(super) fn open(torch: &Path) -> Result<Self, Error> {
        let path = beside(torch, CUDA_LIBRARY).ok_or_else(|| {
            Error::unavailable(format!(
                "{} is of a build of torch for CPUs: there is no {CUDA_LIBRARY} beside it; name \
                 the libtorch_cpu.so of an installation for GPUs in \
                 --backend-config=pytorch,library=<path> or CONCH_PYTORCH_LIBRARY, or set kind: \
                 KIND_CPU in the model's instance_group",
                torch.display()
            ))
        })?;
        // SAFETY: by its name and place it is torch's own, for this torch.
        let library = unsafe { open(&path)? };
        // SAFETY: the functions have these types in every torch that has them.
        unsafe { Self::read(library) }.map_err(|symbol| {
            Error::unavailable(format!("{} has no function {symbol}", path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_missing() {
        let torch = Path::new("/nonexistent/libtorch_cpu.so");
        let Err(error) = CudaFunctions::open(torch) else {
            panic!("there is none")
        };
        let expected = "/nonexistent/libtorch_cpu.so is of a build of torch for CPUs: there is no \
                        libtorch_cuda.so beside it; ";
        assert!(error.message().starts_with(expected), "{error}");
    }
}
