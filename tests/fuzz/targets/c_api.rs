//! The path of a request through the C API: any order of calls on a request, with data that comes
//! or does not, and executions by a real backend. CONCH_FUZZ_BACKENDS is a directory of backends
//! with `identity`, CONCH_FUZZ_MODELS a repository with models `plain`, `batched` and `text`.
//!
//! An embedder may call in any order, but it keeps to what the header says of memory: buffers live
//! until the request is released, and a request that the server has is left alone.
#![no_main]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use conch_abi::*;
// Links the functions that `conch_abi` declares.
use conch_ffi as _;
use libfuzzer_sys::fuzz_target;

const NAMES: [&CStr; 6] = [c"INPUT0", c"INPUT1", c"OUTPUT0", c"", c"\xff", c"raw_input"];
const MODELS: [&CStr; 4] = [c"plain", c"batched", c"text", c"absent"];
/// Bytes that inputs may have; zeros.
static DATA: [u8; 4096] = [0; 4096];
const DIMS_MAX: usize = 4;
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What happens to a request that the server has.
enum RequestEvent {
    Response { is_final: bool },
    Released,
}

struct Embedder {
    server: *mut TRITONSERVER_Server,
    allocator: *mut TRITONSERVER_ResponseAllocator,
    /// For ever: a thread of the server may still be inside of it when its message has come.
    sender: &'static Sender<RequestEvent>,
    receiver: Receiver<RequestEvent>,
}

// SAFETY: the objects may be used from any thread; the fuzzer has one.
unsafe impl Send for Embedder {}
// SAFETY: as above.
unsafe impl Sync for Embedder {}

/// The bytes that say what is called.
struct FuzzInput<'a>(&'a [u8]);

impl FuzzInput<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_at_checked(8)?;
        self.0 = rest;
        Some(u64::from_le_bytes(first.try_into().ok()?))
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        list.get(usize::from(self.byte()?) % list.len()).copied()
    }

    /// Up to 200 bytes without a null.
    fn text(&mut self) -> Option<CString> {
        let length = usize::from(self.byte()?) % 200;
        let length = length.min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        let text = text.iter().copied().filter(|byte| *byte != 0);
        CString::new(text.collect::<Vec<_>>()).ok()
    }

    fn shape(&mut self) -> Option<Vec<i64>> {
        let count = usize::from(self.byte()?) % (DIMS_MAX + 1);
        (0..count)
            .map(|_| match self.byte()? {
                255 => self.number().map(|dim| dim as i64),
                small => Some(i64::from(small) - 2),
            })
            .collect()
    }
}

/// Whether it went well; the error is deleted, its message read.
fn ok(error: *mut TRITONSERVER_Error) -> bool {
    if error.is_null() {
        return true;
    }
    // SAFETY: an error is the caller's.
    unsafe {
        let message = CStr::from_ptr(TRITONSERVER_ErrorMessage(error));
        assert!(!message.to_bytes().is_empty(), "an error without a message");
        TRITONSERVER_ErrorDelete(error);
    }
    false
}

unsafe extern "C" fn allocate(
    _: *mut TRITONSERVER_ResponseAllocator,
    _: *const c_char,
    byte_size: usize,
    _: TRITONSERVER_MemoryType,
    _: i64,
    _: *mut c_void,
    buffer: *mut *mut c_void,
    buffer_userp: *mut *mut c_void,
    memory_type: *mut TRITONSERVER_MemoryType,
    memory_type_id: *mut i64,
) -> *mut TRITONSERVER_Error {
    let bytes = vec![0u8; byte_size].into_boxed_slice();
    // SAFETY: the server gives places for all of them; the bytes are taken back in `release`.
    unsafe {
        *buffer = match byte_size {
            0 => null_mut(),
            _ => Box::into_raw(bytes).cast(),
        };
        *buffer_userp = null_mut();
        *memory_type = TRITONSERVER_MEMORY_CPU;
        *memory_type_id = 0;
    }
    null_mut()
}

