//! The request to the other model.
//!
//! Id, correlation id, flags, parameters, inputs, wanted outputs and trace are those of the request
//! that is forwarded. Its parameters that begin with `forward_` are orders and stay here:
//! `forward_model`, `forward_version`, `forward_priority` and `forward_timeout_us` change what is
//! sent; with `forward_leave` the request is refused before the call ends, with `forward_panic` the
//! function that receives the responses panics; those of [`control`](crate::control) call other
//! functions of the server before.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::serde_json::{Map, Value, json};
use sdk::{
    CorrelationId, Error, HostMemory, MemoryPlace, OutputMemory, Parameter, ParameterValue,
    Request, ServerRequest, TensorMemory,
};

use crate::Model;

/// What a request orders.
#[derive(Default)]
pub(crate) struct Orders {
    pub(crate) leaves: bool,
    pub(crate) panics: bool,
    texts: Vec<(String, String)>,
    numbers: Vec<(String, i64)>,
}

impl Orders {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let found = self.texts.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Option<i64> {
        let found = self.numbers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value)
    }

    /// A number that cannot be negative; 0 if there is none.
    fn count(&self, name: &str) -> Result<u64, Error> {
        let value = self.number(name).unwrap_or(0);
        u64::try_from(value)
            .map_err(|_| Error::invalid(format!("forward_{name} must not be negative")))
    }
}

/// The orders among the parameters of a request.
pub(crate) fn read(request: Request<'_>) -> Result<Orders, Error> {
    let mut orders = Orders::default();
    for index in 0..request.parameter_count()? {
        let (name, value) = request.parameter(index)?;
        let Some(order) = order_of(name) else {
            continue;
        };
        match value {
            Parameter::Text(text) => {
                let text = text.to_string_lossy().into_owned();
                orders.texts.push((order, text));
            }
            Parameter::Integer(number) => orders.numbers.push((order, number)),
            Parameter::Boolean(flag) => match order.as_str() {
                "leave" => orders.leaves = flag,
                "panic" => orders.panics = flag,
                _ => return Err(Error::invalid(format!("forward_{order} is no flag"))),
            },
            Parameter::Number(_) => {
                return Err(Error::invalid(format!(
                    "forward_{order} must not be a double"
                )));
            }
        }
    }
    Ok(orders)
}

/// What follows `forward_`.
fn order_of(name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    name.strip_prefix("forward_").map(str::to_owned)
}

/// The request to send on behalf of `request`.
pub(crate) fn make(
    model: &Model,
    request: Request<'_>,
    orders: &Orders,
) -> Result<ServerRequest, Error> {
    let target = orders.text("model").unwrap_or(&model.target);
    let mut made = ServerRequest::new(target);
    made.set_version(orders.number("version").unwrap_or(-1))
        .set_id(request.id()?)
        .set_correlation(request.correlation()?)
        .set_flags(request.flags()?)
        .set_priority(orders.count("priority")?)
        .set_timeout_us(orders.count("timeout_us")?)
        .set_output_memory(Arc::clone(&model.output_memory));
    for index in 0..request.parameter_count()? {
        let (name, value) = request.parameter(index)?;
        if order_of(name).is_none() {
            made.add_parameter(name, value);
        }
    }
    for index in 0..request.input_count()? {
        let input = request.input_at(index)?;
        // A copy: the input is gone when this execution is over, and the call may still run.
        let memory = TensorMemory::from(input.to_vec()?);
        made.add_input(input.name(), input.data_type(), input.shape(), memory);
    }
    for index in 0..request.output_count()? {
        made.request_output(request.output_name(index)?);
    }
    if let Some(trace) = request.trace()? {
        made.set_trace(trace)?;
    }
    Ok(made)
}

/// What is known of a request, as JSON.
pub(crate) fn tell(request: Request<'_>) -> Result<ParameterValue, Error> {
    let mut parameters = Map::new();
    for index in 0..request.parameter_count()? {
        let (name, value) = request.parameter(index)?;
        let value = match value {
            Parameter::Text(text) => text.to_string_lossy().into(),
            Parameter::Integer(value) => value.into(),
            Parameter::Boolean(value) => value.into(),
            Parameter::Number(value) => value.into(),
        };
        parameters.insert(name.to_string_lossy().into_owned(), value);
    }
    let outputs: Result<Vec<_>, Error> = (0..request.output_count()?)
        .map(|index| Ok(request.output_name(index)?.to_string_lossy()))
        .collect();
    let correlation: Value = match request.correlation()? {
        CorrelationId::Number(number) => number.into(),
        CorrelationId::Text(text) => text.to_string_lossy().into(),
    };
    let told = json!({
        "id": request.id()?.to_string_lossy(),
        "correlation": correlation,
        "flags": request.flags()?,
        "timeout_us": request.timeout_us()?,
        "parameters": parameters,
        "outputs": outputs?,
        "trace_context": request.trace_context()?,
        "library": sdk::library_directory(),
    });
    CString::new(told.to_string())
        .map(ParameterValue::Text)
        .map_err(|error| Error::internal(error.to_string()))
}

/// Host memory, but not for outputs of more bytes than this.
pub(crate) struct LimitedMemory(pub(crate) u64);

impl OutputMemory for LimitedMemory {
    fn allocate(
        &self,
        name: &CStr,
        byte_count: usize,
        preferred: MemoryPlace,
    ) -> Result<TensorMemory, Error> {
        if byte_count as u64 > self.0 {
            return Err(Error::out_of_memory(byte_count));
        }
        HostMemory.allocate(name, byte_count, preferred)
    }
}
