//! The samples that a model's instances execute before the model is ready.

use std::collections::BTreeMap;

use conch_proto::inference::ModelWarmup;
use conch_proto::inference::model_warmup::Input;
use conch_proto::inference::model_warmup::input::InputDataType;

use crate::{ConfigError, DataType, ResolvedConfig};

/// One sample: so many equal requests, executed together, so many times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUpSpec {
    pub name: String,
    /// At least 1.
    pub request_count: u32,
    /// At least 1.
    pub iteration_count: u32,
    /// By name.
    pub inputs: Vec<WarmUpInput>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUpInput {
    pub name: String,
    pub data_type: DataType,
    /// As configured: without a batch dimension, and none is variable.
    pub dims: Vec<i64>,
    pub source: WarmUpSource,
}

/// Where an input's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarmUpSource {
    /// For BYTES, empty strings.
    Zeros,
    Random,
    /// The beginning of a file in the model's directory, for BYTES all of it: the folder, and what
    /// it is called there.
    File {
        folder: &'static str,
        name: String,
    },
}

/// The folder of the model's directory with its samples' files.
const FOLDER: &str = "warmup";

/// Requests of one sample that execute together: more than any instance batches, and still few
/// enough to be made.
const REQUESTS_MAX: u32 = 65_536;
/// Executions of one sample: more than any warm-up needs, and still few enough for a load to end.
const ITERATIONS_MAX: u32 = 1_000_000;

/// The samples of `config`, in order. One without a batch size is left out, as upstream.
///
/// # Errors
/// INVALID_ARG, in upstream's words where it has any.
pub fn warm_ups(config: &ResolvedConfig) -> Result<Vec<WarmUpSpec>, ConfigError> {
    let samples = &config.message.model_warmup;
    let wanted = samples.iter().filter(|sample| sample.batch_size > 0);
    wanted.map(|sample| spec(config, sample)).collect()
}

fn spec(config: &ResolvedConfig, sample: &ModelWarmup) -> Result<WarmUpSpec, ConfigError> {
    if sample.batch_size > REQUESTS_MAX {
        return Err(ConfigError::invalid(format!(
            "warmup sample '{}' of model '{}' asks for {} requests at once, at most {REQUESTS_MAX} \
             are allowed",
            sample.name, config.name, sample.batch_size
        )));
    }
    if sample.count > ITERATIONS_MAX {
        return Err(ConfigError::invalid(format!(
            "warmup sample '{}' of model '{}' asks for {} executions, at most {ITERATIONS_MAX} are \
             allowed",
            sample.name, config.name, sample.count
        )));
    }
    Ok(WarmUpSpec {
        name: sample.name.clone(),
        request_count: sample.batch_size,
        iteration_count: sample.count.max(1),
        inputs: inputs(&sample.inputs)?,
    })
}

fn inputs(inputs: &BTreeMap<String, Input>) -> Result<Vec<WarmUpInput>, ConfigError> {
    if let Some((name, _)) = inputs.iter().find(|(_, input)| input.dims.contains(&-1)) {
        return Err(ConfigError::invalid(format!(
            "warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )));
    }
    inputs
        .iter()
        .map(|(name, input)| {
            let number = u32::try_from(input.data_type).unwrap_or(0);
            let data_type = DataType::from_number(number).ok_or_else(|| {
                ConfigError::invalid(format!(
                    "warmup setting expects input '{name}' to have a valid data_type"
                ))
            })?;
            // The member that is set decides, whatever its value.
            let source = match &input.input_data_type {
                Some(InputDataType::ZeroData(_)) => WarmUpSource::Zeros,
                // Upstream, too, does not make up random lengths.
                Some(InputDataType::RandomData(_)) if data_type == DataType::Bytes => {
                    WarmUpSource::Zeros
                }
                Some(InputDataType::RandomData(_)) => WarmUpSource::Random,
                Some(InputDataType::InputDataFile(file)) => WarmUpSource::File {
                    folder: FOLDER,
                    name: file.clone(),
                },
                None => {
                    return Err(ConfigError::invalid(format!(
                        "[request id: <id_unknown>] warmup setting expects input '{name}' to have \
                         input_data_type set"
                    )));
                }
            };
            Ok(WarmUpInput {
                name: name.clone(),
                data_type,
                dims: input.dims.clone(),
                source,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{normalize, parse_text};

    fn read(text: &str) -> Result<Vec<WarmUpSpec>, String> {
        let mut message = parse_text("f", format!("name: 'm' backend: 'b' {text}")).unwrap();
        normalize(&mut message);
        let config = ResolvedConfig::from_partial(message).unwrap();
        warm_ups(&config).map_err(|error| error.message)
    }

    #[test]
    fn samples_are_read_in_order() {
        let specs = read(
            "model_warmup \
             { name: 'skipped' count: 3 inputs { key: 'a' value { dims: -1 } } }
             \
             model_warmup \
             { name: 'one' batch_size: 2 \
             inputs { key: 'b' value { data_type: TYPE_FP32 dims: [ 2, 3 ] random_data: true } }
               inputs { key: 'a' value { data_type: TYPE_STRING dims: 1 random_data: true } } }
             \
             model_warmup \
             { name: 'two' batch_size: 1 count: 4 \
             inputs { key: 'c' value { data_type: TYPE_INT8 zero_data: false } }
               inputs { key: 'd' value { data_type: TYPE_INT8 dims: 0 input_data_file: 'raw' } } }",
        )
        .unwrap();
        let input = |name: &str, data_type, dims: &[i64], source| WarmUpInput {
            name: name.to_owned(),
            data_type,
            dims: dims.to_vec(),
            source,
        };
        let file = WarmUpSource::File {
            folder: "warmup",
            name: "raw".to_owned(),
        };
        assert_eq!(
            specs,
            [
                WarmUpSpec {
                    name: "one".to_owned(),
                    request_count: 2,
                    iteration_count: 1,
                    inputs: vec![
                        input("a", DataType::Bytes, &[1], WarmUpSource::Zeros),
                        input("b", DataType::Fp32, &[2, 3], WarmUpSource::Random),
                    ],
                },
                WarmUpSpec {
                    name: "two".to_owned(),
                    request_count: 1,
                    iteration_count: 4,
                    inputs: vec![
                        input("c", DataType::Int8, &[], WarmUpSource::Zeros),
                        input("d", DataType::Int8, &[0], file),
                    ],
                },
            ]
        );
    }

    #[test]
    fn refusals() {
        for (sample, expected) in [
            (
                "batch_size: 1 inputs \
                 { key: 'a' value { data_type: TYPE_INT8 dims: [ 2, -1 ] zero_data: true } }",
                "warmup setting expects all variable-size dimensions are specified for input 'a'",
            ),
            (
                "batch_size: 1 inputs { key: 'a' value { data_type: TYPE_INT8 dims: 2 } }",
                "[request id: <id_unknown>] warmup setting expects input 'a' to have \
                 input_data_type set",
            ),
            (
                "batch_size: 1 inputs { key: 'a' value { dims: 2 zero_data: true } }",
                "warmup setting expects input 'a' to have a valid data_type",
            ),
            (
                "batch_size: 65537",
                "warmup sample 's' of model 'm' asks for 65537 requests at once, at most 65536 are \
                 allowed",
            ),
            (
                "batch_size: 1 count: 1000001",
                "warmup sample 's' of model 'm' asks for 1000001 executions, at most 1000000 are \
                 allowed",
            ),
        ] {
            let got = read(&format!("model_warmup {{ name: 's' {sample} }}"));
            assert_eq!(got, Err(expected.to_owned()), "{sample}");
        }
    }
}
