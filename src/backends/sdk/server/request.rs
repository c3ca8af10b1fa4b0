//! Requests to other models.

use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::Arc;

use super::memory::{HostMemory, OutputMemory, TensorMemory};
use crate::correlation::CorrelationId;
use crate::error::c_string;
use crate::parameter::{Parameter, ParameterValue};
use crate::trace::{ChildTrace, RequestTrace, TraceParent};
use crate::{DataType, Error};

/// A request to a model of the server, for [`Server::infer`](super::Server::infer).
pub struct ServerRequest {
    pub(super) model: CString,
    pub(super) version: i64,
    pub(super) id: CString,
    pub(super) correlation: RequestCorrelation,
    pub(super) flags: u32,
    pub(super) priority: u64,
    pub(super) timeout_us: u64,
    pub(super) parameters: Vec<(CString, ParameterValue)>,
    pub(super) inputs: Vec<RequestInput>,
    pub(super) outputs: Vec<CString>,
    pub(super) trace: Option<ChildTrace>,
    pub(super) output_memory: Arc<dyn OutputMemory>,
}

/// A correlation id that belongs to its request.
pub(super) enum RequestCorrelation {
    Number(u64),
    Text(CString),
}

/// One input of a request.
pub(super) struct RequestInput {
    pub(super) name: CString,
    pub(super) data_type: DataType,
    pub(super) shape: Vec<i64>,
    pub(super) memory: TensorMemory,
}

impl ServerRequest {
    /// A request to the latest version of `model` that is ready. Outputs are put into host memory.
    pub fn new(model: &str) -> Self {
        ServerRequest {
            model: c_string(model),
            version: -1,
            id: CString::default(),
            correlation: RequestCorrelation::Number(0),
            flags: 0,
            priority: 0,
            timeout_us: 0,
            parameters: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            trace: None,
            output_memory: Arc::new(HostMemory),
        }
    }

    /// The version of the model; -1 lets the server choose.
    pub fn set_version(&mut self, version: i64) -> &mut Self {
        self.version = version;
        self
    }

    /// The id by which logs and the response know the request.
    pub fn set_id(&mut self, id: &CStr) -> &mut Self {
        self.id = id.to_owned();
        self
    }

    /// Makes the request part of a sequence.
    pub fn set_correlation(&mut self, id: CorrelationId<'_>) -> &mut Self {
        self.correlation = match id {
            CorrelationId::Number(number) => RequestCorrelation::Number(number),
            CorrelationId::Text(text) => RequestCorrelation::Text(text.to_owned()),
        };
        self
    }

    /// Sequence flags, a mask of `TRITONSERVER_REQUEST_FLAG_*`, as [`Request::flags`] gives them.
    ///
    /// [`Request::flags`]: crate::Request::flags
    pub fn set_flags(&mut self, flags: u32) -> &mut Self {
        self.flags = flags;
        self
    }

    /// 1 is the most urgent, 0 the model's default.
    pub fn set_priority(&mut self, priority: u64) -> &mut Self {
        self.priority = priority;
        self
    }

    /// How long the request may wait in the model's queue, in microseconds; 0 for no limit of its
    /// own.
    pub fn set_timeout_us(&mut self, timeout_us: u64) -> &mut Self {
        self.timeout_us = timeout_us;
        self
    }

    pub fn add_parameter(&mut self, name: &CStr, value: Parameter<'_>) -> &mut Self {
        self.parameters.push((name.to_owned(), value.into()));
        self
    }

    /// Adds an input. `memory` is kept until the server released the request, and its bytes must
    /// not change before.
    pub fn add_input(
        &mut self,
        name: &CStr,
        data_type: DataType,
        shape: &[i64],
        memory: TensorMemory,
    ) -> &mut Self {
        self.inputs.push(RequestInput {
            name: name.to_owned(),
            data_type,
            shape: shape.to_vec(),
            memory,
        });
        self
    }

    /// Asks for an output. A request that asks for none gets all.
    pub fn request_output(&mut self, name: &CStr) -> &mut Self {
        self.outputs.push(name.to_owned());
        self
    }

    /// Makes the request appear below `parent` in the traces. The call should end before the traced
    /// request is answered for good: the recipient of traces may not expect more of it then.
    ///
    /// # Errors
    /// `Unsupported` in an older server, otherwise whatever the server reports.
    pub fn set_trace(&mut self, parent: RequestTrace<'_>) -> Result<&mut Self, Error> {
        self.trace = Some(parent.spawn_child()?);
        Ok(self)
    }

    /// As [`set_trace`](Self::set_trace), from a thread that makes calls for a request; nothing
    /// happens after the request's execution.
    ///
    /// # Errors
    /// As [`set_trace`](Self::set_trace).
    pub fn set_trace_parent(&mut self, parent: &TraceParent) -> Result<&mut Self, Error> {
        self.trace = parent.spawn_child()?;
        Ok(self)
    }

    /// Where outputs are put.
    pub fn set_output_memory(&mut self, memory: Arc<dyn OutputMemory>) -> &mut Self {
        self.output_memory = memory;
        self
    }
}

impl fmt::Debug for ServerRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |inputs: &[RequestInput]| -> Vec<CString> {
            inputs.iter().map(|input| input.name.clone()).collect()
        };
        formatter
            .debug_struct("ServerRequest")
            .field("model", &self.model)
            .field("version", &self.version)
            .field("id", &self.id)
            .field("inputs", &names(&self.inputs))
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}
