//! Responses, their outputs, and the states of a sequence.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use conch_abi as abi;
use conch_memory::MemoryPlace;

use crate::device::{MemoryTarget, place_of, raw_kind};
use crate::error::c_string;
use crate::library::keep_loaded;
use crate::owned_response::OwnedResponse;
use crate::slot::{Outcome, Slot};
use crate::symbol::ServerFunction;
use crate::{Code, DataType, Error, Input, TensorBytes, TensorMemory};

/// A response to a request of the running execution. Dropped unsent, it is thrown away. Its outputs
/// and parameters are those of [`Outgoing`].
pub struct Response<'b> {
    outgoing: Outgoing,
    slot: &'b Slot,
}

impl<'b> Response<'b> {
    /// # Safety
    /// `raw` is null or a fresh response, which the wrapper owns from now on, of the request that
    /// `slot` stands for.
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

    /// Keeps the response with its request, beyond the call that brought the batch: for
    /// [`Request::take_kept`](crate::Request::take_kept) when the batch is finished. Its outputs do
    /// not move meanwhile. A request keeps one response; another one takes its place.
    pub fn keep(self) {
        self.slot.kept.set(Some(self.outgoing.raw));
    }

    /// The response that `slot` keeps, if there is one.
    pub(crate) fn resume(slot: &'b Slot) -> Option<Self> {
        let raw = slot.kept.take()?;
        let outgoing = Outgoing { raw };
        Some(Response { outgoing, slot })
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
    raw: OwnedResponse,
}

impl Outgoing {
    /// # Safety
    /// `raw` is null or a fresh response, which the wrapper owns from now on.
    pub(crate) unsafe fn new(raw: *mut abi::TRITONBACKEND_Response) -> Result<Self, Error> {
        // SAFETY: by this function's contract.
        let raw = unsafe { OwnedResponse::new(raw)? };
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

    /// As [`set_text`](Self::set_text); without effect in an older server, which has no such
    /// function.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn set_double_if_known(&mut self, name: &CStr, value: f64) -> Result<(), Error> {
        type Set = unsafe extern "C" fn(
            *mut abi::TRITONBACKEND_Response,
            *const c_char,
            f64,
        ) -> *mut abi::TRITONSERVER_Error;
        // SAFETY: the type is that of the header.
        static SET: ServerFunction<Set> =
            unsafe { ServerFunction::new(c"TRITONBACKEND_ResponseSetDoubleParameter") };
        let Some(set) = SET.find() else { return Ok(()) };
        // SAFETY: the response is live and ours; the name is NUL-terminated and copied.
        unsafe { Error::check(set(self.raw.as_ptr(), name.as_ptr(), value)) }
    }

    /// Adds an output and its buffer of `byte_count` bytes in main memory, to be filled before the
    /// response is sent. Every call makes an output with memory of its own, so that the buffers of
    /// several may be held at the same time.
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
        let place = MemoryPlace::CPU;
        let given = self.add_output(name, data_type, shape, byte_count, place)?;
        // SAFETY: the buffer belongs to the response, which stays borrowed as long as the wrapper
        // lives.
        unsafe { Buffer::new(given.base, byte_count, given.memory_type, name) }
    }

    /// Adds an output of an input's type, shape and size. Otherwise as [`output`](Self::output).
    ///
    /// # Errors
    /// As [`output`](Self::output).
    pub fn output_like(&self, name: &CStr, input: &Input<'_>) -> Result<Buffer<'_>, Error> {
        self.output(name, input.data_type(), input.shape(), input.byte_count())
    }

    /// Adds an output with the bytes of `memory`, which lies in host memory. A server that can
    /// sends them from there, and drops `memory` afterwards, on any thread; else they are copied.
    /// Others may write the memory meanwhile: the client gets what lies there at that moment.
    ///
    /// # Errors
    /// `Unsupported` if `memory` lies on a device, or the server insists on GPU memory; otherwise
    /// whatever the server reports.
    pub fn output_from(
        &self,
        name: &CStr,
        data_type: DataType,
        shape: &[i64],
        memory: TensorMemory,
    ) -> Result<(), Error> {
        let output = self.new_output(name, data_type, shape)?;
        let Some(memory) = lend(output, memory)? else {
            return Ok(());
        };
        let bytes = memory
            .bytes()
            .ok_or_else(|| Error::unsupported("an output lies on a device"))?;
        let given = buffer_of(output, bytes.len(), MemoryPlace::CPU)?;
        // SAFETY: the buffer belongs to the response, which stays borrowed as long as the wrapper
        // lives.
        let mut buffer = unsafe { Buffer::new(given.base, bytes.len(), given.memory_type, name)? };
        buffer.write(bytes)
    }

    /// Adds an output and memory for its `byte_count` bytes, in `preferred` or wherever the server
    /// puts it. Otherwise as [`output`](Self::output).
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn output_in(
        &self,
        name: &CStr,
        data_type: DataType,
        shape: &[i64],
        byte_count: usize,
        preferred: MemoryPlace,
    ) -> Result<MemoryTarget<'_>, Error> {
        let given = self.add_output(name, data_type, shape, byte_count, preferred)?;
        let place = place_of(given.memory_type, given.memory_type_id)?;
        // SAFETY: the buffer belongs to the response, which stays borrowed as long as the wrapper
        // lives.
        unsafe { MemoryTarget::new(given.base, byte_count, place, name) }
    }

