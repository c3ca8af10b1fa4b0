//! Response caches: none is loaded yet.

use std::ffi::c_void;

use conch_abi as abi;

use super::unsupported;

unsupported! {
    fn TRITONCACHE_CacheEntryBufferCount(entry: *mut abi::TRITONCACHE_CacheEntry, count: *mut usize);
    fn TRITONCACHE_CacheEntryAddBuffer(entry: *mut abi::TRITONCACHE_CacheEntry, base: *mut c_void, buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes);
    fn TRITONCACHE_CacheEntryGetBuffer(entry: *mut abi::TRITONCACHE_CacheEntry, index: usize, base: *mut *mut c_void, buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes);
    fn TRITONCACHE_CacheEntrySetBuffer(entry: *mut abi::TRITONCACHE_CacheEntry, index: usize, new_base: *mut c_void, buffer_attributes: *mut abi::TRITONSERVER_BufferAttributes);
    fn TRITONCACHE_Copy(allocator: *mut abi::TRITONCACHE_Allocator, entry: *mut abi::TRITONCACHE_CacheEntry);
}
