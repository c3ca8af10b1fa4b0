//! The functions of bindings.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use serde_json::json;

use crate::io_binding::{IoBinding, OutputBinding};
use crate::real::{Failure, Raw, Status, check, real, status};
use crate::record::record;
use crate::{memory, run, session};

/// Bindings that are not released, by address: their session.
fn live() -> MutexGuard<'static, HashMap<usize, usize>> {
    static LIVE: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bindings of a session that are not released.
fn live_count(session: Raw) -> usize {
    let live = live();
    let sessions = live.values();
    sessions.filter(|other| **other == session.addr()).count()
}

unsafe extern "C" fn create(session: Raw, binding: *mut *mut IoBinding) -> Status {
    let made = Box::into_raw(Box::new(IoBinding {
        session,
        inputs: Vec::new(),
        outputs: Vec::new(),
        on_device: Vec::new(),
        made: Vec::new(),
    }));
    live().insert(made.addr(), session.addr());
    // SAFETY: the result is writable.
    unsafe { binding.write(made) };
    ptr::null_mut()
}

unsafe extern "C" fn release(binding: *mut IoBinding) {
    if live().remove(&binding.addr()).is_some() {
        // SAFETY: made by `create` and live until now.
        unsafe {
            clear_outputs(binding);
            drop(Box::from_raw(binding));
        }
    }
}

/// # Safety
/// The binding is live, or its address is no binding's.
unsafe fn get<'b>(binding: *mut IoBinding) -> Result<&'b mut IoBinding, Failure> {
    if !live().contains_key(&binding.addr()) {
        return Err(Failure::Double(
            "misuse: a binding that was released".to_owned(),
        ));
    }
    // SAFETY: live, by the check; one thread uses it, by the C API's contract.
    Ok(unsafe { &mut *binding })
}

/// Remembers a value that lies on a device.
fn keep_device_value(binding: &mut IoBinding, value: Raw) {
    if memory::value(value).is_some() {
        binding.on_device.push(value);
    }
}

/// # Safety
/// As [`get`]; the name is a C string.
unsafe fn bind(
    binding: *mut IoBinding,
    name: *const c_char,
    output: OutputBinding,
) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let (binding, name) = unsafe { (get(binding)?, CStr::from_ptr(name).to_owned()) };
    if let OutputBinding::Value(value) = output {
        keep_device_value(binding, value);
    }
    binding.outputs.retain(|(known, _)| *known != name);
    binding.outputs.push((name, output));
    Ok(())
}

unsafe extern "C" fn bind_input(
    binding: *mut IoBinding,
    name: *const c_char,
    value: Raw,
) -> Status {
    status((|| {
        // SAFETY: the binding is live; the name is a C string.
        let (binding, name) = unsafe { (get(binding)?, CStr::from_ptr(name).to_owned()) };
        binding.inputs.retain(|(known, _)| *known != name);
        binding.inputs.push((name, value));
        keep_device_value(binding, value);
        Ok(())
    })())
}

unsafe extern "C" fn bind_output(
    binding: *mut IoBinding,
    name: *const c_char,
    value: Raw,
) -> Status {
    // SAFETY: the contracts are the same.
    status(unsafe { bind(binding, name, OutputBinding::Value(value)) })
}

unsafe extern "C" fn bind_to_device(
    binding: *mut IoBinding,
    name: *const c_char,
    info: Raw,
) -> Status {
    let output = memory::device_of(info).map_or(OutputBinding::Host, OutputBinding::Device);
    // SAFETY: the contracts are the same.
    status(unsafe { bind(binding, name, output) })
}

unsafe extern "C" fn values(
    binding: *mut IoBinding,
    allocator: Raw,
    list: *mut *mut Raw,
    count: *mut usize,
) -> Status {
    status((|| {
        // SAFETY: the binding is live.
        let binding = unsafe { get(binding)? };
        let mut array = ptr::null_mut();
        let len = binding.made.len().max(1) * size_of::<Raw>();
        // SAFETY: the allocator is the real library's; its memory is as long as asked for; the
        // results are writable.
        unsafe {
            check(real()?.allocate(allocator, len, &raw mut array))?;
            let array = array.cast::<Raw>();
            ptr::copy_nonoverlapping(binding.made.as_ptr(), array, binding.made.len());
            list.write(array);
            count.write(binding.made.len());
        }
        // They are the caller's from now on.
        binding.made.clear();
        Ok(())
    })())
}

unsafe extern "C" fn clear_inputs(binding: *mut IoBinding) {
    // SAFETY: the binding is live.
    if let Ok(binding) = unsafe { get(binding) } {
        binding.inputs.clear();
        binding.on_device.clear();
    }
}

unsafe extern "C" fn clear_outputs(binding: *mut IoBinding) {
    // SAFETY: the binding is live, or was until its caller took it out.
    let Some(binding) = (unsafe { binding.as_mut() }) else {
        return;
    };
    binding.outputs.clear();
    for value in binding.made.drain(..) {
        // SAFETY: nobody has taken it.
        unsafe { memory::release_value(value) };
    }
}

unsafe extern "C" fn release_session(session: Raw) {
    if session::forget(session) {
        record(&json!({
            "event": "session_end",
            "live_bindings": live_count(session),
            "live_values": memory::live_count(),
        }));
    }
    if let Ok(real) = real() {
        // SAFETY: the contracts are the same.
        unsafe { real.release_session(session) };
    }
}

unsafe extern "C" fn run_bound(session: Raw, options: Raw, binding: *mut IoBinding) -> Status {
    status((|| {
        // SAFETY: the binding is live.
        let binding = unsafe { get(binding)? };
        if binding.session != session {
            return Err(Failure::Double(
                "misuse: a binding of another session".to_owned(),
            ));
        }
        // ONNX Runtime would hold them itself; whoever relies on that can as well hold memory that
        // is gone.
        if binding
            .on_device
            .iter()
            .any(|value| memory::value(*value).is_none())
        {
            return Err(Failure::Double(
                "misuse: a bound value was released".to_owned(),
            ));
        }
        // SAFETY: the session is live, and so are the values that are bound.
        binding.made = unsafe { run::run(session, options, binding)? };
        Ok(())
    })())
}

/// The functions of this module, by their index in the table.
pub fn functions() -> [(usize, *const c_void); 10] {
    [
        (95, release_session as *const c_void),
        (133, run_bound as *const c_void),
        (134, create as *const c_void),
        (135, release as *const c_void),
        (136, bind_input as *const c_void),
        (137, bind_output as *const c_void),
        (138, bind_to_device as *const c_void),
        (140, values as *const c_void),
        (141, clear_inputs as *const c_void),
        (142, clear_outputs as *const c_void),
    ]
}
