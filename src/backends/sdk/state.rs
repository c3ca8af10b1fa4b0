//! Implicit states of sequences.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use conch_abi as abi;
use conch_memory::MemoryPlace;

use crate::device::{MemoryTarget, place_of, raw_kind};
use crate::slot::Slot;
use crate::{Buffer, DataType, Error};

/// The next value of an implicit state. It takes effect at [`update`](Self::update).
pub struct State<'b> {
    raw: NonNull<abi::TRITONBACKEND_State>,
    request: PhantomData<&'b Slot>,
}

impl State<'_> {
    /// # Safety
    /// `request` is live during the wrapper's life.
    pub(crate) unsafe fn new(
        request: *mut abi::TRITONBACKEND_Request,
        name: &CStr,
        data_type: DataType,
        shape: &[i64],
    ) -> Result<Self, Error> {
        let mut state = ptr::null_mut();
        // SAFETY: the request is live; name and shape are copied.
        unsafe {
            Error::check(abi::TRITONBACKEND_StateNew(
                &raw mut state,
                request,
                name.as_ptr(),
                data_type.to_raw(),
                shape.as_ptr(),
                u32::try_from(shape.len()).map_err(|_| Error::internal("too many dimensions"))?,
            ))?;
        }
        let raw = NonNull::new(state).ok_or_else(|| Error::internal("server gave a null state"))?;
        Ok(State {
            raw,
            request: PhantomData,
        })
    }

    /// Memory for the state's value, to be filled before the update.
    ///
    /// # Errors
    /// `Unsupported` if the server insists on GPU memory; otherwise whatever the server reports.
    pub fn buffer(&mut self, byte_count: usize) -> Result<Buffer<'_>, Error> {
        let (buffer, memory_type, _) = self.raw_buffer(byte_count, MemoryPlace::CPU)?;
        // SAFETY: the server's buffer has that many bytes, and the wrapper stays borrowed as long
        // as it.
        unsafe { Buffer::new(buffer, byte_count, memory_type, c"a sequence state") }
    }

    /// As [`buffer`](Self::buffer), in `preferred` or wherever the server puts it.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn buffer_in(
        &mut self,
        byte_count: usize,
        preferred: MemoryPlace,
    ) -> Result<MemoryTarget<'_>, Error> {
        let (buffer, memory_type, id) = self.raw_buffer(byte_count, preferred)?;
        let place = place_of(memory_type, id)?;
        // SAFETY: as for `buffer`.
        unsafe { MemoryTarget::new(buffer, byte_count, place, c"a sequence state") }
    }

    /// Memory of the server's, and where it lies.
    fn raw_buffer(
        &mut self,
        byte_count: usize,
        preferred: MemoryPlace,
    ) -> Result<(*mut c_void, abi::TRITONSERVER_MemoryType, i64), Error> {
        let mut buffer: *mut c_void = ptr::null_mut();
        let mut memory_type = raw_kind(preferred.kind);
        let mut memory_type_id = preferred.id;
        // SAFETY: the state is live until updated, and the results are writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_StateBuffer(
                self.raw.as_ptr(),
                &raw mut buffer,
                byte_count as u64,
                &raw mut memory_type,
                &raw mut memory_type_id,
            ))?;
        }
        Ok((buffer, memory_type, memory_type_id))
    }

    /// Makes the value the one that the sequence's next request gets.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn update(self) -> Result<(), Error> {
        // SAFETY: the request is live during the wrapper's life.
        unsafe { self.defer().apply() }
    }

    /// Leaves the update for when the batch is finished.
    pub(crate) fn defer(self) -> StateUpdate {
        StateUpdate(self.raw)
    }
}

/// The update of a state whose next value is still being written. The state and its memory are the
/// request's; if this is dropped, nothing is lost, and the sequence keeps its value.
pub(crate) struct StateUpdate(NonNull<abi::TRITONBACKEND_State>);

// SAFETY: the server lets any thread use a state, one at a time.
unsafe impl Send for StateUpdate {}

impl StateUpdate {
    /// # Errors
    /// Whatever the server reports.
    ///
    /// # Safety
    /// The request is live.
    pub(crate) unsafe fn apply(self) -> Result<(), Error> {
        // SAFETY: by this function's contract; consumed by this call.
        unsafe { Error::check(abi::TRITONBACKEND_StateUpdate(self.0.as_ptr())) }
    }
}
