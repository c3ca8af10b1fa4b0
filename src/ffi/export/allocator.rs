//! Response allocators: an embedder's functions for output buffers. `embed::placement` calls them.

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{Tag, borrow_mut, delete, give, handles};

/// The functions of one allocator.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ResponseAllocator {
    tag: Tag<abi::TRITONSERVER_ResponseAllocator>,
    pub(crate) allocate: abi::TRITONSERVER_ResponseAllocatorAllocFn_t,
    pub(crate) release: abi::TRITONSERVER_ResponseAllocatorReleaseFn_t,
    pub(crate) start: abi::TRITONSERVER_ResponseAllocatorStartFn_t,
    pub(crate) buffer_attributes: abi::TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
    pub(crate) query: abi::TRITONSERVER_ResponseAllocatorQueryFn_t,
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
            return Err(Error::invalid("a response allocator needs functions to allocate and to release"));
        }
        give(allocator, Box::new(ResponseAllocator {
            tag: Tag::new(),
            allocate: alloc_fn,
            release: release_fn,
            start: start_fn,
            buffer_attributes: None,
            query: None,
        }))
    }

    fn TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
        allocator: *mut abi::TRITONSERVER_ResponseAllocator,
        buffer_attributes_fn: abi::TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
    ) {
        borrow_mut(allocator)?.buffer_attributes = buffer_attributes_fn;
        Ok(())
    }

    fn TRITONSERVER_ResponseAllocatorSetQueryFunction(
        allocator: *mut abi::TRITONSERVER_ResponseAllocator,
        query_fn: abi::TRITONSERVER_ResponseAllocatorQueryFn_t,
    ) {
        borrow_mut(allocator)?.query = query_fn;
        Ok(())
    }

    fn TRITONSERVER_ResponseAllocatorDelete(allocator: *mut abi::TRITONSERVER_ResponseAllocator) {
        delete(allocator)
    }
}