    fn add_output(
        &self,
        name: &CStr,
        data_type: DataType,
        shape: &[i64],
        byte_count: usize,
        preferred: MemoryPlace,
    ) -> Result<OutputMemory, Error> {
        let output = self.new_output(name, data_type, shape)?;
        buffer_of(output, byte_count, preferred)
    }

    fn new_output(
        &self,
        name: &CStr,
        data_type: DataType,
        shape: &[i64],
    ) -> Result<*mut abi::TRITONBACKEND_Output, Error> {
        let mut output = ptr::null_mut();
        // SAFETY: the response is live and ours; name and shape are copied; the output belongs to
        // the response, and the result is writable.
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
        Ok(output)
    }

    /// Sends it as the last response of its request, or with more to come.
    pub(crate) fn send(self, is_final: bool) -> Result<(), Error> {
        self.dispatch(flags(is_final), ptr::null_mut())
    }

    /// Sends the error in its place. Nobody is left to be told of a failure to do so, except the
    /// log.
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
        // Sending consumes the response whatever it returns.
        let raw = self.raw.into_raw();
        // SAFETY: the response is live and ours until this call.
        unsafe { Error::check(abi::TRITONBACKEND_ResponseSend(raw, flags, error)) }
    }
}

/// An output's memory, as the server gave it.
struct OutputMemory {
    base: *mut c_void,
    memory_type: abi::TRITONSERVER_MemoryType,
    memory_type_id: i64,
}

/// The server's buffer for an output of a live response.
fn buffer_of(
    output: *mut abi::TRITONBACKEND_Output,
    byte_count: usize,
    preferred: MemoryPlace,
) -> Result<OutputMemory, Error> {
    let mut given = OutputMemory {
        base: ptr::null_mut(),
        memory_type: raw_kind(preferred.kind),
        memory_type_id: preferred.id,
    };
    // SAFETY: the response is live and ours, the output its own; the results are writable.
    unsafe {
        Error::check(abi::TRITONBACKEND_OutputBuffer(
            output,
            &raw mut given.base,
            byte_count as u64,
            &raw mut given.memory_type,
            &raw mut given.memory_type_id,
        ))?;
    }
    Ok(given)
}

type Lend = unsafe extern "C" fn(
    *mut abi::TRITONBACKEND_Output,
    *const c_void,
    u64,
    Option<unsafe extern "C" fn(*mut c_void)>,
    *mut c_void,
) -> *mut abi::TRITONSERVER_Error;
// Triton has no such function.
// SAFETY: the type is that of the header.
static LEND: ServerFunction<Lend> = unsafe { ServerFunction::new(c"CONCH_OutputLend") };

/// Lends the server the memory of an output of a live response; gives it back if the server does
/// not want it.
fn lend(
    output: *mut abi::TRITONBACKEND_Output,
    memory: TensorMemory,
) -> Result<Option<TensorMemory>, Error> {
    let Some(lend) = LEND.find().filter(|_| memory.place().is_host()) else {
        return Ok(Some(memory));
    };
    // The server calls `release` when it has sent the bytes, which may be after the end of the
    // model.
    keep_loaded();
    let (base, len) = (memory.address().cast_const().cast(), memory.len() as u64);
    let userp = Box::into_raw(Box::new(memory));
    // SAFETY: the output is live; the bytes are readable until `release` drops the memory.
    let lent = unsafe { Error::check(lend(output, base, len, Some(release), userp.cast())) };
    let Err(error) = lent else { return Ok(None) };
    // SAFETY: on an error the server does not call `release`: it is ours alone.
    let memory = *unsafe { Box::from_raw(userp) };
    match error.code() {
        Code::Unsupported => Ok(Some(memory)),
        _ => Err(error),
    }
}

unsafe extern "C" fn release(userp: *mut c_void) {
    // SAFETY: what `lend` gave; the server calls this once.
    drop(unsafe { Box::from_raw(userp.cast::<TensorMemory>()) });
}

