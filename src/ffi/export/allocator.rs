//! Response allocators: for the in-process API, which is not there yet.

use conch_abi as abi;

use super::unsupported;

unsupported! {
    fn TRITONSERVER_ResponseAllocatorNew(allocator: *mut *mut abi::TRITONSERVER_ResponseAllocator, alloc_fn: abi::TRITONSERVER_ResponseAllocatorAllocFn_t, release_fn: abi::TRITONSERVER_ResponseAllocatorReleaseFn_t, start_fn: abi::TRITONSERVER_ResponseAllocatorStartFn_t);
    fn TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator: *mut abi::TRITONSERVER_ResponseAllocator, buffer_attributes_fn: abi::TRITONSERVER_ResponseAllocatorBufferAttributesFn_t);
    fn TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator: *mut abi::TRITONSERVER_ResponseAllocator, query_fn: abi::TRITONSERVER_ResponseAllocatorQueryFn_t);
    fn TRITONSERVER_ResponseAllocatorDelete(allocator: *mut abi::TRITONSERVER_ResponseAllocator);
}
