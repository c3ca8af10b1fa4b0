//! The memory of a GPU, as ONNX Runtime describes it.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk::Error;

use super::runtime::Runtime;
use super::table::OrtMemoryInfo;

/// `OrtArenaAllocator` and `OrtMemTypeDefault`: memory of the session's arena on the GPU.
const ARENA_ALLOCATOR: i32 = 1;
const MEMORY_TYPE_DEFAULT: i32 = 0;

/// ONNX Runtime's description of a GPU's memory.
pub(super) struct GpuMemoryInfo {
    pub(super) runtime: Arc<Runtime>,
    pub(super) device: i32,
    pub(super) raw: NonNull<OrtMemoryInfo>,
}

impl GpuMemoryInfo {
    /// # Errors
    /// `Internal` with ONNX Runtime's own words.
    pub(super) fn new(runtime: &Arc<Runtime>, device: i32) -> Result<Self, Error> {
        let table = &runtime.table;
        let mut raw = ptr::null_mut();
        // SAFETY: the name is NUL-terminated and copied, the result writable.
        unsafe {
            table.check((table.create_memory_info)(
                c"Cuda".as_ptr(),
                ARENA_ALLOCATOR,
                device,
                MEMORY_TYPE_DEFAULT,
                &raw mut raw,
            ))?;
        }
        let raw = NonNull::new(raw);
        Ok(GpuMemoryInfo {
            runtime: Arc::clone(runtime),
            device,
            raw: raw.ok_or_else(|| Error::internal("ONNX Runtime described no memory"))?,
        })
    }
}

impl Drop for GpuMemoryInfo {
    fn drop(&mut self) {
        // SAFETY: ours; what was made with it has copied it.
        unsafe { (self.runtime.table.release_memory_info)(self.raw.as_ptr()) };
    }
}
