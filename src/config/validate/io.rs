//! Rules for inputs, outputs, and the tensors that backends derive from a batch.

use std::collections::HashSet;

use conch_proto::inference::model_input::Format;
use conch_proto::inference::{BatchInput, BatchOutput, DataType, ModelConfig, ModelTensorReshape};
use conch_proto::inference::{batch_input, batch_output};

use super::PLATFORM_TENSORRT;
use crate::ConfigError;

/// Checks inputs, outputs, batch inputs and batch outputs: what a backend may complete before this
/// must hold.
///
/// # Errors
/// `InvalidArg`, naming tensor and model.
pub fn validate_io(config: &ModelConfig) -> Result<(), ConfigError> {
    check(config).map_err(|error| ConfigError {
        message: format!("{} for {}", error.message, config.name),
        ..error
    })
}

fn check(config: &ModelConfig) -> Result<(), ConfigError> {
    for input in &config.input {
        let tensor = TensorView {
            direction: "input",
            name: &input.name,
            data_type: input.data_type,
            dims: &input.dims,
            reshape: input.reshape.as_ref(),
        };
        tensor.check_shape(config.max_batch_size)?;
        if input.format() != Format::None && input.dims.len() != 3 {
            return Err(ConfigError::invalid("model input NHWC/NCHW require 3 dims"));
        }
        tensor.check_special(
            &config.platform,
            input.is_shape_tensor,
            input.is_non_linear_format_io,
        )?;
    }
    for output in &config.output {
        let tensor = TensorView {
            direction: "output",
            name: &output.name,
            data_type: output.data_type,
            dims: &output.dims,
            reshape: output.reshape.as_ref(),
        };
        tensor.check_shape(config.max_batch_size)?;
        tensor.check_special(
            &config.platform,
            output.is_shape_tensor,
            output.is_non_linear_format_io,
        )?;
    }
    let inputs = config
        .input
        .iter()
        .map(|input| input.name.as_str())
        .collect();
    let outputs = config
        .output
        .iter()
        .map(|output| output.name.as_str())
        .collect();
    config
        .batch_input
        .iter()
        .try_for_each(|batch| check_batch_input(batch, &inputs))?;
    config
        .batch_output
        .iter()
        .try_for_each(|batch| check_batch_output(batch, &inputs, &outputs))
}

/// What inputs and outputs have in common.
struct TensorView<'a> {
    direction: &'static str,
    name: &'a str,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a ModelTensorReshape>,
}

impl TensorView<'_> {
    fn error(&self, what: &str) -> ConfigError {
        ConfigError::invalid(format!("model {} '{}' {what}", self.direction, self.name))
    }

    fn check_shape(&self, max_batch_size: i32) -> Result<(), ConfigError> {
        if self.name.is_empty() {
            return Err(ConfigError::invalid(format!(
                "model {} must specify 'name'",
                self.direction
            )));
        }
        if self.data_type == DataType::TypeInvalid as i32 {
            return Err(self.error("must specify 'data_type'"));
        }
        if self.dims.is_empty() {
            return Err(self.error("must specify 'dims'"));
        }
        if max_batch_size == 0 && self.reshape.is_some_and(|reshape| reshape.shape.is_empty()) {
            return Err(self.error(
                "cannot have empty reshape for non-batching model as scalar tensors are not \
                 supported",
            ));
        }
        if !self.dims.iter().all(is_dim) {
            return Err(self.error(
                "dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
            ));
        }
        self.reshape
            .map_or(Ok(()), |reshape| self.check_reshape(&reshape.shape))
    }

    fn check_reshape(&self, shape: &[i64]) -> Result<(), ConfigError> {
        if !shape.iter().all(is_dim) {
            return Err(self.error(
                "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size \
                 dimension",
            ));
        }
        let dims_count = element_count(self.dims, self.name, "dims")?;
        let shape_count = element_count(shape, self.name, "reshape")?;
        // An empty reshape stands for one element.
        let is_scalar = shape.is_empty() && dims_count == Some(1);
        if dims_count != shape_count && !is_scalar {
            return Err(self.error("has different size for dims and reshape"));
        }
        if dims_count.is_some() {
            return Ok(());
        }
        // Between variable dimensions the counts must agree one by one: [2,4,-1,6] may become
        // [8,-1,1,6].
        let is_variable = |dim: &i64| *dim == -1;
        let mut before = self.dims.split(is_variable);
        let mut after = shape.split(is_variable);
        if before.clone().count() != after.clone().count() {
            return Err(
                self.error("has different number of variable-size dimensions for dims and reshape")
            );
        }
        while let (Some(before), Some(after)) = (before.next(), after.next()) {
            if run_count(before, self.name, "dims")? != run_count(after, self.name, "reshape")? {
                return Err(self.error("has different size for dims and reshape"));
            }
        }
        Ok(())
    }

    fn check_special(
        &self,
        platform: &str,
        is_shape_tensor: bool,
        is_non_linear: bool,
    ) -> Result<(), ConfigError> {
        if is_shape_tensor && platform != PLATFORM_TENSORRT {
            return Err(ConfigError::invalid(
                "shape tensors are only supported for TensorRT platform",
            ));
        }
        if is_non_linear {
            if platform != PLATFORM_TENSORRT {
                return Err(ConfigError::invalid(
                    "Non-linear IO format is only supported for the TensorRT platform",
                ));
            }
            if self.dims.len() != 3 {
                return Err(ConfigError::invalid(format!(
                    "Non-linear IO format {} requires 3 dims",
                    self.direction
                )));
            }
        }
        Ok(())
    }
}

