//! Responses and response factories: what `TRITONBACKEND_Response*`, `TRITONBACKEND_Output*` and
//! `TRITONBACKEND_ResponseFactory*` point to. Owned by the backend until sent or deleted; used by
//! one thread at a time.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use conch_abi as abi;
use conch_config::DataType;
use conch_engine::flow_control::credits::{SMALL_OUTPUT_BYTES, SMALL_OUTPUT_COUNT};
use conch_engine::request::trace::TraceActivity;
use conch_engine::shared_memory::RequestRegions;
use conch_engine::{Code, Error, Output, Parameter, ParameterValue, Response, Shape};
use conch_memory::{Block, Budget, ByteView, Charge, MemoryKind};

use super::facts::ModelFacts;
use super::request::ResponseSender;
use crate::boundary::{HandleTag, c_string, handles};
use crate::embed::{PlacedBuffer, RequestAllocator};
use crate::objects::{BufferAttributes, BufferPlace};

handles! {
    TRITONBACKEND_Response => BackendResponse, "response", tagged;
    TRITONBACKEND_Output => BackendOutput, "output", tagged;
    TRITONBACKEND_ResponseFactory => ResponseFactory, "response factory", tagged;
}

/// A response under construction, or one that was sent: its loan keeps that for the next.
#[repr(C)]
pub(crate) struct BackendResponse {
    tag: HandleTag<abi::TRITONBACKEND_Response>,
    /// None once it was sent.
    sender: Option<ResponseSender>,
    /// Boxed: the backend holds their addresses. Those from `output_count` on are left over from an
    /// earlier response.
    #[allow(clippy::vec_box, reason = "the backend holds their addresses")]
    outputs: Vec<Box<BackendOutput>>,
    output_count: usize,
    parameters: Vec<Parameter>,
}

/// The right to make responses for a request.
#[repr(C)]
pub(crate) struct ResponseFactory {
    tag: HandleTag<abi::TRITONBACKEND_ResponseFactory>,
    pub(crate) sender: ResponseSender,
}

impl ResponseFactory {
    pub(crate) fn new(sender: ResponseSender) -> ResponseFactory {
        ResponseFactory {
            tag: HandleTag::default(),
            sender,
        }
    }
}

/// One output under construction.
#[repr(C)]
pub(crate) struct BackendOutput {
    tag: HandleTag<abi::TRITONBACKEND_Output>,
    facts: Arc<ModelFacts>,
    name: Arc<str>,
    c_name: OutputName,
    data_type: DataType,
    shape: Shape,
    buffer: Option<OutputBuffer>,
    attributes: BufferAttributes,
    /// Whose buffers to use: the embedder's, if one asked.
    allocator: Option<RequestAllocator>,
    /// Where the client may want it.
    usage: Option<Arc<RequestRegions>>,
    /// What its bytes are charged to; none: the process.
    budget: Option<Arc<Budget>>,
    /// The request's credits bound it while it is small.
    has_credits: bool,
}

/// An output's name in C's form.
enum OutputName {
    /// Of the model's output with this index.
    Configured(usize),
    Other(CString),
}

/// Where an output's bytes are written.
enum OutputBuffer {
    Pooled(Block),
    Placed(Arc<PlacedBuffer>),
    /// In memory that the client shares.
    Shared(ByteView),
}

/// A buffer as the backend gets it.
pub(crate) struct GrantedBuffer {
    pub(crate) address: *mut c_void,
    pub(crate) memory_type: u32,
    pub(crate) memory_type_id: i64,
}

impl BackendResponse {
    /// Begins a response.
    ///
    /// # Errors
    /// INVALID_ARG if the request's loan is over.
    pub(crate) fn begin(sender: ResponseSender) -> Result<Box<BackendResponse>, Error> {
        sender.request().facts()?;
        if let Some(asked) = sender.request().asked() {
            asked.allocator().start();
        }
        if let Some(mut answer) = sender.request().take_spare() {
            answer.tag = HandleTag::new();
            answer.sender = Some(sender);
            return Ok(answer);
        }
        Ok(Box::new(BackendResponse {
            tag: HandleTag::new(),
            sender: Some(sender),
            outputs: Vec::new(),
            output_count: 0,
            parameters: Vec::new(),
        }))
    }

