//! Output buffers that an embedder's response allocator provides.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_abi as abi;
use conch_engine::gpus::GpuHost;
use conch_engine::private_copy::to_private;
use conch_engine::{Error, Output};
use conch_memory::{ByteView, MemoryPlace};

use super::allocator::AllocatorFunctions;
use super::callbacks::{
    conch_guard_allocate, conch_guard_attributes, conch_guard_free, conch_guard_query, log_failure,
    on_exception, outcome,
};
use crate::boundary::{as_handle, c_string};
use crate::guard;
use crate::objects::{BufferAttributes, BufferPlace, kind_of};

/// A response allocator as one request uses it: its functions, and the pointers that they want.
#[derive(Clone)]
pub(crate) struct RequestAllocator {
    handle: *mut abi::TRITONSERVER_ResponseAllocator,
    functions: Arc<AllocatorFunctions>,
    userp: *mut c_void,
}

// SAFETY: the embedder's functions may be called from any thread; both pointers are passed back,
// never followed.
unsafe impl Send for RequestAllocator {}
// SAFETY: as above.
unsafe impl Sync for RequestAllocator {}

impl RequestAllocator {
    pub(crate) fn new(
        handle: *mut abi::TRITONSERVER_ResponseAllocator,
        functions: Arc<AllocatorFunctions>,
        userp: *mut c_void,
    ) -> RequestAllocator {
        RequestAllocator {
            handle,
            functions,
            userp,
        }
    }

    /// A response is begun.
    pub(crate) fn start(&self) {
        let Some(start) = self.functions.start else {
            return;
        };
        // SAFETY: the allocator's own function with its own pointers.
        if let Err(error) = unsafe { guard::call2(start, self.handle, self.userp) } {
            conch_log::error!("response allocation start failed: {error}");
        }
    }

    /// Where outputs would be placed.
    ///
    /// # Errors
    /// None if the allocator cannot say; else its own.
    ///
    /// # Safety
    /// `name` is null or ends with NUL, `bytes` is null or valid, the others are valid.
    pub(crate) unsafe fn query(
        &self,
        name: *const c_char,
        bytes: *mut usize,
        memory_type: *mut u32,
        memory_type_id: *mut i64,
    ) -> Option<Result<(), Error>> {
        let query = self.functions.query.get();
        query?;
        // SAFETY: by this function's contract; the allocator's own function with its own pointers.
        Some(unsafe {
            outcome(conch_guard_query(
                on_exception,
                query,
                self.handle,
                self.userp,
                name,
                bytes,
                memory_type,
                memory_type_id,
            ))
        })
    }

    /// A buffer for an output; `wanted` is only a wish.
    ///
    /// # Errors
    /// The allocator's; INTERNAL if it claims success without a buffer, or a memory type that there
    /// is not.
    pub(crate) fn place(
        &self,
        name: &CStr,
        bytes: usize,
        wanted: (u32, i64),
    ) -> Result<Arc<PlacedBuffer>, Error> {
        let (mut buffer, mut buffer_userp) = (ptr::null_mut(), ptr::null_mut());
        let (mut memory_type, mut memory_type_id) = wanted;
        // SAFETY: the allocator's own function with its own pointers; the targets are writable.
        unsafe {
            outcome(conch_guard_allocate(
                on_exception,
                self.functions.allocate,
                self.handle,
                name.as_ptr(),
                bytes,
                wanted.0,
                wanted.1,
                self.userp,
                &raw mut buffer,
                &raw mut buffer_userp,
                &raw mut memory_type,
                &raw mut memory_type_id,
            ))
        }?;
        let placed = PlacedBuffer {
            allocator: self.clone(),
            buffer,
            buffer_userp,
            attributes: BufferAttributes::from(BufferPlace {
                byte_size: bytes as u64,
                memory_type,
                memory_type_id,
                cuda_ipc_handle: None,
            }),
        };
        let told = kind_of(memory_type).and_then(|_| {
            if buffer.is_null() && bytes > 0 {
                let name = name.to_string_lossy();
                return Err(Error::internal(format!(
                    "the response allocator gave no buffer of {bytes} bytes for output '{name}'"
                )));
            }
            Ok(())
        });
        told?;
        let buffer_attributes = self.functions.buffer_attributes.get();
        if buffer_attributes.is_some() {
            // SAFETY: as above; the attributes are changed during the call only.
            unsafe {
                outcome(conch_guard_attributes(
                    on_exception,
                    buffer_attributes,
                    self.handle,
                    name.as_ptr(),
                    as_handle(&placed.attributes),
                    self.userp,
                    buffer_userp,
                ))
            }?;
            // Whatever the function wrote there: these are known.
            let attributes = &placed.attributes;
            attributes.store(bytes as u64, memory_type, memory_type_id);
        }
        Ok(Arc::new(placed))
    }