fn is_dim(dim: &i64) -> bool {
    *dim >= 1 || *dim == -1
}

/// Elements of a shape of valid dims; none if one is variable. An empty shape counts 0, as
/// upstream.
fn element_count(dims: &[i64], name: &str, role: &str) -> Result<Option<i64>, ConfigError> {
    if dims.is_empty() {
        return Ok(Some(0));
    }
    // Upstream stops at the first variable dimension, before what follows could overflow.
    let fixed = dims.split(|dim| *dim == -1).next().unwrap_or_default();
    let count = run_count(fixed, name, role)?;
    Ok((fixed.len() == dims.len()).then_some(count))
}

/// The product of fixed dims; 1 if there are none.
fn run_count(dims: &[i64], name: &str, role: &str) -> Result<i64, ConfigError> {
    dims.iter()
        .try_fold(1i64, |count, dim| count.checked_mul(*dim))
        .ok_or_else(|| {
            ConfigError::invalid(format!(
                "element count for tensor '{name} {role}' exceeds maximum size of {}",
                i64::MAX
            ))
        })
}

fn check_batch_input(batch: &BatchInput, inputs: &HashSet<&str>) -> Result<(), ConfigError> {
    let Ok(kind) = batch_input::Kind::try_from(batch.kind) else {
        return Err(ConfigError::invalid(format!(
            "unknown batch input kind '{}'",
            batch.kind
        )));
    };
    check_source("input", kind.as_str_name(), &batch.source_input)?;
    if !matches!(batch.data_type(), DataType::TypeInt32 | DataType::TypeFp32) {
        return Err(ConfigError::invalid(
            "batch input data type must be TYPE_INT32 or TYPE_FP32",
        ));
    }
    check_source_names(&batch.source_input, inputs)
}

fn check_batch_output(
    batch: &BatchOutput,
    inputs: &HashSet<&str>,
    outputs: &HashSet<&str>,
) -> Result<(), ConfigError> {
    let Ok(kind) = batch_output::Kind::try_from(batch.kind) else {
        return Err(ConfigError::invalid(format!(
            "unknown batch output kind '{}'",
            batch.kind
        )));
    };
    check_source("output", kind.as_str_name(), &batch.source_input)?;
    check_source_names(&batch.source_input, inputs)?;
    let mut seen = HashSet::new();
    for target in &batch.target_name {
        if !outputs.contains(target.as_str()) {
            return Err(ConfigError::invalid(format!(
                "unknown target output name '{target}'"
            )));
        }
        if !seen.insert(target) {
            return Err(ConfigError::invalid(format!(
                "target output name '{target}' can only be specified once"
            )));
        }
    }
    Ok(())
}

/// Every kind there is takes exactly one source.
fn check_source(direction: &str, kind: &str, sources: &[String]) -> Result<(), ConfigError> {
    if sources.len() == 1 {
        return Ok(());
    }
    Err(ConfigError::invalid(format!(
        "batch {direction} kind '{kind}' expects 1 source input, got {}",
        sources.len()
    )))
}

fn check_source_names(sources: &[String], inputs: &HashSet<&str>) -> Result<(), ConfigError> {
    match sources
        .iter()
        .find(|source| !inputs.contains(source.as_str()))
    {
        Some(unknown) => Err(ConfigError::invalid(format!(
            "unknown source input name '{unknown}'"
        ))),
        None => Ok(()),
    }
}