unsafe extern "C" fn release(
    _: *mut TRITONSERVER_ResponseAllocator,
    buffer: *mut c_void,
    _: *mut c_void,
    byte_size: usize,
    _: TRITONSERVER_MemoryType,
    _: i64,
) -> *mut TRITONSERVER_Error {
    if !buffer.is_null() {
        let bytes = std::ptr::slice_from_raw_parts_mut(buffer.cast::<u8>(), byte_size);
        // SAFETY: made by `allocate`, with this length.
        drop(unsafe { Box::from_raw(bytes) });
    }
    null_mut()
}

unsafe extern "C" fn answered(
    response: *mut TRITONSERVER_InferenceResponse,
    flags: u32,
    userp: *mut c_void,
) {
    // SAFETY: the sender lives for ever; the response is the callee's.
    unsafe {
        if !response.is_null() {
            ok(TRITONSERVER_InferenceResponseError(response));
            ok(TRITONSERVER_InferenceResponseDelete(response));
        }
        let is_final = flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL != 0;
        let _ = (*userp.cast::<Sender<RequestEvent>>()).send(RequestEvent::Response { is_final });
    }
}

unsafe extern "C" fn released(
    _: *mut TRITONSERVER_InferenceRequest,
    _: u32,
    userp: *mut c_void,
) {
    // SAFETY: the sender lives for ever.
    let _ = unsafe { (*userp.cast::<Sender<RequestEvent>>()).send(RequestEvent::Released) };
}

fn embedder() -> &'static Embedder {
    static STARTED: OnceLock<Embedder> = OnceLock::new();
    STARTED.get_or_init(|| {
        let path = |name: &str| {
            let value = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
            CString::new(value).expect("paths have no null")
        };
        let (mut options, mut server, mut allocator) = (null_mut(), null_mut(), null_mut());
        // SAFETY: places and texts live as long as the calls.
        unsafe {
            assert!(ok(TRITONSERVER_ServerOptionsNew(&mut options)));
            let models = path("CONCH_FUZZ_MODELS");
            assert!(ok(TRITONSERVER_ServerOptionsSetModelRepositoryPath(
                options,
                models.as_ptr()
            )));
            let backends = path("CONCH_FUZZ_BACKENDS");
            assert!(ok(TRITONSERVER_ServerOptionsSetBackendDirectory(
                options,
                backends.as_ptr()
            )));
            assert!(ok(TRITONSERVER_ServerOptionsSetLogInfo(options, false)));
            assert!(ok(TRITONSERVER_ServerNew(&mut server, options)));
            assert!(ok(TRITONSERVER_ServerOptionsDelete(options)));
            assert!(ok(TRITONSERVER_ResponseAllocatorNew(
                &mut allocator,
                Some(allocate),
                Some(release),
                None
            )));
        }
        let (sender, receiver) = channel();
        Embedder {
            server,
            allocator,
            sender: Box::leak(Box::new(sender)),
            receiver,
        }
    })
}

