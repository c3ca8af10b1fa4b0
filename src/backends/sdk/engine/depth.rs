//! How many batches a model's instances on GPUs keep in flight, by its configuration.

use std::ffi::CStr;

use crate::{DataType, Error, InstanceContext, Kind, ModelConfig};

/// Model parameter that says how many; 1: each batch is waited for.
const PARAMETER: &str = "batches_in_flight";
/// Each has memory of its own for joined inputs, and outputs until they are copied.
const DEPTH_MAX: usize = 4;

/// Whether the instances of a model on GPUs keep batches in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InFlightDepth {
    /// So many at most.
    UpTo(usize),
    /// None: each run is waited for, for this reason.
    Blocking(String),
}

impl InFlightDepth {
    /// By the configuration alone: so many as `default` says, unless its parameter says how many.
    /// `takes_on_device` says which types of inputs sessions take on
    /// a GPU, as [`Session::takes_on_device`](super::Session::takes_on_device) does.
    ///
    /// # Errors
    /// `InvalidArgument` for a number that cannot be, or whatever the configuration has wrong.
    pub fn of(
        config: &ModelConfig,
        default: usize,
        takes_on_device: impl Fn(DataType) -> bool,
    ) -> Result<Self, Error> {
        let given = config.integer_parameter(PARAMETER)?;
        let depth = match given {
            None => default,
            Some(given) => {
                let depth = usize::try_from(given).ok();
                let known = depth.filter(|depth| (1..=DEPTH_MAX).contains(depth));
                known.ok_or_else(|| {
                    Error::invalid(format!(
                        "parameter '{PARAMETER}' must be a number from 1 to {DEPTH_MAX}, got \
                         {given}"
                    ))
                })?
            }
        };
        if depth == 1 {
            let set = given.map_or("not set", |_| "1");
            return Ok(InFlightDepth::Blocking(format!("{PARAMETER} is {set}")));
        }
        let obstacle = host_tensor(config, takes_on_device)?;
        Ok(InFlightDepth::UpTo(depth).unless(obstacle))
    }

    /// The same, if there is nothing in the way.
    #[must_use]
    pub fn unless(self, obstacle: Option<String>) -> Self {
        match (self, obstacle) {
            (InFlightDepth::UpTo(_), Some(reason)) => InFlightDepth::Blocking(reason),
            (known, _) => known,
        }
    }

    /// Logs what an instance does, if it is on a GPU. `of_model` is what was known when the model
    /// was loaded.
    pub(super) fn log(
        &self,
        of_model: &InFlightDepth,
        context: &InstanceContext,
        config: &ModelConfig,
    ) {
        if context.kind != Kind::Gpu {
            return;
        }
        let (name, gpu) = (&context.name, context.device_id);
        match (self, of_model) {
            (InFlightDepth::UpTo(depth), _) => {
                crate::info!(
                    "instance '{name}' keeps up to {depth} batches in flight on GPU {gpu}"
                );
            }
            // Known too late for threads of their own.
            (InFlightDepth::Blocking(reason), InFlightDepth::UpTo(_))
                if config.instance_count() > 1 =>
            {
                crate::info!(
                    "instance '{name}' executes one batch at a time on GPU {gpu}, in turn with \
                     others of its model there, unless {PARAMETER} is 1: {reason}"
                );
            }
            (InFlightDepth::Blocking(reason), _) => {
                crate::info!(
                    "instance '{name}' executes one batch at a time on GPU {gpu}: {reason}"
                );
            }
        }
    }
}

