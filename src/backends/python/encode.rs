//! Requests as the stub is sent them: one JSON text for all, and their tensors behind it.
//!
//! `{"k":"execute","r":[{"h":1,"id":"..","c":5,"f":1,"t":0,"p":{..},"o":["OUT"],"i":[[..]]}]}`:
//! the request's number, id, correlation id, flags, timeout, parameters and wanted outputs; inputs
//! are name, data type, shape, offset behind the text, and bytes. What is empty is left out.

use std::ffi::CStr;
use std::io::Write;

use conch_backend_sdk as sdk;
use conch_python_ipc::ALIGNMENT_BYTES;
use sdk::{CorrelationId, Error, Input, Parameter, Request};

/// A message that is being made.
#[derive(Default)]
pub(crate) struct ExecuteMessage<'b> {
    pub(crate) text: Vec<u8>,
    /// Inputs with their offsets behind the text.
    pub(crate) inputs: Vec<(Input<'b>, u64)>,
    pub(crate) tensor_bytes: u64,
}

impl<'b> ExecuteMessage<'b> {
    /// The message of requests, each with its number.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub(crate) fn new(
        requests: impl Iterator<Item = (Request<'b>, u64)>,
    ) -> Result<ExecuteMessage<'b>, Error> {
        let mut message = ExecuteMessage::default();
        message.put(format_args!(r#"{{"k":"execute","r":["#));
        for (index, (request, number)) in requests.enumerate() {
            if index > 0 {
                message.text.push(b',');
            }
            message.add(request, number)?;
        }
        message.put(format_args!("]}}"));
        Ok(message)
    }

    fn add(&mut self, request: Request<'b>, number: u64) -> Result<(), Error> {
        self.put(format_args!(r#"{{"h":{number}"#));
        let id = request.id()?;
        if !id.is_empty() {
            self.put(format_args!(r#","id":"#));
            self.put_text(id);
        }
        match request.correlation()? {
            CorrelationId::Number(0) => {}
            CorrelationId::Number(id) => self.put(format_args!(r#","c":{id}"#)),
            CorrelationId::Text(id) => {
                self.put(format_args!(r#","c":"#));
                self.put_text(id);
            }
        }
        let (flags, timeout_us) = (request.flags()?, request.timeout_us()?);
        if flags != 0 {
            self.put(format_args!(r#","f":{flags}"#));
        }
        if timeout_us != 0 {
            self.put(format_args!(r#","t":{timeout_us}"#));
        }
        if request.is_traced()? {
            self.put(format_args!(r#","x":"#));
            self.put_string(&request.trace_context()?);
        }
        self.put_parameters(request)?;
        self.put(format_args!(r#","o":["#));
        for index in 0..request.output_count()? {
            if index > 0 {
                self.text.push(b',');
            }
            self.put_text(request.output_name(index)?);
        }
        self.put(format_args!(r#"],"i":["#));
        for index in 0..request.input_count()? {
            if index > 0 {
                self.text.push(b',');
            }
            self.put_input(request.input_at(index)?)?;
        }
        self.put(format_args!("]}}"));
        Ok(())
    }

    fn put_input(&mut self, input: Input<'b>) -> Result<(), Error> {
        self.text.push(b'[');
        self.put_text(input.name());
        self.put(format_args!(",{},[", input.data_type().number()));
        for (index, dim) in input.shape().iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            self.put(format_args!("{comma}{dim}"));
        }
        let (offset, bytes) = (self.tensor_bytes, input.byte_count());
        self.put(format_args!("],{offset},{bytes}]"));
        self.tensor_bytes = (bytes as u64)
            .checked_next_multiple_of(ALIGNMENT_BYTES)
            .and_then(|bytes| offset.checked_add(bytes))
            .ok_or_else(|| Error::internal("inputs are larger than memory"))?;
        self.inputs.push((input, offset));
        Ok(())
    }

    fn put_parameters(&mut self, request: Request<'b>) -> Result<(), Error> {
        let count = request.parameter_count()?;
        for index in 0..count {
            let (name, value) = request.parameter(index)?;
            self.put(format_args!(
                "{}",
                if index > 0 { "," } else { r#","p":{"# }
            ));
            self.put_text(name);
            self.text.push(b':');
            match value {
                Parameter::Text(text) => self.put_text(text),
                Parameter::Integer(number) => self.put(format_args!("{number}")),
                Parameter::Boolean(flag) => self.put(format_args!("{flag}")),
                Parameter::Number(number) => {
                    let number = serde_json::Number::from_f64(number);
                    // JSON has no infinities.
                    match number {
                        Some(number) => self.put(format_args!("{number}")),
                        None => self.put(format_args!("null")),
                    }
                }
            }
        }
        if count > 0 {
            self.text.push(b'}');
        }
        Ok(())
    }

    fn put_text(&mut self, text: &CStr) {
        self.put_string(&text.to_string_lossy());
    }

    fn put_string(&mut self, text: &str) {
        // A vector takes everything.
        let _ = serde_json::to_writer(&mut self.text, text);
    }

    fn put(&mut self, part: std::fmt::Arguments<'_>) {
        let _ = self.text.write_fmt(part);
    }
}