/// One call on `request`; none when the input_left are over.
fn call(
    input_left: &mut FuzzInput<'_>,
    request: *mut TRITONSERVER_InferenceRequest,
) -> Option<()> {
    let name = input_left.of(&NAMES)?.as_ptr();
    // SAFETY: the request is ours, and all pointers live beyond the call, `DATA` for ever.
    unsafe {
        ok(match input_left.byte()? % 19 {
            0 | 1 => {
                let (kind, shape) = (u32::from(input_left.byte()? % 20), input_left.shape()?);
                let count = shape.len() as u64;
                TRITONSERVER_InferenceRequestAddInput(request, name, kind, shape.as_ptr(), count)
            }
            2 | 3 => {
                let length = usize::from(u16::from_le_bytes([input_left.byte()?, input_left.byte()?]));
                let length = length % (DATA.len() + 1);
                let memory = TRITONSERVER_MEMORY_CPU;
                let base = DATA.as_ptr().cast();
                TRITONSERVER_InferenceRequestAppendInputData(request, name, base, length, memory, 0)
            }
            4 => {
                let (memory, policy) = (TRITONSERVER_MEMORY_CPU, input_left.text()?);
                let base = DATA.as_ptr().cast();
                TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
                    request,
                    name,
                    base,
                    16,
                    memory,
                    0,
                    policy.as_ptr(),
                )
            }
            5 => TRITONSERVER_InferenceRequestRemoveInput(request, name),
            6 => TRITONSERVER_InferenceRequestRemoveAllInputs(request),
            7 => TRITONSERVER_InferenceRequestRemoveAllInputData(request, name),
            8 => TRITONSERVER_InferenceRequestAddRequestedOutput(request, name),
            9 => TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, name),
            10 => TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request),
            11 => TRITONSERVER_InferenceRequestSetId(request, input_left.text()?.as_ptr()),
            12 => TRITONSERVER_InferenceRequestSetFlags(request, input_left.byte()?.into()),
            13 => TRITONSERVER_InferenceRequestSetPriorityUInt64(request, input_left.number()?),
            14 => {
                TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, input_left.number()?)
            }
            15 => {
                let id = input_left.text()?;
                TRITONSERVER_InferenceRequestSetCorrelationIdString(request, id.as_ptr())
            }
            16 => TRITONSERVER_InferenceRequestSetCorrelationId(request, input_left.number()?),
            17 => TRITONSERVER_InferenceRequestAddRawInput(request, name),
            _ => {
                let (key, value) = (input_left.text()?, input_left.text()?);
                let (key, value) = (key.as_ptr(), value.as_ptr());
                TRITONSERVER_InferenceRequestSetStringParameter(request, key, value)
            }
        });
    }
    Some(())
}

/// Gives the request to the server and waits until it is ours again.
fn execute(embedder: &Embedder, request: *mut TRITONSERVER_InferenceRequest) {
    let receiver = &embedder.receiver;
    let userp = std::ptr::from_ref(embedder.sender).cast_mut().cast();
    // SAFETY: the sender lives for ever.
    let is_taken = unsafe {
        assert!(ok(TRITONSERVER_InferenceRequestSetReleaseCallback(
            request,
            Some(released),
            userp
        )));
        assert!(ok(TRITONSERVER_InferenceRequestSetResponseCallback(
            request,
            embedder.allocator,
            null_mut(),
            Some(answered),
            userp
        )));
        ok(TRITONSERVER_ServerInferAsync(
            embedder.server,
            request,
            null_mut(),
        ))
    };
    let (mut is_released, mut is_answered) = (!is_taken, !is_taken);
    while !(is_released && is_answered) {
        let event = receiver.recv_timeout(ANSWER_WITHIN);
        match event.expect("a request that was taken is answered and released") {
            RequestEvent::Response { is_final } => {
                assert!(!is_answered, "a response after the final one");
                is_answered = is_final;
            }
            RequestEvent::Released => {
                assert!(!is_released, "released twice");
                is_released = true;
            }
        }
    }
    assert!(receiver.try_recv().is_err(), "something after the end");
}

fuzz_target!(|input: &[u8]| {
    let embedder = embedder();
    let mut input_left = FuzzInput(input);
    let (Some(model), Some(version)) = (input_left.of(&MODELS), input_left.of(&[-1, 1, 2, i64::MIN]))
    else {
        return;
    };
    let mut request = null_mut();
    // SAFETY: the server is there, and the place and the name live as long as the call.
    let is_made = ok(unsafe {
        TRITONSERVER_InferenceRequestNew(&mut request, embedder.server, model.as_ptr(), version)
    });
    if !is_made {
        return;
    }
    while let Some(choice) = input_left.byte() {
        if choice % 8 == 0 {
            execute(embedder, request);
        } else if call(&mut input_left, request).is_none() {
            break;
        }
    }
    execute(embedder, request);
    let mut id = null();
    // SAFETY: the request is ours again.
    unsafe {
        assert!(ok(TRITONSERVER_InferenceRequestId(request, &mut id)));
        assert!(ok(TRITONSERVER_InferenceRequestDelete(request)));
    }
});