/// A tensor that is in main memory, and so waited for.
fn host_tensor(
    config: &ModelConfig,
    takes_on_device: impl Fn(DataType) -> bool,
) -> Result<Option<String>, Error> {
    let is_taken = |data_type| data_type != DataType::Bytes && takes_on_device(data_type);
    let on_host = |kind: &str, name: &CStr, data_type: DataType| {
        format!(
            "{kind} '{}' is of {}, which is in main memory",
            name.to_string_lossy(),
            data_type.name()
        )
    };
    for input in config.inputs()? {
        if !is_taken(input.data_type) {
            return Ok(Some(on_host("input", &input.name, input.data_type)));
        }
    }
    for state in config.states()? {
        if !is_taken(state.data_type) {
            return Ok(Some(on_host("state", &state.input, state.data_type)));
        }
    }
    for control in config.controls()? {
        if !is_taken(control.data_type) {
            return Ok(Some(format!(
                "input '{}' is of {}, which is in main memory",
                control.name,
                control.data_type.name()
            )));
        }
    }
    for output in config.outputs()? {
        if output.data_type == DataType::Bytes {
            return Ok(Some(on_host("output", &output.name, output.data_type)));
        }
    }
    let described = config.batch_inputs()?.into_iter();
    let mut targets = described.flat_map(|input| input.targets);
    Ok(targets.next().map(|name| {
        format!(
            "input '{}' describes the batch, and is in main memory",
            name.to_string_lossy()
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(json: &str) -> Result<InFlightDepth, Error> {
        let config = ModelConfig::parse(json.as_bytes())?;
        InFlightDepth::of(&config, 2, |data_type| data_type != DataType::Bool)
    }

    #[test]
    fn tensors_in_main_memory_are_waited_for() {
        let tensor = |kind: &str, data_type: &str| {
            format!(r#"{{"{kind}": [{{"name": "T", "data_type": "{data_type}", "dims": [1]}}]}}"#)
        };
        let batch_input = r#"{"batch_input": [{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["T"],
            "data_type": "TYPE_FP32", "source_input": ["A"]}]}"#;
        let state = r#"{"sequence_batching": {"state": [{"input_name": "T", "output_name": "U",
            "data_type": "TYPE_STRING", "dims": [1]}]}}"#;
        for (json, expected) in [
            ("{}".to_owned(), None),
            (tensor("input", "TYPE_FP32"), None),
            (tensor("output", "TYPE_BOOL"), None),
            (
                tensor("input", "TYPE_STRING"),
                Some("input 'T' is of BYTES, which is in main memory"),
            ),
            (
                tensor("input", "TYPE_BOOL"),
                Some("input 'T' is of BOOL, which is in main memory"),
            ),
            (
                tensor("output", "TYPE_STRING"),
                Some("output 'T' is of BYTES, which is in main memory"),
            ),
            (
                batch_input.to_owned(),
                Some("input 'T' describes the batch, and is in main memory"),
            ),
            (
                state.to_owned(),
                Some("state 'T' is of BYTES, which is in main memory"),
            ),
        ] {
            let expected = match expected {
                None => InFlightDepth::UpTo(2),
                Some(reason) => InFlightDepth::Blocking(reason.to_owned()),
            };
            assert_eq!(depth(&json), Ok(expected), "{json}");
        }
    }

    #[test]
    fn the_parameter_bounds_them() {
        let with = |value: &str| {
            depth(&format!(
                r#"{{"parameters": {{"batches_in_flight": {{"string_value": "{value}"}}}}}}"#
            ))
        };
        assert_eq!(
            with("1"),
            Ok(InFlightDepth::Blocking("batches_in_flight is 1".to_owned()))
        );
        assert_eq!(with("4"), Ok(InFlightDepth::UpTo(4)));
        assert_eq!(
            InFlightDepth::of(&ModelConfig::parse(b"{}").unwrap(), 1, |_| true),
            Ok(InFlightDepth::Blocking(
                "batches_in_flight is not set".to_owned()
            ))
        );
        for value in ["0", "5", "-1"] {
            assert_eq!(
                with(value).unwrap_err().message(),
                format!("parameter 'batches_in_flight' must be a number from 1 to 4, got {value}")
            );
        }
        assert!(with("many").is_err());
    }

    #[test]
    fn the_first_reason_is_told() {
        let depth = InFlightDepth::UpTo(2).unless(Some("a reason".to_owned()));
        assert_eq!(depth, InFlightDepth::Blocking("a reason".to_owned()));
        let other = depth.clone().unless(Some("another".to_owned()));
        assert_eq!(other, depth);
    }
}
