//! Response allocators: an embedder's functions for output buffers. `embed::placement` calls them.

use std::sync::Arc;

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{HandleTag, borrow, delete, handles, write_handle};
use crate::embed::AllocatorFunctions;

/// One allocator.
#[repr(C)]
pub(crate) struct ResponseAllocator {
    tag: HandleTag<abi::TRITONSERVER_ResponseAllocator>,
    /// Shared with the requests that use it, and with the buffers that it gave.
    pub(crate) functions: Arc<AllocatorFunctions>,
}

handles! {
    TRITONSERVER_ResponseAllocator => ResponseAllocator, "response allocator", tagged;
}

export! {
    fn TRITONSERVER_ResponseAllocatorNew(
        allocator: *mut *mut abi::TRITONSERVER_ResponseAllocator,
        alloc_fn: abi::TRITONSERVER_ResponseAllocatorAllocFn_t,
        release_fn: abi::TRITONSERVER_ResponseAllocatorReleaseFn_t,
        start_fn: abi::TRITONSERVER_ResponseAllocatorStartFn_t,
    ) {
        if alloc_fn.is_none() || release_fn.is_none() {
            return Err(Error::invalid(
                "a response allocator needs functions to allocate and to release",
            ));
        }
        write_handle(
            allocator,
            Box::new(ResponseAllocator {
                tag: HandleTag::new(),
                functions: Arc::new(AllocatorFunctions {
                    allocate: alloc_fn,
                    release: release_fn,
                    start: start_fn,
                    ..AllocatorFunctions::default()
                }),
            }),
        )
    }

    fn TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
        allocator: *mut abi::TRITONSERVER_ResponseAllocator,
        buffer_attributes_fn: abi::TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
    ) {
        borrow(allocator)?
            .functions
            .buffer_attributes
            .set(buffer_attributes_fn);
        Ok(())
    }

    fn TRITONSERVER_ResponseAllocatorSetQueryFunction(
        allocator: *mut abi::TRITONSERVER_ResponseAllocator,
        query_fn: abi::TRITONSERVER_ResponseAllocatorQueryFn_t,
    ) {
        borrow(allocator)?.functions.query.set(query_fn);
        Ok(())
    }

    fn TRITONSERVER_ResponseAllocatorDelete(allocator: *mut abi::TRITONSERVER_ResponseAllocator) {
        delete(allocator)
    }
}
