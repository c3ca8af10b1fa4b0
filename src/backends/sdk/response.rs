//! Responses, their outputs, and the states of a sequence.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use conch_abi as abi;

use crate::batch::{Outcome, Slot};
use crate::error::c_string;
use crate::{DataType, Error};

/// A response to a request of the running execution. Dropped unsent, it is thrown away. Its outputs and parameters are those of
/// [`Outgoing`].
pub struct Response<'b> {
    outgoing: Outgoing,
    slot: &'b Slot,
}

impl<'b> Response<'b> {
    /// # Safety
    /// `raw` is null or a fresh response, which the wrapper owns from now on, of the request that `slot` stands for.
    pub(crate) unsafe fn new(
        raw: *mut abi::TRITONBACKEND_Response,
        slot: &'b Slot,
    ) -> Result<Self, Error> {
        // SAFETY: by this function's contract.
        let outgoing = unsafe { Outgoing::new(raw)? };
        Ok(Response { outgoing, slot })
    }

    /// Sends the response as the only or last one of its request.
    ///
    /// # Errors
    /// Whatever the server reports; the request counts as answered all the same.
    pub fn send(self) -> Result<(), Error> {
        self.slot.outcome.set(Outcome::Sent);
        self.outgoing.send(true)
    }

    /// Sends the response with more to come; for decoupled models.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn send_partial(self) -> Result<(), Error> {
        self.slot.has_partial.set(true);
        self.outgoing.send(false)
    }

    /// Sends the error as the only or last response; outputs added so far are thrown away.
    pub fn fail(self, error: Error) {
        self.slot.outcome.set(Outcome::Failed);
        self.outgoing.fail(error, true);
    }
}

impl Deref for Response<'_> {
    type Target = Outgoing;

    fn deref(&self) -> &Outgoing {
        &self.outgoing
    }
}

impl DerefMut for Response<'_> {
    fn deref_mut(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }
}

/// The contents of a response that is being made.
pub struct Outgoing {
    raw: NonNull<abi::TRITONBACKEND_Response>,
}

// SAFETY: the server lets any thread use a response, one at a time.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// # Safety
    /// `raw` is null or a fresh response, which the wrapper owns from now on.
    pub(crate) unsafe fn new(raw: *mut abi::TRITONBACKEND_Response) -> Result<Self, Error> {
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::internal("server gave a null response"))?;
        Ok(Outgoing { raw })
    }

    /// Attaches a parameter for the client to see.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn set_text(&mut self, name: &CStr, value: &str) -> Result<(), Error> {
        let value = c_string(value);
        // SAFETY: the response is live and ours; both strings are NUL-terminated and copied.
        unsafe {
            Error::check(abi::TRITONBACKEND_ResponseSetStringParameter(
                self.raw.as_ptr(),
                name.as_ptr(),
                value.as_ptr(),
            ))
        }
    }

    /// As [`set_text`](Self::set_text).
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn set_integer(&mut self, name: &CStr, value: i64) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe {
            Error::check(abi::TRITONBACKEND_ResponseSetIntParameter(
                self.raw.as_ptr(),
                name.as_ptr(),
                value,
            ))
        }
    }

    /// As [`set_text`](Self::set_text).
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn set_boolean(&mut self, name: &CStr, value: bool) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe {
            Error::check(abi::TRITONBACKEND_ResponseSetBoolParameter(
                self.raw.as_ptr(),
                name.as_ptr(),
                value,
            ))
        }
    }

    /// Adds an output and its buffer of `byte_count` bytes in main memory, to be filled before the response is sent. Every
    /// call makes an output with memory of its own, so that the buffers of several may be held at the same time.
    ///
    /// # Errors
    /// `Unsupported` if the server insists on GPU memory; otherwise whatever the server reports.
    pub fn output(
        &self,
        name: &CStr,
        data_type: DataType,
        shape: &[i64],
        byte_count: usize,
    ) -> Result<Buffer<'_>, Error> {
        let mut output = ptr::null_mut();
        // SAFETY: the response is live and ours; name and shape are copied.
        unsafe {
            Error::check(abi::TRITONBACKEND_ResponseOutput(
                self.raw.as_ptr(),
                &raw mut output,
                name.as_ptr(),
                data_type.to_raw(),
                shape.as_ptr(),
                u32::try_from(shape.len()).map_err(|_| Error::internal("too many dimensions"))?,
            ))?;
        }
        let mut buffer: *mut c_void = ptr::null_mut();
        let mut memory_type = abi::TRITONSERVER_MEMORY_CPU;
        let mut memory_type_id = 0;
        // SAFETY: the output belongs to the live response, the results are writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_OutputBuffer(
                output,
                &raw mut buffer,
                byte_count as u64,
                &raw mut memory_type,
                &raw mut memory_type_id,
            ))?;
            // The buffer belongs to the response, which stays borrowed as long as the wrapper lives.
            Buffer::new(buffer, byte_count, memory_type, name)
        }
    }

    /// Sends it as the last response of its request, or with more to come.
    pub(crate) fn send(self, is_final: bool) -> Result<(), Error> {
        self.dispatch(flags(is_final), ptr::null_mut())
    }

    /// Sends the error in its place. Nobody is left to be told of a failure to do so, except the log.
    pub(crate) fn fail(self, error: Error, is_final: bool) {
        let raw = error.into_raw();
        if let Err(refused) = self.dispatch(flags(is_final), raw) {
            crate::error!("failed to send an error response: {refused}");
        }
        if !raw.is_null() {
            // SAFETY: sending does not take ownership of the error, so it is still ours.
            unsafe { abi::TRITONSERVER_ErrorDelete(raw) };
        }
    }

    fn dispatch(self, flags: u32, error: *mut abi::TRITONSERVER_Error) -> Result<(), Error> {
        let raw = self.raw;
        // Sending consumes the response whatever it returns.
        std::mem::forget(self);
        // SAFETY: the response is live and ours until this call.
        unsafe { Error::check(abi::TRITONBACKEND_ResponseSend(raw.as_ptr(), flags, error)) }
    }
}

