//! The response allocator: where the server asks for the memory of outputs. One for all calls of
//! the library, never deleted (see the folder's module).

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use conch_abi as abi;
use conch_memory::MemoryPlace;

use super::calls::{Call, CallNumber};
use super::memory::Allocation;
use crate::Error;
use crate::device::{place_of, raw_kind};
use crate::guard::guard;
use crate::input::borrow;

/// The server's object.
#[derive(Clone, Copy)]
struct Allocator(NonNull<abi::TRITONSERVER_ResponseAllocator>);

// SAFETY: requests of all threads may refer to one allocator.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

/// The allocator, for a request that is being made.
///
/// # Errors
/// Whatever the server reports, each time anew.
pub(super) fn allocator() -> Result<*mut abi::TRITONSERVER_ResponseAllocator, Error> {
    static ALLOCATOR: OnceLock<Result<Allocator, Error>> = OnceLock::new();
    let made = ALLOCATOR.get_or_init(make).as_ref();
    made.map(|allocator| allocator.0.as_ptr())
        .map_err(Clone::clone)
}

fn make() -> Result<Allocator, Error> {
    let mut raw = ptr::null_mut();
    // SAFETY: the result is writable; the functions have the types of the header and stay where
    // they are, as the library is kept in memory.
    unsafe {
        Error::check(abi::TRITONSERVER_ResponseAllocatorNew(
            &raw mut raw,
            Some(allocate),
            Some(free),
            None,
        ))?;
        Error::check(abi::TRITONSERVER_ResponseAllocatorSetQueryFunction(
            raw,
            Some(query),
        ))?;
    }
    let raw = NonNull::new(raw);
    raw.map(Allocator)
        .ok_or_else(|| Error::internal("server gave a null response allocator"))
}

/// The call that the server asks for.
fn call_of(userp: *mut c_void) -> Result<std::sync::Arc<Call>, Error> {
    Call::find(CallNumber::from_pointer(userp))
        .ok_or_else(|| Error::internal("memory for an output of a call that is over"))
}

/// # Safety
/// As of `TRITONSERVER_ResponseAllocatorAllocFn_t`; `userp` is the number of a call.
unsafe extern "C" fn allocate(
    _: *mut abi::TRITONSERVER_ResponseAllocator,
    name: *const c_char,
    byte_count: usize,
    memory_type: abi::TRITONSERVER_MemoryType,
    memory_type_id: i64,
    userp: *mut c_void,
    buffer: *mut *mut c_void,
    buffer_userp: *mut *mut c_void,
    actual_memory_type: *mut abi::TRITONSERVER_MemoryType,
    actual_memory_type_id: *mut i64,
) -> *mut abi::TRITONSERVER_Error {
    guard(|| {
        let (mut address, mut attached) = (ptr::null_mut(), ptr::null_mut());
        let mut place = MemoryPlace::CPU;
        if byte_count > 0 {
            // SAFETY: null or NUL-terminated, during the call.
            let name = unsafe { borrow(name) };
            let preferred = place_of(memory_type, memory_type_id)?;
            let memory = call_of(userp)?.allocate(name, byte_count, preferred)?;
            if memory.len() < byte_count || memory.address().is_null() {
                return Err(Error::internal(format!(
                    "{} bytes of memory were given for output '{}', which has {byte_count}",
                    memory.len(),
                    name.to_string_lossy()
                )));
            }
            (address, place) = (memory.address(), memory.place());
            attached = Allocation::into_raw(memory);
        }
        // SAFETY: the server's results are writable.
        unsafe {
            buffer.write(address.cast());
            buffer_userp.write(attached);
            actual_memory_type.write(raw_kind(place.kind));
            actual_memory_type_id.write(place.id);
        }
        Ok(())
    })
}

/// # Safety
/// As of `TRITONSERVER_ResponseAllocatorReleaseFn_t`, for what `allocate` gave.
unsafe extern "C" fn free(
    _: *mut abi::TRITONSERVER_ResponseAllocator,
    _: *mut c_void,
    buffer_userp: *mut c_void,
    _: usize,
    _: abi::TRITONSERVER_MemoryType,
    _: i64,
) -> *mut abi::TRITONSERVER_Error {
    guard(|| {
        // SAFETY: what `allocate` attached, or null; the server gives it back once.
        unsafe { Allocation::free(buffer_userp) };
        Ok(())
    })
}

/// # Safety
/// As of `TRITONSERVER_ResponseAllocatorQueryFn_t`; `userp` is the number of a call.
unsafe extern "C" fn query(
    _: *mut abi::TRITONSERVER_ResponseAllocator,
    userp: *mut c_void,
    _: *const c_char,
    _: *mut usize,
    memory_type: *mut abi::TRITONSERVER_MemoryType,
    memory_type_id: *mut i64,
) -> *mut abi::TRITONSERVER_Error {
    guard(|| {
        // SAFETY: both are the server's, readable and writable during the call.
        unsafe {
            let preferred = place_of(memory_type.read(), memory_type_id.read())?;
            let place = call_of(userp)?.place(preferred);
            memory_type.write(raw_kind(place.kind));
            memory_type_id.write(place.id);
        }
        Ok(())
    })
}
