//! A stub's request to another model, as it posted it.

use std::ffi::CString;

use conch_backend_sdk as sdk;
use conch_python_ipc::wire::{Correlation, Malformed, MessageReader, TensorRow};
use sdk::{CorrelationId, Error, Parameter, ServerRequest};
use serde_json::{Map, Value};

/// What a stub wants of another model.
#[derive(Debug)]
pub(crate) struct InferMessage<'m> {
    /// Of the call; 0: it has one response.
    pub(crate) number: u64,
    pub(crate) model: &'m str,
    /// Below 1: the latest.
    pub(crate) version: i64,
    id: &'m str,
    correlation: Correlation<'m>,
    flags: u32,
    timeout_us: u64,
    priority: u64,
    /// The request whose trace is the parent; 0: none.
    pub(crate) trace: u64,
    /// JSON.
    parameters: &'m str,
    outputs: Vec<&'m str>,
    pub(crate) inputs: Vec<TensorRow<'m>>,
}

impl<'m> InferMessage<'m> {
    /// # Errors
    /// If the message is none.
    pub(crate) fn read(message: &'m [u8]) -> Result<InferMessage<'m>, Malformed> {
        let mut reader = MessageReader::new(message);
        reader.byte()?;
        Ok(InferMessage {
            number: reader.u64()?,
            model: reader.text()?,
            version: reader.i64()?,
            id: reader.text()?,
            correlation: reader.correlation()?,
            flags: reader.u32()?,
            timeout_us: reader.u64()?,
            priority: reader.u64()?,
            trace: reader.u64()?,
            parameters: reader.text()?,
            outputs: {
                let count = reader.count()?;
                (0..count)
                    .map(|_| reader.text())
                    .collect::<Result<_, _>>()?
            },
            inputs: {
                let count = reader.count()?;
                (0..count)
                    .map(|_| reader.tensor())
                    .collect::<Result<_, _>>()?
            },
        })
    }

    /// The request, without its inputs.
    ///
    /// # Errors
    /// For a text that no request can have.
    pub(crate) fn request(&self) -> Result<ServerRequest, Error> {
        let mut request = ServerRequest::new(self.model);
        request
            .set_version(self.version)
            .set_flags(self.flags)
            .set_timeout_us(self.timeout_us)
            .set_priority(self.priority)
            .set_id(&c_text(self.id)?);
        match self.correlation {
            Correlation::Number(id) => {
                request.set_correlation(CorrelationId::Number(id));
            }
            Correlation::Text(id) => {
                let id = c_text(id)?;
                request.set_correlation(CorrelationId::Text(&id));
            }
        }
        if !self.parameters.is_empty() {
            add_parameters(&mut request, self.parameters)?;
        }
        for output in &self.outputs {
            request.request_output(&c_text(output)?);
        }
        Ok(request)
    }
}

fn c_text(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::invalid("a text of a request has a NUL"))
}

fn add_parameters(request: &mut ServerRequest, parameters: &str) -> Result<(), Error> {
    let parameters: Map<String, Value> = serde_json::from_str(parameters)
        .map_err(|_| Error::invalid("the parameters of a request are no object"))?;
    for (name, value) in &parameters {
        let name = c_text(name)?;
        let text;
        let value = match value {
            Value::Bool(flag) => Parameter::Boolean(*flag),
            Value::Number(number) => match number.as_i64() {
                Some(number) => Parameter::Integer(number),
                None => Parameter::Number(number.as_f64().unwrap_or_default()),
            },
            other => {
                text = c_text(other.as_str().unwrap_or_default())?;
                Parameter::Text(&text)
            }
        };
        request.add_parameter(&name, value);
    }
    Ok(())
}
