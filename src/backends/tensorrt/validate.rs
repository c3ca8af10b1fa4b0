//! Checks a configuration against the engine, by the rules and in the words of upstream's backend.

use std::ffi::CStr;

use conch_backend_sdk as sdk;
use sdk::serde_json::Value;
use sdk::{DataType, Error, ModelConfig};

use crate::complete::unknown;
use crate::facts::{Facts, Tensor, config_name, text};

/// Checks names, types, shapes and formats of all tensors. `instance` is the name of the instance,
/// as messages have it.
///
/// # Errors
/// What does not fit.
pub fn validate(
    model_name: &str,
    instance: &str,
    config: &ModelConfig,
    facts: &Facts,
) -> Result<(), Error> {
    let check = Check {
        model_name,
        instance,
        is_batching: config.max_batch_size() > 0,
        config,
        facts,
    };
    check.names()?;
    check.marks("input")?;
    check.marks("output")?;
    check.inputs()?;
    check.outputs()?;
    check.all_are_configured()
}

struct Check<'c> {
    model_name: &'c str,
    instance: &'c str,
    is_batching: bool,
    config: &'c ModelConfig,
    facts: &'c Facts,
}

impl Check<'_> {
    fn names(&self) -> Result<(), Error> {
        let count = self.entries("input").len();
        let most = self.facts.inputs().count();
        if most < count {
            return Err(Error::invalid(format!(
                "unable to load model '{}', configuration expects {count} inputs, model provides \
                 at most {most}",
                self.model_name
            )));
        }
        for (key, is_input) in [("input", true), ("output", false)] {
            for entry in self.entries(key) {
                let name = name_of(entry);
                self.tensor(name, is_input)
                    .ok_or_else(|| unknown(self.facts, name, is_input))?;
            }
        }
        Ok(())
    }

    /// Types, and whether tensors are marked as what they are.
    fn marks(&self, key: &str) -> Result<(), Error> {
        for entry in self.entries(key) {
            let name = name_of(entry);
            let Some(tensor) = self.tensor(name, key == "input") else {
                continue;
            };
            let data_type = entry.get("data_type").and_then(Value::as_str);
            let data_type = data_type.unwrap_or("TYPE_INVALID");
            if !DataType::from_config_name(data_type).is_some_and(is_supported) {
                return Err(Error::internal(format!(
                    "unsupported datatype {data_type} for {key} '{name}' for model '{}'",
                    self.model_name
                )));
            }
            let is_marked = |mark: &str| entry.get(mark) == Some(&Value::Bool(true));
            let what = match (is_marked("is_shape_tensor"), tensor.is_shape) {
                (false, true) => {
                    "is a shape tensor but the model configuration doesn't mark it as a shape \
                     tensor."
                }
                (true, false) => {
                    "is incorrectly marked as a shape tensor in the model configuration."
                }
                _ => match (
                    is_marked("is_non_linear_format_io"),
                    tensor.format.is_linear,
                ) {
                    (false, false) => {
                        "uses a non-linear IO format, but 'is_non_linear_format_io' is incorrectly \
                         set to false in the model configuration."
                    }
                    (true, true) => {
                        "uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set \
                         to true in the model configuration."
                    }
                    _ => continue,
                },
            };
            return Err(Error::internal(format!(
                "{key} '{name}' for model '{}' {what}",
                self.model_name
            )));
        }
        Ok(())
    }

    fn inputs(&self) -> Result<(), Error> {
        for input in self.config.inputs()? {
            let Some(tensor) = self.tensor(input.name(), true) else {
                continue;
            };
            if tensor.is_shape {
                self.shape_tensor(tensor, input.data_type, input.model_dims())?;
                continue;
            }
            self.data_type(tensor, input.data_type)?;
            self.format(tensor, input.is_ragged)?;
            match input.is_ragged {
                true => self.ragged(tensor, input.model_dims())?,
                false => self.dims(tensor, input.model_dims())?,
            }
        }
        for control in self.config.controls()? {
            let tensor = self.expected(&control.name, true)?;
            self.data_type(tensor, control.data_type)?;
            self.control(tensor)?;
        }
        for input in self.config.batch_inputs()? {
            for target in &input.targets {
                let tensor = self.expected(&target.to_string_lossy(), true)?;
                self.data_type(tensor, input.data_type)?;
            }
        }
        for state in self.config.states()? {
            let tensor = self.expected(&state.input.to_string_lossy(), true)?;
            self.data_type(tensor, state.data_type)?;
            self.dims(tensor, &state.dims)?;
        }
        Ok(())
    }

    fn outputs(&self) -> Result<(), Error> {
        let cut: Vec<_> = self.config.batch_outputs()?;
        for output in self.config.outputs()? {
            let Some(tensor) = self.tensor(output.name(), false) else {
                continue;
            };
            self.data_type(tensor, output.data_type)?;
            let is_cut = cut.iter().any(|cut| cut.target == output.name);
            self.format(tensor, is_cut)?;
            if tensor.is_shape {
                self.shape_values(tensor, output.model_dims())?;
            } else if !is_cut {
                self.dims(tensor, output.model_dims())?;
            }
        }
        for state in self.config.states()? {
            let tensor = self.expected(&state.output.to_string_lossy(), false)?;
            self.data_type(tensor, state.data_type)?;
            self.dims(tensor, &state.dims)?;
        }
        Ok(())
    }

    /// Every input of the engine has to get something, and every output to go somewhere.
    fn all_are_configured(&self) -> Result<(), Error> {
        let controls = self.config.controls()?;
        let batch_inputs = self.config.batch_inputs()?;
        let states = self.config.states()?;
        for tensor in &self.facts.tensors {
            let name = tensor.name();
            let key = if tensor.is_input { "input" } else { "output" };
            let is_named = |named: &CStr| named == tensor.name.as_c_str();
            let is_known = self.entries(key).iter().any(|entry| name_of(entry) == name)
                || states
                    .iter()
                    .any(|state| is_named(&state.input) || is_named(&state.output))
                || (tensor.is_input
                    && (controls.iter().any(|control| control.name == name)
                        || batch_inputs
                            .iter()
                            .any(|input| input.targets.iter().any(|target| is_named(target)))));
            if !is_known {
                return Err(Error::invalid(format!(
                    "expected configuration for {key} '{name}' for {}",
                    self.instance
                )));
            }
        }
        Ok(())
    }

    fn data_type(&self, tensor: &Tensor, configured: DataType) -> Result<(), Error> {
        if tensor.data_type == Some(configured) {
            return Ok(());
        }
        let key = if tensor.is_input { "input" } else { "output" };
        Err(Error::invalid(format!(
            "unexpected datatype {} for inference {key} '{}', expecting TYPE_{} for {}",
            config_name(tensor.data_type),
            tensor.name(),
            configured.name(),
            self.instance
        )))
    }

    fn format(&self, tensor: &Tensor, is_ragged: bool) -> Result<(), Error> {
        let (name, instance) = (tensor.name(), self.instance);
        let key = if tensor.is_input { "input" } else { "output" };
        match (&tensor.format.is_linear, tensor.format.filled) {
            (true, _) => Ok(()),
            (false, None) => Err(Error::invalid(format!(
                "unexpected vectorized dim is -1 for non-linear tensor '{name}' for {instance}"
            ))),
            (false, Some(_)) if is_ragged => Err(Error::invalid(format!(
                "unexpected allow-ragged for non-linear {key} '{name}' for {instance}"
            ))),
            _ => Ok(()),
        }
    }

    fn dims(&self, tensor: &Tensor, configured: &[i64]) -> Result<(), Error> {
        let (model_name, name, dims) = (self.model_name, tensor.name(), &tensor.dims);
        if self.is_batching && dims.is_empty() {
            return Err(Error::invalid(format!(
                "model '{model_name}', tensor '{name}': for the model to support batching the \
                 shape should have at least 1 dimension; but shape expected by the model is []"
            )));
        }
        let batch = self.is_batching.then_some(-1);
        let full: Vec<i64> = batch
            .into_iter()
            .chain(configured.iter().copied())
            .collect();
        let fits = dims.len() == full.len()
            && dims
                .iter()
                .zip(&full)
                .all(|(model, config)| *model == -1 || *config == -1 || model == config);
        if fits {
            return Ok(());
        }
        let complete = match self.is_batching {
            true => format!(
                "dimensions (an initial batch dimension because max_batch_size > 0 followed by the \
                 explicit tensor shape, making complete shape {})",
                text(&full)
            ),
            false => format!("dimensions (shape {})", text(&full)),
        };
        Err(Error::invalid(format!(
            "model '{model_name}', tensor '{name}': the model expects {} dimensions (shape {}) but \
             the model configuration specifies {} {complete}",
            dims.len(),
            text(dims),
            full.len()
        )))
    }

    fn ragged(&self, tensor: &Tensor, configured: &[i64]) -> Result<(), Error> {
        match (&tensor.dims[..], configured.first()) {
            ([dim], Some(configured)) if dim == configured => Ok(()),
            _ => Err(Error::invalid(format!(
                "model '{}', tensor '{}': for the model to support ragged input, the engine shape \
                 is: {} while the model config shape is: {}",
                self.model_name,
                tensor.name(),
                text(&tensor.dims),
                text(configured)
            ))),
        }
    }

    /// A control is one element per sequence.
    fn control(&self, tensor: &Tensor) -> Result<(), Error> {
        let dims = &tensor.dims;
        if !dims.contains(&-1) {
            return self.dims(tensor, &[1]);
        }
        let expected = if self.is_batching { -1 } else { 1 };
        let first = dims.first().copied().unwrap_or(0);
        let why = if first != expected {
            format!("expects the first dimension to be {expected} but the model specified {first}")
        } else if dims.iter().skip(1).any(|dim| *dim != 1) {
            format!(
                "expects all dimensions (conditionally first) to be 1 but the model specified \
                 shape {}",
                text(dims)
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "unexpected shape {} for control input '{}' for model {}: {why}",
            text(dims),
            tensor.name(),
            self.model_name
        )))
    }

    fn shape_tensor(
        &self,
        tensor: &Tensor,
        configured: DataType,
        dims: &[i64],
    ) -> Result<(), Error> {
        let (name, instance) = (tensor.name(), self.instance);
        if !matches!(configured, DataType::Int32 | DataType::Int64) {
            return Err(Error::invalid(format!(
                "unexpected datatype TYPE_{} in model configuration for shape input '{name}', \
                 expecting TYPE_INT32 or TYPE_INT64 for {instance}",
                configured.name()
            )));
        }
        if tensor.data_type != Some(configured) {
            return Err(Error::invalid(format!(
                "unexpected datatype {} in engine for shape input '{name}', expecting TYPE_{} for \
                 {instance}",
                config_name(tensor.data_type),
                configured.name()
            )));
        }
        self.shape_values(tensor, dims)
    }

    /// How many values a shape tensor has; the batch is one of them that the configuration leaves
    /// out.
    fn shape_values(&self, tensor: &Tensor, configured: &[i64]) -> Result<(), Error> {
        let (instance, name) = (self.instance, tensor.name());
        if tensor.dims.len() > 1 {
            return Err(Error::internal(format!(
                "unable to load model '{instance}', shape binding '{name}' can only be 0-d or 1-D \
                 tensor, got {}",
                text(&tensor.dims)
            )));
        }
        let offset = i64::from(self.is_batching);
        let fits = match (&tensor.dims[..], configured) {
            ([], []) => true,
            ([count], [dim]) => *dim != -1 && dim + offset == *count,
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(Error::internal(format!(
                "unable to load model '{instance}', binding '{name}' shape expected by framework \
                 {} doesn't match model configuration shape {}",
                text(&tensor.dims),
                text(configured)
            ))),
        }
    }

    fn tensor(&self, name: &str, is_input: bool) -> Option<&Tensor> {
        let mut tensors = self.facts.tensors.iter();
        tensors.find(|tensor| tensor.is_input == is_input && tensor.name() == name)
    }

    fn expected(&self, name: &str, is_input: bool) -> Result<&Tensor, Error> {
        let key = if is_input { "input" } else { "output" };
        self.tensor(name, is_input).ok_or_else(|| {
            let instance = self.instance;
            Error::new(
                sdk::Code::NotFound,
                format!("{key} '{name}' not found for {instance}"),
            )
        })
    }

    fn entries(&self, key: &str) -> &[Value] {
        let entries = self.config.json().get(key).and_then(Value::as_array);
        entries.map_or(&[], Vec::as_slice)
    }
}

