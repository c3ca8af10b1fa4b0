//! The repeat backend: a decoupled model that answers a request with as many responses as its input
//! has elements. For trying out and testing clients and servers of streams.
//!
//! Inputs: `IN` (INT32, a vector), `DELAY` (UINT32, as many) and `WAIT` (UINT32, one). `DELAY[i]`
//! milliseconds after the response before it, response *i* carries `OUT` = `IN[i]` (INT32) and
//! `IDX` = *i* (UINT32), each of shape `[1]`. The end is flags without a response. After `WAIT`
//! milliseconds the execution returns and the request is released, be it before or after the last
//! response. A cancelled request is sent no further responses.
//!
//! All requests of an instance that wait share one thread.

#![forbid(unsafe_code)]

use std::thread;
use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::agenda::{Agenda, Task};
use sdk::{
    Batch, Code, DataType, Error, InstanceContext, ModelConfig, ModelContext, Request,
    ResponseFactory, TensorConfig, shape_text,
};

sdk::export_backend!(Repeat);

/// Nothing is shared between models.
pub struct Repeat;

impl sdk::Backend for Repeat {
    type Model = Model;

    fn initialize(_context: &sdk::BackendContext) -> Result<Self, Error> {
        Ok(Repeat)
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()
    }
}

pub struct Model;

impl sdk::Model for Model {
    type Backend = Repeat;
    type Instance = Instance;

    fn initialize(_backend: &Repeat, context: &mut ModelContext) -> Result<Self, Error> {
        check(context.config())?;
        Ok(Model)
    }
}

/// # Errors
/// `InvalidArgument` if this is no model that the backend can be.
fn check(config: &ModelConfig) -> Result<(), Error> {
    if config.max_batch_size() != 0 {
        return Err(Error::invalid(
            "repeat backend only supports models with max_batch_size == 0",
        ));
    }
    let (inputs, outputs) = (config.inputs()?, config.outputs()?);
    for (kind, tensors, expected) in [("inputs", &inputs, 3), ("outputs", &outputs, 2)] {
        if tensors.len() != expected {
            return Err(Error::invalid(format!(
                "expected {expected} {kind}, got {}",
                tensors.len()
            )));
        }
    }
    let values = TensorConfig::expect(&inputs, "IN", DataType::Int32)?;
    let delays = TensorConfig::expect(&inputs, "DELAY", DataType::Uint32)?;
    if values.dims.len() != 1 {
        return Err(Error::invalid(format!(
            "expected IN shape to have one dimension, got {}",
            shape_text(&values.dims)
        )));
    }
    check_same_shape(&values.dims, &delays.dims)?;
    for (tensors, name, data_type) in [
        (&inputs, "WAIT", DataType::Uint32),
        (&outputs, "OUT", DataType::Int32),
        (&outputs, "IDX", DataType::Uint32),
    ] {
        let tensor = TensorConfig::expect(tensors, name, data_type)?;
        if tensor.dims != [1] {
            return Err(Error::invalid(format!(
                "expected {name} shape to be [1], got {}",
                shape_text(&tensor.dims)
            )));
        }
    }
    Ok(())
}

fn check_same_shape(values: &[i64], delays: &[i64]) -> Result<(), Error> {
    if values == delays {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "expected IN and DELAY shape to match, got {} and {}",
        shape_text(values),
        shape_text(delays)
    )))
}

pub struct Instance {
    agenda: Agenda<Stream>,
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(_model: &Model, _context: &InstanceContext) -> Result<Self, Error> {
        Ok(Instance {
            agenda: Agenda::start("repeat")?,
        })
    }

    fn execute(&mut self, _model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        let mut wait = Duration::ZERO;
        for request in batch.requests() {
            match self.begin(request) {
                Ok(wanted) => wait = wait.max(wanted),
                Err(error) => request.fail(error),
            }
        }
        thread::sleep(wait);
        Ok(())
    }
}

impl Instance {
    /// Starts the stream of a request; returns how long its execution is to take.
    fn begin(&self, request: Request<'_>) -> Result<Duration, Error> {
        let [values, delays] = [c"IN", c"DELAY"].map(|name| request.input(name));
        let (values, delays) = (values?, delays?);
        check_same_shape(values.shape(), delays.shape())?;
        let wait = request.input(c"WAIT")?.to_vec()?;
        let wait = <[u8; 4]>::try_from(&*wait)
            .map_err(|_| Error::invalid("unexpected size for WAIT input"))?;
        // A copy: the inputs go with the request, which may be before the last response.
        let mut steps: Vec<Step> = words(&values.to_vec()?)
            .zip(words(&delays.to_vec()?))
            .map(|(value, delay)| Step {
                value: i32::from_le_bytes(value),
                delay: Duration::from_millis(u64::from(u32::from_le_bytes(delay))),
            })
            .collect();
        steps.reverse();
        let mut stream = Stream {
            left: steps,
            index: 0,
            waited: Duration::ZERO,
            factory: Some(request.response_factory()?),
        };
        self.agenda.add(stream.pause(), stream);
        Ok(Duration::from_millis(u64::from(u32::from_le_bytes(wait))))
    }
}

