//! Small value objects that both sides make and delete: messages, parameters, buffer attributes.

use conch_abi as abi;
use conch_engine::Error;
use conch_engine::shared_memory::cuda_handle;
use conch_memory::{ByteView, MemoryKind};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::boundary::{HandleTag, handles};

handles! {
    TRITONSERVER_Message => JsonMessage, "message", tagged;
    TRITONSERVER_Parameter => NamedParameter, "parameter", tagged;
    TRITONSERVER_BufferAttributes => BufferAttributes, "buffer attributes", tagged;
}

/// A JSON document. Owned by whoever the function that returned it says.
#[repr(C)]
pub(crate) struct JsonMessage {
    tag: HandleTag<abi::TRITONSERVER_Message>,
    /// Ends with a NUL that is not part of it: some callers read it as a C string.
    bytes: Vec<u8>,
}

impl JsonMessage {
    pub(crate) fn new(json: impl Into<Vec<u8>>) -> JsonMessage {
        let mut bytes = json.into();
        bytes.push(0);
        JsonMessage {
            tag: HandleTag::default(),
            bytes,
        }
    }

    /// Without the NUL.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.strip_suffix(&[0]).unwrap_or_default()
    }

    /// The document as text.
    ///
    /// # Errors
    /// INVALID_ARG if it is not UTF-8.
    pub(crate) fn as_str(&self) -> Result<&str, Error> {
        std::str::from_utf8(self.as_bytes())
            .map_err(|_| Error::invalid("message is not valid UTF-8"))
    }
}

/// A named value: a metric's label, or an argument of a load request.
#[repr(C)]
pub(crate) struct NamedParameter {
    tag: HandleTag<abi::TRITONSERVER_Parameter>,
    pub(crate) name: CString,
    pub(crate) value: NamedValue,
}

impl NamedParameter {
    pub(crate) fn new(name: CString, value: NamedValue) -> NamedParameter {
        NamedParameter {
            tag: HandleTag::default(),
            name,
            value,
        }
    }
}

/// Bytes are borrowed from the caller, who keeps them while the parameter lives.
pub(crate) enum NamedValue {
    Text(CString),
    // No argument of today's has one of these three types: that is all that is said of them.
    Int(#[expect(dead_code, reason = "only its type is looked at")] i64),
    Bool(#[expect(dead_code, reason = "only its type is looked at")] bool),
    Double(#[expect(dead_code, reason = "only its type is looked at")] f64),
    Bytes(*const c_void, u64),
}

impl NamedValue {
    /// The word of `TRITONSERVER_ParameterTypeString`.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self {
            NamedValue::Text(_) => "STRING",
            NamedValue::Int(_) => "INT",
            NamedValue::Bool(_) => "BOOL",
            NamedValue::Double(_) => "DOUBLE",
            NamedValue::Bytes(..) => "BYTES",
        }
    }
}

/// Where a buffer lies and how long it is.
#[derive(Clone, Copy, Default)]
pub(crate) struct BufferPlace {
    pub(crate) byte_size: u64,
    /// A number of the C API.
    pub(crate) memory_type: u32,
    pub(crate) memory_type_id: i64,
    pub(crate) cuda_ipc_handle: Option<CudaIpcHandle>,
}

/// A `cudaIpcMemHandle_t`: bytes that another process opens.
pub(crate) type CudaIpcHandle = [u8; 64];

impl BufferPlace {
    pub(crate) fn of_view(view: &ByteView) -> BufferPlace {
        // Only clients' memory on a GPU has one.
        let cuda_ipc_handle = match view.place().kind {
            MemoryKind::Gpu => cuda_handle(view).map(|handle| handle.0),
            _ => None,
        };
        BufferPlace {
            // Lengths in memory always fit 64 bits.
            byte_size: view.len() as u64,
            memory_type: view.place().kind as u32,
            memory_type_id: view.place().id,
            cuda_ipc_handle,
        }
    }
}

/// A [`BufferPlace`] behind a handle. Handles of attributes that the server lends out can be
/// written through like those that the other side made, so every part is atomic.
#[repr(C)]
pub(crate) struct BufferAttributes {
    tag: HandleTag<abi::TRITONSERVER_BufferAttributes>,
    pub(crate) byte_size: AtomicU64,
    pub(crate) memory_type: AtomicU32,
    pub(crate) memory_type_id: AtomicI64,
    has_cuda_ipc_handle: AtomicBool,
    cuda_ipc_handle: [AtomicU8; size_of::<CudaIpcHandle>()],
}

impl Default for BufferAttributes {
    fn default() -> BufferAttributes {
        BufferPlace::default().into()
    }
}

impl From<BufferPlace> for BufferAttributes {
    fn from(place: BufferPlace) -> BufferAttributes {
        BufferAttributes {
            tag: HandleTag::default(),
            byte_size: place.byte_size.into(),
            memory_type: place.memory_type.into(),
            memory_type_id: place.memory_type_id.into(),
            has_cuda_ipc_handle: place.cuda_ipc_handle.is_some().into(),
            cuda_ipc_handle: place.cuda_ipc_handle.unwrap_or([0; _]).map(AtomicU8::new),
        }
    }
}

/// Relaxed throughout: whoever hands the attributes to another thread orders that.
impl BufferAttributes {
    /// What they say now.
    pub(crate) fn load(&self) -> BufferPlace {
        BufferPlace {
            byte_size: self.byte_size.load(Ordering::Relaxed),
            memory_type: self.memory_type.load(Ordering::Relaxed),
            memory_type_id: self.memory_type_id.load(Ordering::Relaxed),
            cuda_ipc_handle: self.has_cuda_ipc_handle.load(Ordering::Relaxed).then(|| {
                let byte = |index: usize| self.cuda_ipc_handle[index].load(Ordering::Relaxed);
                std::array::from_fn(byte)
            }),
        }
    }

    /// Replaces all but the CUDA handle.
    pub(crate) fn store(&self, byte_size: u64, memory_type: u32, memory_type_id: i64) {
        self.byte_size.store(byte_size, Ordering::Relaxed);
        self.memory_type.store(memory_type, Ordering::Relaxed);
        self.memory_type_id.store(memory_type_id, Ordering::Relaxed);
    }

    pub(crate) fn set_cuda_ipc_handle(&self, handle: Option<CudaIpcHandle>) {
        for (byte, new) in self.cuda_ipc_handle.iter().zip(handle.unwrap_or([0; _])) {
            byte.store(new, Ordering::Relaxed);
        }
        self.has_cuda_ipc_handle
            .store(handle.is_some(), Ordering::Relaxed);
    }

    /// The address of the CUDA handle's bytes; null if there is none.
    pub(crate) fn cuda_ipc_handle(&self) -> *mut c_void {
        if self.has_cuda_ipc_handle.load(Ordering::Relaxed) {
            std::ptr::from_ref(&self.cuda_ipc_handle).cast_mut().cast()
        } else {
            std::ptr::null_mut()
        }
    }
}

/// The kind of memory with this number of the C API.
pub(crate) fn kind_of(memory_type: u32) -> Result<MemoryKind, Error> {
    match memory_type {
        0 => Ok(MemoryKind::Cpu),
        1 => Ok(MemoryKind::CpuPinned),
        2 => Ok(MemoryKind::Gpu),
        other => Err(Error::invalid(format!("unknown memory type {other}"))),
    }
}