fn name_of(entry: &Value) -> &str {
    entry
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Types that TensorRT has as well.
fn is_supported(data_type: DataType) -> bool {
    (0..=8).any(|number| crate::facts::data_type_of(number) == Some(data_type))
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::json;

    use super::*;
    use crate::facts::testing::{bounds, tensor};

    fn facts() -> Facts {
        let shape = Tensor {
            data_type: Some(DataType::Int64),
            is_shape: true,
            ..tensor(c"S", true, &[2])
        };
        Facts {
            tensors: vec![
                tensor(c"A", true, &[-1, 16]),
                shape,
                tensor(c"Y", false, &[-1, 16]),
            ],
            profiles: vec![vec![
                bounds(&[1, 16], &[2, 16], &[8, 16]),
                bounds(&[2], &[2], &[2]),
                None,
            ]],
        }
    }

    fn check(batch: i64, inputs: Value, output: Value) -> String {
        let config = json!({"max_batch_size": batch, "input": inputs, "output": [output]});
        match validate("m", "m_0", &ModelConfig::new(config), &facts()) {
            Ok(()) => "fits".to_owned(),
            Err(error) => error.message().to_owned(),
        }
    }

    fn input(name: &str, data_type: &str, dims: &[i64], is_shape: bool) -> Value {
        json!({"name": name, "data_type": data_type, "dims": dims, "is_shape_tensor": is_shape})
    }

    #[test]
    fn configurations_fit_or_are_told_why_not() {
        let a = input("A", "TYPE_FP32", &[16], false);
        let s = input("S", "TYPE_INT64", &[1], true);
        let y = input("Y", "TYPE_FP32", &[16], false);
        for (inputs, output, expected) in [
            (json!([a, s]), y.clone(), "fits"),
            (
                json!([a]),
                y.clone(),
                "expected configuration for input 'S' for m_0",
            ),
            (
                json!([a, s, a]),
                y.clone(),
                "unable to load model 'm', configuration expects 3 inputs, model provides at most \
                 2",
            ),
            (
                json!([a, input("S", "TYPE_INT64", &[1], false)]),
                y.clone(),
                "input 'S' for model 'm' is a shape tensor but the model configuration doesn't \
                 mark it as a shape tensor.",
            ),
            (
                json!([input("A", "TYPE_FP32", &[16], true), s]),
                y.clone(),
                "input 'A' for model 'm' is incorrectly marked as a shape tensor in the model \
                 configuration.",
            ),
            (
                json!([a, input("S", "TYPE_INT64", &[2], true)]),
                y.clone(),
                "unable to load model 'm_0', binding 'S' shape expected by framework [2] doesn't \
                 match model configuration shape [2]",
            ),
            (
                json!([a, input("S", "TYPE_INT32", &[1], true)]),
                y.clone(),
                "unexpected datatype TYPE_INT64 in engine for shape input 'S', expecting \
                 TYPE_INT32 for m_0",
            ),
            (
                json!([input("A", "TYPE_FP16", &[16], false), s]),
                y.clone(),
                "unexpected datatype TYPE_FP32 for inference input 'A', expecting TYPE_FP16 for \
                 m_0",
            ),
            (
                json!([input("A", "TYPE_UINT16", &[16], false), s]),
                y.clone(),
                "unsupported datatype TYPE_UINT16 for input 'A' for model 'm'",
            ),
            (
                json!([input("A", "TYPE_FP32", &[-1, 8], false), s]),
                y.clone(),
                "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,16]) but the \
                 model configuration specifies 3 dimensions (an initial batch dimension because \
                 max_batch_size > 0 followed by the explicit tensor shape, making complete shape \
                 [-1,-1,8])",
            ),
            (
                json!([a, s]),
                input("Z", "TYPE_FP32", &[16], false),
                "unexpected inference output 'Z', allowed outputs are: Y",
            ),
        ] {
            assert_eq!(check(8, inputs, output), expected);
        }
    }

    #[test]
    fn without_batches_shapes_are_whole() {
        let s = input("S", "TYPE_INT64", &[2], true);
        let y = input("Y", "TYPE_FP32", &[-1, 16], false);
        let a = input("A", "TYPE_FP32", &[-1, 16], false);
        assert_eq!(check(0, json!([a, s]), y.clone()), "fits");
        let a = input("A", "TYPE_FP32", &[16], false);
        assert_eq!(
            check(0, json!([a, s]), y),
            "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,16]) but the model \
             configuration specifies 1 dimensions (shape [16])"
        );
    }
}
