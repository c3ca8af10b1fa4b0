//! The square backend: a decoupled model that answers a request with as many responses as the
//! number in its input says, each of them that number. For testing how servers count responses.
//!
//! Input `IN` (INT32) and output `OUT` (INT32) have shape `[1]`; the model may batch, but a request
//! has one row. The end is flags without a response. Every response is reported to the model's
//! statistics. `parameters` of the configuration, all of them text with a number:
//!
//! - `CUSTOM_INFER_DELAY_NS`, `CUSTOM_OUTPUT_DELAY_NS`: how long a response is computed, and
//!   written;
//! - `CUSTOM_FAIL_COUNT`, `CUSTOM_EMPTY_COUNT`: of the last responses, so many are not sent at all,
//!   and so many before them are errors;
//! - `CUSTOM_CANCEL_DELAY_NS`: how long it takes to end a request that was cancelled.
//!
//! All requests of an instance share one thread.

#![forbid(unsafe_code)]

mod stream;

use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::agenda::Agenda;
use sdk::{
    Batch, DataType, Error, InstanceContext, ModelConfig, ModelContext, Request, TensorConfig,
    shape_text,
};

use stream::Stream;

sdk::export_backend!(Square);

/// Nothing is shared between models.
pub struct Square;

impl sdk::Backend for Square {
    type Model = Model;

    fn initialize(_context: &sdk::BackendContext) -> Result<Self, Error> {
        Ok(Square)
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()
    }
}

pub struct Model {
    settings: Settings,
}

impl sdk::Model for Model {
    type Backend = Square;
    type Instance = Instance;

    fn initialize(_backend: &Square, context: &mut ModelContext) -> Result<Self, Error> {
        let config = context.config();
        check(config)?;
        Ok(Model {
            settings: Settings::read(config)?,
        })
    }
}

/// # Errors
/// `InvalidArgument` if this is no model that the backend can be.
fn check(config: &ModelConfig) -> Result<(), Error> {
    let (inputs, outputs) = (config.inputs()?, config.outputs()?);
    for (kind, tensors, name) in [("input", &inputs, "IN"), ("output", &outputs, "OUT")] {
        if tensors.len() != 1 {
            return Err(Error::invalid(format!(
                "expected 1 {kind}, got {}",
                tensors.len()
            )));
        }
        let tensor = TensorConfig::expect(tensors, name, DataType::Int32)?;
        if tensor.dims != [1] {
            return Err(Error::invalid(format!(
                "expected {name} shape to be [1], got {}",
                shape_text(&tensor.dims)
            )));
        }
    }
    Ok(())
}

/// What the `parameters` of the configuration set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Settings {
    infer_delay: Duration,
    output_delay: Duration,
    cancel_delay: Duration,
    fail_count: u32,
    empty_count: u32,
}

impl Settings {
    fn read(config: &ModelConfig) -> Result<Self, Error> {
        let number = |name: &str| {
            let value = config.integer_parameter(name)?.unwrap_or(0);
            u32::try_from(value)
                .map_err(|_| Error::invalid(format!("parameter '{name}' must not be {value}")))
        };
        let delay = |name: &str| Ok::<_, Error>(Duration::from_nanos(u64::from(number(name)?)));
        Ok(Settings {
            infer_delay: delay("CUSTOM_INFER_DELAY_NS")?,
            output_delay: delay("CUSTOM_OUTPUT_DELAY_NS")?,
            cancel_delay: delay("CUSTOM_CANCEL_DELAY_NS")?,
            fail_count: number("CUSTOM_FAIL_COUNT")?,
            empty_count: number("CUSTOM_EMPTY_COUNT")?,
        })
    }
}

pub struct Instance {
    agenda: Agenda<Stream>,
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(_model: &Model, _context: &InstanceContext) -> Result<Self, Error> {
        Ok(Instance {
            agenda: Agenda::start("square")?,
        })
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        for request in batch.requests() {
            if let Err(error) = self.begin(&model.settings, request) {
                request.fail(error);
            }
        }
        Ok(())
    }
}

impl Instance {
    fn begin(&self, settings: &Settings, request: Request<'_>) -> Result<(), Error> {
        let input = request.input(c"IN")?;
        // One row, with or without a batch dimension.
        let bytes = input.to_vec()?;
        let value = <[u8; 4]>::try_from(&*bytes)
            .map_err(|_| Error::invalid("unexpected shape for IN input"))?;
        let value = i32::from_le_bytes(value);
        let count = u32::try_from(value)
            .map_err(|_| Error::invalid(format!("IN must not be negative, got {value}")))?;
        let rank = input.shape().len();
        let stream = Stream::new(*settings, count, rank, request.response_factory()?);
        self.agenda.add(Duration::ZERO, stream);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_checked() {
        let good = r#"{"input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": ["1"]}],
            "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": ["1"]}]}"#;
        let check = |json: &str| {
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            check(&config).map_err(|error| error.to_string())
        };
        assert_eq!(check(good), Ok(()));
        for (part, other, expected) in [
            (
                "\"IN\"",
                "\"INPUT\"",
                "expected a tensor named IN, got INPUT",
            ),
            (
                r#"TYPE_INT32", "dims": ["1"]}]}"#,
                r#"TYPE_INT64", "dims": ["1"]}]}"#,
                "expected OUT datatype to be INT32, got TYPE_INT64",
            ),
            (
                r#"[{"name": "OUT", "data_type": "TYPE_INT32", "dims": ["1"]}]"#,
                "[]",
                "expected 1 output, got 0",
            ),
            (
                r#""IN", "data_type": "TYPE_INT32", "dims": ["1"]"#,
                r#""IN", "data_type": "TYPE_INT32", "dims": ["-1"]"#,
                "expected IN shape to be [1], got [-1]",
            ),
        ] {
            assert!(good.contains(part), "{part}");
            let error = check(&good.replacen(part, other, 1)).unwrap_err();
            assert!(error.contains(expected), "{error}, expected {expected}");
        }
    }

    #[test]
    fn settings_are_read() {
        let read = |parameters: &str| {
            let json = format!(r#"{{"parameters": {{{parameters}}}}}"#);
            Settings::read(&ModelConfig::parse(json.as_bytes()).unwrap())
        };
        assert_eq!(read(""), Ok(Settings::default()));
        let set = r#""CUSTOM_INFER_DELAY_NS": {"string_value": "400"},
            "CUSTOM_FAIL_COUNT": {"string_value": "2"},
            "CUSTOM_EMPTY_COUNT": {"string_value": "1"}"#;
        assert_eq!(
            read(set),
            Ok(Settings {
                infer_delay: Duration::from_nanos(400),
                fail_count: 2,
                empty_count: 1,
                ..Settings::default()
            })
        );
        assert!(read(r#""CUSTOM_FAIL_COUNT": {"string_value": "-1"}"#).is_err());
        assert!(read(r#""CUSTOM_FAIL_COUNT": {"string_value": "some"}"#).is_err());
    }
}
