//! Requests as the stub is sent them: one message for all, as [`wire`] says, and their tensors
//! behind it.

use std::borrow::Cow;
use std::ffi::CStr;

use conch_backend_sdk as sdk;
use conch_python_ipc::ALIGNMENT_BYTES;
use conch_python_ipc::wire::{self, Correlation, MessageWriter, TensorPlace};
use sdk::{CorrelationId, Error, Input, Parameter, Request};
use serde_json::{Map, Value, json};

use crate::device_inputs::DeviceInputs;

/// A message that is being made.
pub(crate) struct ExecuteMessage<'p, 'b> {
    pub(crate) writer: MessageWriter,
    /// Inputs with their offsets behind the message.
    pub(crate) inputs: Vec<(Input<'b>, u64)>,
    pub(crate) tensor_bytes: u64,
    pub(crate) device_inputs: DeviceInputs<'p, 'b>,
}

impl<'p, 'b> ExecuteMessage<'p, 'b> {
    /// The message of requests, each with its number. Inputs that `device_inputs` takes are
    /// elsewhere.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub(crate) fn new(
        requests: impl ExactSizeIterator<Item = (Request<'b>, u64)>,
        device_inputs: DeviceInputs<'p, 'b>,
    ) -> Result<ExecuteMessage<'p, 'b>, Error> {
        let mut message = ExecuteMessage {
            writer: MessageWriter::new(wire::EXECUTE),
            inputs: Vec::with_capacity(requests.len()),
            tensor_bytes: 0,
            device_inputs,
        };
        let count = u32::try_from(requests.len());
        message
            .writer
            .u32(count.map_err(|_| Error::internal("too many requests"))?);
        for (request, number) in requests {
            message.add(request, number)?;
        }
        Ok(message)
    }

    fn add(&mut self, request: Request<'b>, number: u64) -> Result<(), Error> {
        let writer = &mut self.writer;
        writer.u64(number);
        writer.u32(request.flags()?);
        writer.u64(request.timeout_us()?);
        writer.text(&text(request.id()?));
        match request.correlation()? {
            CorrelationId::Number(id) => writer.correlation(Correlation::Number(id)),
            CorrelationId::Text(id) => writer.correlation(Correlation::Text(&text(id))),
        }
        let is_traced = request.is_traced()?;
        writer.byte(u8::from(is_traced));
        match is_traced {
            true => writer.text(&request.trace_context()?),
            false => writer.text(""),
        }
        writer.text(&parameters(request)?);
        let at = writer.count_later();
        let count = request.output_count()?;
        for index in 0..count {
            writer.text(&text(request.output_name(index)?));
        }
        writer.set_count(at, count);
        let at = writer.count_later();
        let count = request.input_count()?;
        for index in 0..count {
            self.add_input(request.input_at(index)?)?;
        }
        self.writer.set_count(at, count);
        Ok(())
    }

    fn add_input(&mut self, input: Input<'b>) -> Result<(), Error> {
        let (offset, bytes) = (self.tensor_bytes, input.byte_count() as u64);
        let data_type = input.data_type().number();
        if let Some(place) = self.device_inputs.add(&input)? {
            let (name, place) = (text(input.name()), TensorPlace::Device(&place));
            self.writer
                .tensor(&name, data_type, input.shape(), place, bytes);
            return Ok(());
        }
        let place = TensorPlace::Behind(offset);
        self.writer
            .tensor(&text(input.name()), data_type, input.shape(), place, bytes);
        self.tensor_bytes = bytes
            .checked_next_multiple_of(ALIGNMENT_BYTES)
            .and_then(|bytes| offset.checked_add(bytes))
            .ok_or_else(|| Error::internal("inputs are larger than memory"))?;
        self.inputs.push((input, offset));
        Ok(())
    }
}

fn text(text: &CStr) -> Cow<'_, str> {
    text.to_string_lossy()
}

/// The parameters of a request as JSON; empty if there are none.
fn parameters(request: Request<'_>) -> Result<String, Error> {
    let mut parameters = Map::new();
    for index in 0..request.parameter_count()? {
        let (name, value) = request.parameter(index)?;
        parameters.insert(text(name).into_owned(), parameter(value));
    }
    Ok(match parameters.is_empty() {
        true => String::new(),
        false => Value::Object(parameters).to_string(),
    })
}

/// A parameter as JSON, which has no infinities: null.
pub(crate) fn parameter(value: Parameter<'_>) -> Value {
    match value {
        Parameter::Text(value) => json!(text(value)),
        Parameter::Integer(number) => json!(number),
        Parameter::Boolean(flag) => json!(flag),
        Parameter::Number(number) => json!(number),
    }
}
