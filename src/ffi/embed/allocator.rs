//! Functions of an embedder's response allocator.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use conch_abi as abi;

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
    pub(crate) fn set(&self, function: Option<F>) {
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