fn flags(is_final: bool) -> u32 {
    if is_final {
        abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL
    } else {
        0
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // SAFETY: live, ours, and never sent.
        let deleted = unsafe { Error::check(abi::TRITONBACKEND_ResponseDelete(self.raw.as_ptr())) };
        if let Err(error) = deleted {
            crate::error!("failed to delete a response: {error}");
        }
    }
}

/// Memory of an output or a state, to be filled from front to back, or all at once by [`as_uninit`](Self::as_uninit).
pub struct Buffer<'r> {
    bytes: &'r mut [MaybeUninit<u8>],
    filled: usize,
}

impl Buffer<'_> {
    /// # Safety
    /// `buffer` has room for `byte_count` bytes, which nobody else uses during the wrapper's life, if `memory_type` is main memory.
    unsafe fn new(
        buffer: *mut c_void,
        byte_count: usize,
        memory_type: abi::TRITONSERVER_MemoryType,
        name: &CStr,
    ) -> Result<Self, Error> {
        if memory_type == abi::TRITONSERVER_MEMORY_GPU {
            return Err(Error::unsupported(format!(
                "buffer for '{}' is in GPU memory, which this backend cannot write",
                name.to_string_lossy()
            )));
        }
        if byte_count == 0 {
            return Ok(Buffer {
                bytes: &mut [],
                filled: 0,
            });
        }
        if buffer.is_null() {
            return Err(Error::internal(format!(
                "server gave no buffer for '{}'",
                name.to_string_lossy()
            )));
        }
        // SAFETY: by this function's contract; MaybeUninit asks nothing of the contents.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast(), byte_count) };
        Ok(Buffer { bytes, filled: 0 })
    }

    /// Copies `source` behind what was written before.
    ///
    /// # Errors
    /// `Internal` if it does not fit.
    pub fn write(&mut self, source: &[u8]) -> Result<(), Error> {
        let end = self.filled.checked_add(source.len());
        let target = end.and_then(|end| self.bytes.get_mut(self.filled..end));
        let Some(target) = target else {
            return Err(Error::internal(format!(
                "{} bytes do not fit behind {} of {}",
                source.len(),
                self.filled,
                self.bytes.len()
            )));
        };
        // SAFETY: both are slices of the same length, and the target is borrowed uniquely, so they do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr().cast(), source.len());
        }
        self.filled += source.len();
        Ok(())
    }

    /// Fills what is left with zeros.
    pub fn zero_rest(&mut self) {
        for byte in self.bytes.iter_mut().skip(self.filled) {
            byte.write(0);
        }
        self.filled = self.bytes.len();
    }

    /// Whether all of it was written.
    pub fn is_full(&self) -> bool {
        self.filled == self.bytes.len()
    }

    /// All of it, for a framework to write into.
    pub fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        self.bytes
    }
}

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
        let mut buffer: *mut c_void = ptr::null_mut();
        let mut memory_type = abi::TRITONSERVER_MEMORY_CPU;
        let mut memory_type_id = 0;
        // SAFETY: the state is live until updated, the results are writable, and the wrapper stays borrowed as long as its buffer.
        unsafe {
            Error::check(abi::TRITONBACKEND_StateBuffer(
                self.raw.as_ptr(),
                &raw mut buffer,
                byte_count as u64,
                &raw mut memory_type,
                &raw mut memory_type_id,
            ))?;
            Buffer::new(buffer, byte_count, memory_type, c"a sequence state")
        }
    }

    /// Makes the value the one that the sequence's next request gets.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn update(self) -> Result<(), Error> {
        // SAFETY: live, and consumed by this call.
        unsafe { Error::check(abi::TRITONBACKEND_StateUpdate(self.raw.as_ptr())) }
    }
}