    /// Moves outputs that were made elsewhere (a cached response's, say) into buffers of the
    /// allocator's.
    ///
    /// # Errors
    /// The allocator's; INTERNAL if a copy from or to a GPU fails.
    pub(crate) fn adopt(&self, outputs: &mut [Output]) -> Result<(), Error> {
        let is_foreign = |output: &&mut Output| {
            !output.data.is_empty() && PlacedBuffer::of(&output.data).is_none()
        };
        let mut foreign = outputs.iter_mut().filter(is_foreign).peekable();
        if foreign.peek().is_some() {
            self.start();
        }
        foreign.try_for_each(|output| self.move_in(output))
    }

    fn move_in(&self, output: &mut Output) -> Result<(), Error> {
        let name = c_string(&output.name);
        let placed = self.place(&name, output.data.len(), (abi::TRITONSERVER_MEMORY_CPU, 0))?;
        // Not charged: it is gone when this returns.
        let source = to_private(&output.data, None)?;
        let bytes = source.as_slice().unwrap_or_default();
        if placed.place().is_host() {
            // SAFETY: the allocator gave that many bytes of host memory, which nobody else uses
            // yet.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), placed.buffer.cast(), bytes.len()) };
        } else if let Some(base) = NonNull::new(placed.buffer.cast()) {
            // SAFETY: the allocator gave that many bytes of device memory, which the owner keeps;
            // the CPU never goes there.
            let target = unsafe {
                ByteView::shared(base, bytes.len(), placed.place(), Arc::clone(&placed) as _)
            };
            GpuHost::write(bytes, &target)?;
        }
        output.data = PlacedBuffer::freeze(placed);
        Ok(())
    }
}

/// One buffer of an allocator; given back on drop.
pub(crate) struct PlacedBuffer {
    allocator: RequestAllocator,
    buffer: *mut c_void,
    buffer_userp: *mut c_void,
    attributes: BufferAttributes,
}

// SAFETY: the buffer is the response's alone until given back; the pointers are only passed on.
unsafe impl Send for PlacedBuffer {}
// SAFETY: as above.
unsafe impl Sync for PlacedBuffer {}

impl PlacedBuffer {
    /// The buffer behind a view, if it is an allocator's.
    pub(crate) fn of(view: &ByteView) -> Option<&PlacedBuffer> {
        view.owner()?.downcast_ref::<PlacedBuffer>()
    }

    pub(crate) fn buffer(&self) -> *mut c_void {
        self.buffer
    }

    pub(crate) fn buffer_userp(&self) -> *mut c_void {
        self.buffer_userp
    }

    pub(crate) fn place_of_buffer(&self) -> BufferPlace {
        self.attributes.load()
    }

    fn place(&self) -> MemoryPlace {
        let place = self.attributes.load();
        MemoryPlace {
            kind: kind_of(place.memory_type).unwrap_or_default(),
            id: place.memory_type_id,
        }
    }

    /// The bytes as the backend wrote them.
    pub(crate) fn freeze(placed: Arc<PlacedBuffer>) -> ByteView {
        let base = placed.buffer.cast::<u8>().cast_const();
        // The allocator was asked for as many, so they fit.
        let length = usize::try_from(placed.place_of_buffer().byte_size).unwrap_or(0);
        let place = placed.place();
        // SAFETY: the buffer stays valid until it is given back, which is when the last view is
        // gone.
        unsafe { ByteView::foreign(base, length, place, Some(placed)) }
    }
}

impl Drop for PlacedBuffer {
    fn drop(&mut self) {
        if self.buffer.is_null() {
            return;
        }
        let place = self.attributes.load();
        // SAFETY: the allocator's own function with its own pointers; the buffer is not used again.
        unsafe {
            let error = conch_guard_free(
                on_exception,
                self.allocator.functions.release,
                self.allocator.handle,
                self.buffer,
                self.buffer_userp,
                usize::try_from(place.byte_size).unwrap_or(0),
                place.memory_type,
                place.memory_type_id,
            );
            log_failure(error, "failed to release an output buffer");
        }
    }
}