    pub(crate) fn set_parameter(&mut self, name: &str, value: ParameterValue) {
        self.parameters.push(Parameter {
            name: name.into(),
            value,
        });
    }

    /// Adds an output without bytes.
    ///
    /// # Errors
    /// INVALID_ARG if the data type is none.
    pub(crate) fn add_output(
        &mut self,
        name: &str,
        data_type: u32,
        shape: &[i64],
    ) -> Result<&mut BackendOutput, Error> {
        let data_type = DataType::from_number(data_type).ok_or_else(|| {
            Error::invalid(format!("output '{name}' has invalid data type {data_type}"))
        })?;
        let sender = self.sender.as_ref().ok_or_else(sent)?;
        let facts = sender.request().facts()?;
        let (shared_name, c_name) = match facts.find_output(name) {
            Some((index, known)) => (Arc::clone(known), OutputName::Configured(index)),
            None => (Arc::from(name), OutputName::Other(c_string(name))),
        };
        let origin = sender.request().origin()?;
        let place = self.output_count;
        let output = BackendOutput {
            tag: HandleTag::new(),
            facts: Arc::clone(facts),
            name: shared_name,
            c_name,
            data_type,
            shape: facts.output_shape(name, shape),
            buffer: None,
            attributes: BufferAttributes::default(),
            allocator: sender
                .request()
                .asked()
                .map(|asked| asked.allocator().clone()),
            usage: origin.usage.clone(),
            budget: origin.budget.clone(),
            has_credits: origin.credits.is_some() && place < SMALL_OUTPUT_COUNT,
        };
        match self.outputs.get_mut(place) {
            Some(left_over) => **left_over = output,
            None => self.outputs.push(Box::new(output)),
        }
        self.output_count += 1;
        self.outputs
            .get_mut(place)
            .map(|output| &mut **output)
            .ok_or_else(sent)
    }

    pub(crate) fn outputs(&self) -> &[Box<BackendOutput>] {
        self.outputs.get(..self.output_count).unwrap_or_default()
    }

    /// Sends the response, or `error` in its place.
    pub(crate) fn send(
        mut self: Box<Self>,
        error: Option<Error>,
        is_final: bool,
    ) -> Result<(), Error> {
        let sender = self.sender.take().ok_or_else(sent)?;
        let parameters = std::mem::take(&mut self.parameters);
        let outcome = match error {
            Some(error) => Err(error),
            None => Ok(Response {
                model: Arc::clone(&sender.request().origin()?.model),
                outputs: self
                    .outputs
                    .iter_mut()
                    .take(self.output_count)
                    .map(|output| output.freeze())
                    .collect(),
                parameters,
            }),
        };
        if let (Some(trace), Ok(response)) = (sender.request().trace(), &outcome) {
            trace.show_outputs(TraceActivity::TensorBackendOutput, &response.outputs);
        }
        self.retire();
        sender.send(Some(outcome), is_final, Some(self))
    }

    /// Gives everything up but the memory, which is no handle of anything any more.
    fn retire(&mut self) {
        self.tag = HandleTag::none();
        self.outputs.truncate(OUTPUTS_KEPT_MAX);
        for output in &mut self.outputs {
            output.tag = HandleTag::none();
            output.buffer = None;
            output.usage = None;
            output.budget = None;
        }
        self.output_count = 0;
    }
}

impl BackendOutput {
    pub(crate) fn c_name(&self) -> &CStr {
        match &self.c_name {
            OutputName::Other(name) => name,
            OutputName::Configured(index) => self
                .facts
                .output_name(*index)
                .map_or(c"", CString::as_c_str),
        }
    }

