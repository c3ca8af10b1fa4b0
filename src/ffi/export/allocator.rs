//! Response allocators: an embedder's functions for output buffers. `embed::placement` calls them.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{HandleTag, borrow, delete, give, handles};

/// One allocator.
#[repr(C)]
pub(crate) struct ResponseAllocator {
    tag: HandleTag<abi::TRITONSERVER_ResponseAllocator>,
    /// Shared with the requests that use it, and with the buffers that it gave.
    pub(crate) functions: Arc<AllocatorFunctions>,
}

/// The functions of one allocator. Two of them may be set at any time, and hold for requests that
/// know the allocator already, as upstream's.
#[derive(Default)]
pub(crate) struct AllocatorFunctions {
    pub(crate) allocate: abi::TRITONSERVER_ResponseAllocatorAllocFn_t,
    pub(crate) release: abi::TRITONSERVER_ResponseAllocatorReleaseFn_t,
    pub(crate) start: abi::TRITONSERVER_ResponseAllocatorStartFn_t,
    pub(crate) buffer_attributes:
        FunctionCell<abi::TRITONSERVER_ResponseAllocatorBufferAttributesFn_t>,
    pub(crate) query: FunctionCell<abi::TRITONSERVER_ResponseAllocatorQueryFn_t>,
}

/// An optional function that may be set while others call it.
pub(crate) struct FunctionCell<F>(AtomicPtr<c_void>, PhantomData<F>);

impl<F> Default for FunctionCell<F> {
    fn default() -> FunctionCell<F> {
        FunctionCell(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }
}

impl<F: Copy> FunctionCell<Option<F>> {
    fn set(&self, function: Option<F>) {
        const { assert!(size_of::<Option<F>>() == size_of::<*mut c_void>()) };
        // SAFETY: of one size; an address of a function, or null for none, is an address.
        let address = unsafe { std::mem::transmute_copy::<Option<F>, *mut c_void>(&function) };
        self.0.store(address, Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<F> {
        let address = self.0.load(Ordering::Acquire);
        // SAFETY: made by `set` from such a value, or null, which is none.
        unsafe { std::mem::transmute_copy::<*mut c_void, Option<F>>(&address) }
    }
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
            tag: HandleTag::new(),
            functions: Arc::new(AllocatorFunctions {
                allocate: alloc_fn,
                release: release_fn,
                start: start_fn,
                ..AllocatorFunctions::default()
            }),
        }))
    }

    fn TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
        allocator: *mut abi::TRITONSERVER_ResponseAllocator,
        buffer_attributes_fn: abi::TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
    ) {
        borrow(allocator)?.functions.buffer_attributes.set(buffer_attributes_fn);
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
