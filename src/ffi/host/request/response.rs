//! Responses and response factories: what `TRITONBACKEND_Response*` and
//! `TRITONBACKEND_ResponseFactory*` point to. Owned by the backend until sent or deleted; used by
//! one thread at a time.

use std::sync::Arc;

use conch_abi as abi;
use conch_config::DataType;
use conch_engine::request::trace::TraceActivity;
use conch_engine::{Error, Parameter, ParameterValue, Response, ResponseParts};
use smallvec::SmallVec;

use super::BackendRequest;
use super::sender::ResponseSender;
use crate::boundary::{HandleTag, handles};
use crate::host::output::BackendOutput;

handles! {
    TRITONBACKEND_Response => BackendResponse, "response", tagged;
    TRITONBACKEND_ResponseFactory => ResponseFactory, "response factory", tagged;
}

/// A response under construction, or one that was sent: its backend request keeps that for the
/// next.
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

impl BackendResponse {
    /// Begins a response.
    ///
    /// # Errors
    /// INVALID_ARG if the backend request is over.
    pub(crate) fn begin(request: Arc<BackendRequest>) -> Result<Box<BackendResponse>, Error> {
        let (sender, spare) = ResponseSender::open_for_response(request)?;
        if let Some(embedded) = sender.request().embedded() {
            embedded.allocator().start();
        }
        if let Some(mut response) = spare {
            response.tag = HandleTag::new();
            response.sender = Some(sender);
            return Ok(response);
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
        let place = self.output_count;
        let output = BackendOutput::new(
            facts,
            sender.request().origin()?,
            sender
                .request()
                .embedded()
                .map(|embedded| embedded.allocator().clone()),
            place,
            (name, data_type, shape),
        );
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
            None => {
                let mut response = Response::from(ResponseParts {
                    model: Arc::clone(&sender.request().origin()?.model),
                    outputs: SmallVec::new(),
                    parameters,
                });
                // Filled where they stay, as they are large.
                let outputs = self.outputs.iter_mut().take(self.output_count);
                response
                    .outputs
                    .extend(outputs.map(|output| output.freeze()));
                Ok(response)
            }
        };
        if let (Some(trace), Ok(response)) = (sender.request().trace(), &outcome) {
            let origin = sender.request().origin()?;
            let budget = origin.features.budget.as_ref();
            trace.show_outputs(
                TraceActivity::TensorBackendOutput,
                &response.outputs,
                budget,
            );
        }
        self.clear();
        sender.send(Some(outcome), is_final, Some(self))
    }

    /// Gives everything up but the memory, which is no handle of anything any more.
    fn clear(&mut self) {
        self.tag = HandleTag::none();
        self.outputs.truncate(OUTPUTS_KEPT_MAX);
        for output in &mut self.outputs {
            output.clear();
        }
        self.output_count = 0;
    }
}

fn sent() -> Error {
    Error::invalid("the response was already sent")
}

/// Outputs of a sent response whose memory is kept for the next.
const OUTPUTS_KEPT_MAX: usize = 8;
