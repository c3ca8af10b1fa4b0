//! Ensembles: which steps there are, and whether they fit the models that they run.
//!
//! What one configuration shows alone is checked by [`validate`](crate::validate). The rest needs
//! the completed configurations of the models, so it is checked when those are loaded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use conch_proto::inference::model_config::SchedulingChoice;
use conch_proto::inference::model_ensembling::Step;
use conch_proto::inference::{self, ModelConfig, ModelTransactionPolicy};

use crate::ConfigError;

/// The steps of an ensemble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensembling {
    pub steps: Vec<EnsembleStep>,
    /// How many requests each step may have in its model at a time, whichever of the ensemble's
    /// requests they are of; 0: unbounded.
    pub inflight_max: u32,
}

/// One step: a model, and which of the ensemble's tensors its inputs and outputs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    pub model: String,
    /// Empty: the ensemble's own, then whichever has such a model.
    pub namespace: String,
    /// None: the highest one that is ready.
    pub version: Option<i64>,
    /// Names in the model, and the tensors that they are.
    pub inputs: Vec<(String, String)>,
    pub outputs: Vec<(String, String)>,
}

/// The steps of `config`, if it is an ensemble.
pub fn ensembling(config: &ModelConfig) -> Option<Ensembling> {
    let Some(SchedulingChoice::EnsembleScheduling(ensembling)) = &config.scheduling_choice else {
        return None;
    };
    let pairs = |map: &BTreeMap<String, String>| {
        map.iter()
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect()
    };
    let step = |step: &Step| EnsembleStep {
        model: step.model_name.clone(),
        namespace: step.model_namespace.clone(),
        version: (step.model_version != LATEST).then_some(step.model_version),
        inputs: pairs(&step.input_map),
        outputs: pairs(&step.output_map),
    };
    Some(Ensembling {
        steps: ensembling.step.iter().map(step).collect(),
        inflight_max: ensembling.max_inflight_requests,
    })
}

/// The model of one step of an ensemble, as it is loaded.
#[derive(Clone, Copy, Debug)]
pub struct ComposingModels<'a> {
    pub namespace: &'a str,
    /// How messages call it: with its namespace, if there are any.
    pub label: &'a str,
    pub config: &'a ModelConfig,
}

/// Makes the configuration of an ensemble complete: its steps name their models' namespaces, and it
/// is decoupled if it can answer a request more than once, or not at all. `models` are those of its
/// steps, in their order; `label` is how messages call the ensemble.
///
/// # Errors
/// INVALID_ARG in upstream's words if the ensemble does not fit its models.
pub fn compose(
    config: &mut ModelConfig,
    label: &str,
    models: &[ComposingModels<'_>],
) -> Result<(), ConfigError> {
    let is_decoupled = check(config, label, models)?;
    if let Some(SchedulingChoice::EnsembleScheduling(ensembling)) = &mut config.scheduling_choice {
        for (step, model) in ensembling.step.iter_mut().zip(models) {
            step.model_namespace = model.namespace.to_owned();
        }
    }
    config.model_transaction_policy = Some(ModelTransactionPolicy {
        decoupled: is_decoupled,
    });
    Ok(())
}

/// What is known of one tensor of an ensemble.
struct EnsembleTensor<'a> {
    /// Who says so.
    label: &'a str,
    data_type: i32,
    dims: &'a [i64],
    has_batch_dim: bool,
}

type EnsembleTensors<'a> = BTreeMap<&'a str, EnsembleTensor<'a>>;

/// Returns whether the ensemble is decoupled.
fn check(
    config: &ModelConfig,
    label: &str,
    models: &[ComposingModels<'_>],
) -> Result<bool, ConfigError> {
    let Some(SchedulingChoice::EnsembleScheduling(ensembling)) = &config.scheduling_choice else {
        return Ok(false);
    };
    let mut tensors = EnsembleTensors::new();
    let has_batch_dim = config.max_batch_size > 0;
    let inputs = config.input.iter().map(|input| {
        let dims = input.reshape.as_ref().map_or(&input.dims, |to| &to.shape);
        (&input.name, input.data_type, dims)
    });
    let outputs = config.output.iter().map(|output| {
        let dims = output.reshape.as_ref().map_or(&output.dims, |to| &to.shape);
        (&output.name, output.data_type, dims)
    });
    for (name, data_type, dims) in inputs.chain(outputs) {
        tensors.entry(name).or_insert(EnsembleTensor {
            label,
            data_type,
            dims,
            has_batch_dim,
        });
    }
    for (step, model) in ensembling.step.iter().zip(models) {
        let batch_size_max = model.config.max_batch_size;
        if batch_size_max != 0 && batch_size_max < config.max_batch_size {
            return Err(ConfigError::invalid(format!(
                "ensemble {label} allows maximum batch size {}, but it contains model {} which \
                 only allows maximum batch size to be {batch_size_max}",
                config.max_batch_size, step.model_name
            )));
        }
        check_inputs(label, step, model, &mut tensors)?;
        check_outputs(label, step, model, &mut tensors)?;
    }
    check_sources(config, label, &ensembling.step, models)
}

fn check_inputs<'a>(
    label: &str,
    step: &'a Step,
    model: &ComposingModels<'a>,
    tensors: &mut EnsembleTensors<'a>,
) -> Result<(), ConfigError> {
    let known: BTreeSet<&str> = model.config.input.iter().map(|i| i.name.as_str()).collect();
    for (name, tensor) in &step.input_map {
        if !known.contains(name.as_str()) {
            return Err(ConfigError::invalid(format!(
                "in ensemble {label}, ensemble tensor {tensor} is mapping to non-existing input \
                 {name} in model {}",
                model.label
            )));
        }
    }
    for input in &model.config.input {
        match step.input_map.get(&input.name) {
            Some(tensor) => {
                let found = of_model(model, input.data_type, &input.dims);
                agree(label, tensor, found, tensors)?;
            }
            None if input.optional => {}
            None => {
                return Err(ConfigError::invalid(format!(
                    "in ensemble {label}, input {} in model {} is not mapped to any ensemble \
                     tensors",
                    input.name, model.label
                )));
            }
        }
    }
    Ok(())
}