fn flags(is_final: bool) -> u32 {
    if is_final {
        abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL
    } else {
        0
    }
}

/// Memory of an output or a state, to be filled from front to back, or all at once by address.
///
/// It may lie in memory that clients share, where it may overlap with other buffers and with
/// inputs, and change at any time. So it is only written, never borrowed.
pub struct Buffer<'r> {
    base: NonNull<u8>,
    len: usize,
    filled: usize,
    response: PhantomData<&'r mut u8>,
}

impl Buffer<'_> {
    /// # Safety
    /// `buffer` is writable for `byte_count` bytes during the wrapper's life, if `memory_type` is
    /// main memory.
    pub(crate) unsafe fn new(
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
        let base = match NonNull::new(buffer.cast()) {
            Some(base) => base,
            None if byte_count == 0 => NonNull::dangling(),
            None => {
                return Err(Error::internal(format!(
                    "server gave no buffer for '{}'",
                    name.to_string_lossy()
                )));
            }
        };
        Ok(Buffer {
            base,
            len: byte_count,
            filled: 0,
            response: PhantomData,
        })
    }

    /// Memory of an output that the server was asked to put on a device; the target itself if it
    /// did.
    ///
    /// # Errors
    /// The target, on a device.
    pub fn on_host(target: MemoryTarget<'_>) -> Result<Buffer<'_>, MemoryTarget<'_>> {
        let len = target.len();
        let base = target.into_host()?;
        Ok(Buffer {
            base: NonNull::new(base.cast()).unwrap_or(NonNull::dangling()),
            len,
            filled: 0,
            response: PhantomData,
        })
    }

    /// Copies `source` behind what was written before.
    ///
    /// # Errors
    /// `Internal` if it does not fit.
    pub fn write<'s>(&mut self, source: impl Into<TensorBytes<'s>>) -> Result<(), Error> {
        let source = source.into();
        let room = self.len - self.filled;
        if source.len() > room {
            return Err(Error::internal(format!(
                "{} bytes do not fit behind {} of {}",
                source.len(),
                self.filled,
                self.len
            )));
        }
        // SAFETY: the buffer is writable, and as many bytes are left in it.
        unsafe { source.copy_to_address(self.base.add(self.filled).as_ptr()) };
        self.filled += source.len();
        Ok(())
    }

    /// Fills what is left with zeros.
    pub fn zero_rest(&mut self) {
        // SAFETY: the buffer is writable, and as many bytes are left in it.
        unsafe {
            let rest = self.base.add(self.filled);
            rest.write_bytes(0, self.len - self.filled);
        }
        self.filled = self.len;
    }

    /// Whether all of it was written.
    pub fn is_full(&self) -> bool {
        self.filled == self.len
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for a framework that writes all of it as C does.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(base: *mut u8, len: usize) -> Result<Buffer<'static>, Error> {
        // SAFETY: the tests give memory of that length, which outlives the buffer.
        unsafe { Buffer::new(base.cast(), len, abi::TRITONSERVER_MEMORY_CPU, c"Y") }
    }

    /// As two outputs of a client that placed them, and an input, in one region. Miri says whether
    /// a reference was in the way.
    #[test]
    fn buffers_may_overlap_with_each_other_and_with_inputs() {
        let mut memory = *b"abcdefgh";
        let base = memory.as_mut_ptr();
        let mut first = buffer(base, 6).unwrap();
        // SAFETY: six bytes of the array from the third on.
        let (mut second, input) = unsafe {
            let second = buffer(base.add(2), 6).unwrap();
            (second, TensorBytes::new(base, 4))
        };
        first.write(b"12").unwrap();
        second.write(input).unwrap();
        first.write(input).unwrap();
        assert!(first.is_full() && !second.is_full());
        second.zero_rest();
        assert_eq!(&memory, b"1212\x31\x32\0\0");
    }

    #[test]
    fn writes_stay_inside() {
        let mut memory = [9_u8; 4];
        let mut buffer = buffer(memory.as_mut_ptr(), 3).unwrap();
        assert!(buffer.write(b"1234").is_err());
        buffer.write(b"12").unwrap();
        assert!(buffer.write(b"34").is_err());
        buffer.zero_rest();
        assert!(buffer.is_full() && buffer.write(b"").is_ok());
        assert_eq!(memory, [b'1', b'2', 0, 9]);
    }

    #[test]
    fn no_memory_is_an_error_unless_none_is_needed() {
        assert!(buffer(ptr::null_mut(), 1).is_err());
        assert!(buffer(ptr::null_mut(), 0).unwrap().is_full());
    }
}