/// The 4-byte elements of a tensor.
fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().copied()
}

/// The responses of a request that are still to be sent.
struct Stream {
    /// Last one first.
    left: Vec<Step>,
    /// Of the next response.
    index: u32,
    /// Since the last response, or the start.
    waited: Duration,
    /// Taken by the end.
    factory: Option<ResponseFactory>,
}

struct Step {
    value: i32,
    /// Since the response before.
    delay: Duration,
}

impl Stream {
    /// Until the next response, or the next look whether it is still wanted; the end follows the
    /// last one without a pause.
    fn pause(&mut self) -> Duration {
        let delay = self.left.last().map_or(Duration::ZERO, |step| step.delay);
        let pause = delay.saturating_sub(self.waited).min(LOOK_INTERVAL);
        self.waited += pause;
        pause
    }

    /// Whether the next response is due.
    fn is_due(&self) -> bool {
        self.left
            .last()
            .is_none_or(|step| self.waited >= step.delay)
    }

    fn send_next(&mut self) -> Result<(), Error> {
        let (Some(factory), Some(step)) = (&self.factory, self.left.last()) else {
            return Ok(());
        };
        if factory.is_cancelled()? {
            return Err(Error::new(Code::Cancelled, "request has been cancelled"));
        }
        if !self.is_due() {
            return Ok(());
        }
        let response = factory.respond()?;
        for (name, data_type, bytes) in [
            (c"OUT", DataType::Int32, step.value.to_le_bytes()),
            (c"IDX", DataType::Uint32, self.index.to_le_bytes()),
        ] {
            response.output(name, data_type, &[1], 4)?.write(&bytes)?;
        }
        response.send()
    }
}

/// A request that was cancelled keeps its place no longer than this.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

impl Task for Stream {
    fn step(&mut self) -> Option<Duration> {
        let sent = self.send_next();
        if self.is_due() {
            self.left.pop();
            self.index += 1;
            self.waited = Duration::ZERO;
        }
        if sent.is_ok() && !self.left.is_empty() {
            return Some(self.pause());
        }
        let factory = self.factory.take()?;
        match sent {
            Ok(()) => {
                if let Err(error) = factory.finish() {
                    sdk::error!("failed to end a request's responses: {error}");
                }
            }
            Err(error) => factory.fail(error),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"max_batch_size": 0,
        "input": [{"name": "WAIT", "data_type": "TYPE_UINT32", "dims": [1]},
            {"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]},
            {"name": "DELAY", "data_type": "TYPE_UINT32", "dims": [-1]}],
        "output": [{"name": "IDX", "data_type": "TYPE_UINT32", "dims": [1]},
            {"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}]}"#;

    #[test]
    fn models_are_checked() {
        let check = |json: &str| {
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            check(&config).map_err(|error| error.to_string())
        };
        assert_eq!(check(GOOD), Ok(()));
        for (part, other, expected) in [
            (
                r#""max_batch_size": 0"#,
                r#""max_batch_size": 1"#,
                "max_batch_size == 0",
            ),
            (
                r#"{"name": "WAIT", "data_type": "TYPE_UINT32", "dims": [1]},"#,
                "",
                "expected 3 inputs, got 2",
            ),
            (
                r#""name": "IDX""#,
                r#""name": "ID""#,
                "expected a tensor named IDX, got ID, OUT",
            ),
            (
                r#""DELAY", "data_type": "TYPE_UINT32", "dims": [-1]"#,
                r#""DELAY", "data_type": "TYPE_UINT32", "dims": [4]"#,
                "expected IN and DELAY shape to match, got [-1] and [4]",
            ),
            (
                r#""IN", "data_type": "TYPE_INT32", "dims": [-1]"#,
                r#""IN", "data_type": "TYPE_INT32", "dims": [1, 1]"#,
                "expected IN shape to have one dimension, got [1,1]",
            ),
            (
                r#""OUT", "data_type": "TYPE_INT32""#,
                r#""OUT", "data_type": "TYPE_FP32""#,
                "expected OUT datatype to be INT32, got TYPE_FP32",
            ),
            (
                r#""WAIT", "data_type": "TYPE_UINT32", "dims": [1]"#,
                r#""WAIT", "data_type": "TYPE_UINT32", "dims": [2]"#,
                "expected WAIT shape to be [1], got [2]",
            ),
        ] {
            assert!(GOOD.contains(part), "{part}");
            let error = check(&GOOD.replacen(part, other, 1)).unwrap_err();
            assert!(error.contains(expected), "{error}, expected {expected}");
        }
    }
}
