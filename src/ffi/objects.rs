//! Small value objects that both sides make and delete: messages, parameters, buffer attributes.

use conch_abi as abi;
use conch_engine::Error;
use conch_memory::{Kind, View};
use std::ffi::{CString, c_void};

use crate::boundary::{Tag, handles};

handles! {
    TRITONSERVER_Message => Message, "message", tagged;
    TRITONSERVER_Parameter => Parameter, "parameter", tagged;
    TRITONSERVER_BufferAttributes => BufferAttributes, "buffer attributes", tagged;
}

/// A JSON document. Owned by whoever the function that returned it says.
#[repr(C)]
pub(crate) struct Message {
    tag: Tag<abi::TRITONSERVER_Message>,
    /// Ends with a NUL that is not part of it: some callers read it as a C string.
    bytes: Vec<u8>,
}

impl Message {
    pub(crate) fn new(json: impl Into<Vec<u8>>) -> Message {
        let mut bytes = json.into();
        bytes.push(0);
        Message {
            tag: Tag::default(),
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
pub(crate) struct Parameter {
    tag: Tag<abi::TRITONSERVER_Parameter>,
    pub(crate) name: CString,
    pub(crate) value: Value,
}

impl Parameter {
    pub(crate) fn new(name: CString, value: Value) -> Parameter {
        Parameter {
            tag: Tag::default(),
            name,
            value,
        }
    }
}

/// Bytes are borrowed from the caller, who keeps them while the parameter lives.
pub(crate) enum Value {
    Text(CString),
    // No argument of today's has one of these three types: that is all that is said of them.
    Int(#[expect(dead_code, reason = "only its type is looked at")] i64),
    Bool(#[expect(dead_code, reason = "only its type is looked at")] bool),
    Double(#[expect(dead_code, reason = "only its type is looked at")] f64),
    Bytes(*const c_void, u64),
}

impl Value {
    /// The word of `TRITONSERVER_ParameterTypeString`.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self {
            Value::Text(_) => "STRING",
            Value::Int(_) => "INT",
            Value::Bool(_) => "BOOL",
            Value::Double(_) => "DOUBLE",
            Value::Bytes(..) => "BYTES",
        }
    }
}

/// Where a buffer lies and how long it is.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BufferAttributes {
    pub(crate) tag: Tag<abi::TRITONSERVER_BufferAttributes>,
    pub(crate) byte_size: u64,
    pub(crate) memory_type: u32,
    pub(crate) memory_type_id: i64,
    pub(crate) cuda_ipc_handle: Option<CudaIpcHandle>,
}

/// A `cudaIpcMemHandle_t`: bytes that another process opens.
pub(crate) type CudaIpcHandle = [u8; 64];

impl Default for BufferAttributes {
    fn default() -> BufferAttributes {
        BufferAttributes {
            tag: Tag::default(),
            byte_size: 0,
            memory_type: Kind::Cpu as u32,
            memory_type_id: 0,
            cuda_ipc_handle: None,
        }
    }
}

impl BufferAttributes {
    pub(crate) fn of_view(view: &View) -> BufferAttributes {
        BufferAttributes {
            // Lengths in memory always fit 64 bits.
            byte_size: view.len() as u64,
            memory_type: view.place().kind as u32,
            memory_type_id: view.place().id,
            ..BufferAttributes::default()
        }
    }
}

/// The kind of memory with this number of the C API.
pub(crate) fn kind_of(memory_type: u32) -> Result<Kind, Error> {
    match memory_type {
        0 => Ok(Kind::Cpu),
        1 => Ok(Kind::CpuPinned),
        2 => Ok(Kind::Gpu),
        other => Err(Error::invalid(format!("unknown memory type {other}"))),
    }
}