fn check_outputs<'a>(
    label: &str,
    step: &'a Step,
    model: &ComposingModels<'a>,
    tensors: &mut EnsembleTensors<'a>,
) -> Result<(), ConfigError> {
    for (name, tensor) in &step.output_map {
        let Some(output) = model.config.output.iter().find(|o| o.name == *name) else {
            return Err(ConfigError::invalid(format!(
                "in ensemble {label}, ensemble tensor {tensor} is mapped from non-existing output \
                 {name} in model {}",
                step.model_name
            )));
        };
        let found = of_model(model, output.data_type, &output.dims);
        agree(label, tensor, found, tensors)?;
    }
    Ok(())
}

fn of_model<'a>(
    model: &ComposingModels<'a>,
    data_type: i32,
    dims: &'a [i64],
) -> EnsembleTensor<'a> {
    EnsembleTensor {
        label: model.label,
        data_type,
        dims,
        has_batch_dim: model.config.max_batch_size > 0,
    }
}

/// Compares what a model says of a tensor with what was said before, or notes it.
fn agree<'a>(
    label: &str,
    name: &'a str,
    found: EnsembleTensor<'a>,
    tensors: &mut EnsembleTensors<'a>,
) -> Result<(), ConfigError> {
    let Some(known) = tensors.get(name) else {
        tensors.insert(name, found);
        return Ok(());
    };
    let mismatch = |what: &str, known_is: String, found_is: String| {
        Err(ConfigError::invalid(format!(
            "in ensemble {label}, ensemble tensor {name}: inconsistent {what}: {known_is} is \
             inferred from model {} while {found_is} is inferred from model {}",
            known.label, found.label
        )))
    };
    if known.data_type != found.data_type {
        let (known_is, found_is) = (type_name(known.data_type), type_name(found.data_type));
        return mismatch("data type", known_is, found_is);
    }
    // With the batch dimension, too, as a tensor may go between a model that batches and one that
    // does not.
    let (known_is, found_is) = (known.full_dims(), found.full_dims());
    if !dims_agree(known.dims, found.dims) && !dims_agree(&known_is, &found_is) {
        return mismatch("shape", listed(&known_is), listed(&found_is));
    }
    Ok(())
}

impl EnsembleTensor<'_> {
    fn full_dims(&self) -> Vec<i64> {
        let batch = self.has_batch_dim.then_some(-1);
        batch.into_iter().chain(self.dims.iter().copied()).collect()
    }
}

/// Whether shapes are the same as far as they are fixed.
pub fn dims_agree(left: &[i64], right: &[i64]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(left, right)| left == right || *left == -1 || *right == -1)
}

/// Follows the tensors from the ensemble's inputs on. Each comes as often as the last decoupled
/// step before it answers; a step can only put together what comes equally often. Returns whether
/// there is a decoupled step.
fn check_sources(
    config: &ModelConfig,
    label: &str,
    steps: &[Step],
    models: &[ComposingModels<'_>],
) -> Result<bool, ConfigError> {
    // By tensor: the decoupled step that it comes from; none before the first.
    let mut sources: BTreeMap<&str, Option<usize>> = BTreeMap::new();
    let different = |label_of_reader: &str| {
        ConfigError::invalid(format!(
            "in ensemble {label}, step of model '{label_of_reader}' receives inputs originated \
             from different decoupled models"
        ))
    };
    for input in &config.input {
        sources.insert(&input.name, None);
    }
    let mut waiting: VecDeque<usize> = (0..steps.len()).collect();
    let mut fruitless_count = 0;
    let mut is_decoupled = false;
    while let Some(index) = waiting.pop_front() {
        let (Some(step), Some(model)) = (steps.get(index), models.get(index)) else {
            continue;
        };
        let mut of_inputs = step
            .input_map
            .values()
            .map(|name| sources.get(name.as_str()));
        if of_inputs.any(|source| source.is_none()) {
            // What is never reached was refused before.
            waiting.push_back(index);
            fruitless_count += 1;
            if fruitless_count > waiting.len() {
                break;
            }
            continue;
        }
        fruitless_count = 0;
        let mut of_inputs = step
            .input_map
            .values()
            .filter_map(|name| sources.get(name.as_str()));
        let first = of_inputs.next().copied().flatten();
        if of_inputs.any(|source| *source != first) {
            return Err(different(model.label));
        }
        let policy = model.config.model_transaction_policy.as_ref();
        let source = if policy.is_some_and(|policy| policy.decoupled) {
            is_decoupled = true;
            Some(index)
        } else {
            first
        };
        for tensor in step.output_map.values() {
            sources.insert(tensor, source);
        }
    }
    let mut of_outputs = config
        .output
        .iter()
        .filter_map(|output| sources.get(output.name.as_str()));
    let first = of_outputs.next();
    if of_outputs.any(|source| Some(source) != first) {
        return Err(different(label));
    }
    Ok(is_decoupled)
}

fn type_name(number: i32) -> String {
    inference::DataType::try_from(number).map_or_else(
        |_| number.to_string(),
        |data_type| data_type.as_str_name().to_owned(),
    )
}

fn listed(dims: &[i64]) -> String {
    let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}

/// The version of a step that means the highest one.
const LATEST: i64 = -1;

#[cfg(test)]
mod tests;