    pub(crate) fn data_type(&self) -> DataType {
        self.data_type
    }

    pub(crate) fn shape(&self) -> &[i64] {
        &self.shape
    }

    pub(crate) fn attributes(&self) -> &BufferAttributes {
        &self.attributes
    }

    /// Gives memory for the output's bytes: the client's own if it shares some, from the pool, or
    /// by the embedder's allocator (to which `wanted` is a wish). The backend writes them before it
    /// sends.
    ///
    /// # Errors
    /// ALREADY_EXISTS the second time, UNAVAILABLE if the budget has no room, INTERNAL if the
    /// client's memory has none; the allocator's own.
    pub(crate) fn allocate(
        &mut self,
        bytes: u64,
        wanted: (u32, i64),
    ) -> Result<GrantedBuffer, Error> {
        if self.buffer.is_some() {
            let message = format!("allocated buffer for output '{}' already exists", self.name);
            return Err(Error::new(Code::AlreadyExists, message));
        }
        let refused = || {
            Error::unavailable(format!(
                "failed to allocate {bytes} bytes for output '{}': over the memory limit",
                self.name
            ))
        };
        let size = usize::try_from(bytes).map_err(|_| refused())?;
        if let Some(allocator) = &self.allocator {
            let placed = allocator.place(self.c_name(), size, wanted)?;
            let place = placed.place_of_buffer();
            self.attributes = place.into();
            let granted = GrantedBuffer {
                address: placed.buffer(),
                memory_type: place.memory_type,
                memory_type_id: place.memory_type_id,
            };
            self.buffer = Some(OutputBuffer::Placed(placed));
            return Ok(granted);
        }
        if let Some(usage) = &self.usage {
            let alignment = self.data_type.element_bytes().unwrap_or(1);
            if let Some(view) = usage.place(&self.name, size, alignment)? {
                let place = BufferPlace::of_view(&view);
                self.attributes = place.into();
                let granted = GrantedBuffer {
                    address: view.as_ptr().cast_mut().cast(),
                    memory_type: place.memory_type,
                    memory_type_id: place.memory_type_id,
                };
                self.buffer = Some(OutputBuffer::Shared(view));
                return Ok(granted);
            }
        }
        let budget = self.budget.as_ref().unwrap_or(&self.facts.budget);
        let mut charge = Charge::empty(budget);
        if !self.has_credits || bytes > SMALL_OUTPUT_BYTES {
            charge.cover(bytes).map_err(|_| refused())?;
        }
        // The backend may leave gaps: no bytes of another model show through them.
        let pool = &self.facts.pool;
        let block = pool.try_take_for(self.facts.owner, size);
        let mut block = block.map_err(|_| refused())?;
        block.set_charge(charge);
        block.advance(size);
        self.attributes = BufferAttributes::default();
        self.attributes.store(bytes, MemoryKind::Cpu as u32, 0);
        let address = block.as_mut_ptr().cast();
        self.buffer = Some(OutputBuffer::Pooled(block));
        // Whatever the backend prefers: outputs leave through sockets, so they lie in host memory.
        Ok(GrantedBuffer {
            address,
            memory_type: MemoryKind::Cpu as u32,
            memory_type_id: 0,
        })
    }

    /// The output as clients see it. What is left is only good for another output.
    fn freeze(&mut self) -> Output {
        let data = match self.buffer.take() {
            None => ByteView::empty(),
            Some(OutputBuffer::Pooled(block)) => ByteView::from(block),
            Some(OutputBuffer::Placed(placed)) => PlacedBuffer::freeze(placed),
            Some(OutputBuffer::Shared(view)) => view,
        };
        Output {
            name: Arc::clone(&self.name),
            data_type: self.data_type,
            shape: std::mem::take(&mut self.shape),
            data,
        }
    }
}

fn sent() -> Error {
    Error::invalid("the response was already sent")
}

/// Outputs of a sent response whose memory is kept for the next.
const OUTPUTS_KEPT_MAX: usize = 8;
