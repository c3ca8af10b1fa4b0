//! Fills in what a configuration leaves out, from the engine, by the rules of upstream's backend.

use conch_backend_sdk as sdk;
use sdk::serde_json::{Value, json};
use sdk::{Error, ModelConfig};

use crate::facts::{Facts, Tensor};
use crate::profiles::profile_index;

/// Completes the largest batch, the scheduler, inputs and outputs; and what is to be told of it.
///
/// # Errors
/// What the configuration and the engine disagree on, in upstream's words.
pub fn complete(
    model_name: &str,
    config: &ModelConfig,
    facts: &Facts,
) -> Result<(ModelConfig, Vec<String>), Error> {
    let mut config = config.clone();
    let mut notes = Vec::new();
    let hints = hints(model_name, &config, facts)?;
    let supported = supported_batch(model_name, &config, facts)?;
    let supported = match hints {
        Hints {
            is_batching: true, ..
        } if supported == 0 => {
            return Err(Error::internal(format!(
                "autofill failed for model '{model_name}': model tensor shape configuration hints \
                 for dynamic batching but the underlying engine doesn't support batching."
            )));
        }
        Hints {
            is_batching: false,
            tensor_count,
        } if tensor_count > 0 => {
            notes.push(format!(
                "The specified dimensions in model config for {model_name} hints that batching is \
                 unavailable"
            ));
            0
        }
        _ => supported,
    };
    match config.max_batch_size() {
        0 => set(&mut config, "max_batch_size", json!(supported)),
        asked if asked > supported => {
            return Err(Error::internal(format!(
                "autofill failed for model '{model_name}': configuration specified max-batch \
                 {asked} but TensorRT engine only supports max-batch {supported}"
            )));
        }
        _ => {}
    }
    let has = |config: &ModelConfig, key| config.json().get(key).is_some_and(|at| !at.is_null());
    if supported > 1 && !has(&config, "sequence_batching") && !has(&config, "dynamic_batching") {
        set(&mut config, "dynamic_batching", json!({}));
    }
    let is_batching = config.max_batch_size() != 0;
    for (key, is_input) in [("input", true), ("output", false)] {
        let tensors = facts.tensors.iter();
        let tensors: Vec<_> = tensors
            .filter(|tensor| tensor.is_input == is_input)
            .collect();
        complete_tensors(&mut config, key, &tensors, is_batching)?;
    }
    Ok((config, notes))
}

/// What the shapes in the configuration say about batching.
struct Hints {
    is_batching: bool,
    /// Tensors that have a shape there.
    tensor_count: usize,
}

fn hints(model_name: &str, config: &ModelConfig, facts: &Facts) -> Result<Hints, Error> {
    let mut hints = Hints {
        is_batching: false,
        tensor_count: 0,
    };
    for (key, is_input) in [("input", true), ("output", false)] {
        for entry in entries(config, key) {
            if entry.get("allow_ragged_batch") == Some(&Value::Bool(true)) {
                hints.is_batching = true;
                return Ok(hints);
            }
            let dims = match entry.get("reshape").filter(|value| !value.is_null()) {
                Some(reshape) => reshape.get("shape"),
                None => entry.get("dims"),
            };
            let dims = dims
                .and_then(Value::as_array)
                .map_or(&[][..], Vec::as_slice);
            let name = entry
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let Some(tensor) = find(facts, name, is_input) else {
                return Err(unknown(facts, name, is_input));
            };
            if dims.is_empty() {
                continue;
            }
            hints.tensor_count += 1;
            let should_batch = match tensor.is_shape {
                false => tensor.dims.len() == dims.len() + 1,
                true => {
                    let first = dims.first().and_then(integer).unwrap_or(0);
                    tensor.dims.first() == Some(&(first + 1))
                }
            };
            hints.is_batching |= should_batch;
            if hints.is_batching && !should_batch {
                return Err(Error::internal(format!(
                    "unable to autofill for '{model_name}', model tensor configurations are \
                     contradicting each other in terms of whether batching is supported"
                )));
            }
        }
    }
    Ok(hints)
}

/// That a name in the configuration is none of the engine's.
pub fn unknown(facts: &Facts, name: &str, is_input: bool) -> Error {
    let tensors = facts.tensors.iter();
    let mut allowed: Vec<_> = tensors
        .filter(|tensor| tensor.is_input == is_input)
        .map(|tensor| tensor.name().into_owned())
        .collect();
    allowed.sort_unstable();
    let kind = if is_input { "input" } else { "output" };
    Error::invalid(format!(
        "unexpected inference {kind} '{name}', allowed {kind}s are: {}",
        allowed.join(", ")
    ))
}

/// The largest batch of the profiles that instances use.
fn supported_batch(model_name: &str, config: &ModelConfig, facts: &Facts) -> Result<i64, Error> {
    let mut profiles = Vec::new();
    for group in entries(config, "instance_group") {
        let names = group.get("profile").and_then(Value::as_array);
        for name in names.into_iter().flatten().filter_map(Value::as_str) {
            let index = profile_index(name)?;
            let known = usize::try_from(index).ok();
            let Some(index) = known.filter(|index| *index < facts.profiles.len()) else {
                return Err(Error::internal(format!(
                    "unable to autofill for '{model_name}', configuration specified invalid \
                     profile {name} . Number of profiles supported by TensorRT engine: {}",
                    facts.profiles.len()
                )));
            };
            profiles.push(index);
        }
    }
    if profiles.is_empty() {
        profiles.push(0);
    }
    let largest = profiles.iter().map(|profile| batch_of(facts, *profile));
    Ok(largest.max().unwrap_or(0))
}

/// The smallest of the first dimensions that the inputs of a profile can have at most.
fn batch_of(facts: &Facts, profile: usize) -> i64 {
    // A fixed first dimension counts as well, as it does upstream: an engine of batches of 8.
    let limits = facts.inputs().map(|(index, _)| {
        let bounds = facts.bounds(profile, index);
        let first = bounds.and_then(|bounds| match &bounds.values {
            Some([.., largest]) => largest.first().copied(),
            None => bounds.max.first().copied(),
        });
        first.unwrap_or(0)
    });
    limits.min().unwrap_or(0)
}

fn complete_tensors(
    config: &mut ModelConfig,
    key: &str,
    tensors: &[&Tensor],
    is_batching: bool,
) -> Result<(), Error> {
    if entries(config, key).is_empty() {
        let whole: Vec<_> = tensors
            .iter()
            .map(|tensor| whole_entry(tensor, is_batching))
            .collect();
        set(config, key, Value::Array(whole));
        return Ok(());
    }
    let Some(Value::Array(entries)) = config.json_mut().get_mut(key) else {
        return Ok(());
    };
    for entry in entries {
        let name = entry.get("name").and_then(Value::as_str).map(str::to_owned);
        let tensor = tensors
            .iter()
            .find(|tensor| Some(tensor.name().as_ref()) == name.as_deref());
        if let (Some(tensor), Some(entry)) = (tensor, entry.as_object_mut()) {
            let whole = whole_entry(tensor, is_batching);
            let take = |key: &str| whole.get(key).cloned();
            let data_type = entry.get("data_type").and_then(Value::as_str);
            if matches!(data_type, None | Some("" | "TYPE_INVALID"))
                && let Some(data_type) = take("data_type")
            {
                entry.insert("data_type".to_owned(), data_type);
            }
            let dims = entry.get("dims").and_then(Value::as_array);
            if dims.is_none_or(Vec::is_empty) {
                for key in ["dims", "reshape"] {
                    if let Some(value) = take(key) {
                        entry.insert(key.to_owned(), value);
                    }
                }
            }
            let is_set = |key: &str| entry.get(key) == Some(&Value::Bool(true));
            if is_set("is_shape_tensor") && !tensor.is_shape {
                return Err(Error::invalid(format!(
                    "'{}' is incorrectly specified as a shape tensor.",
                    tensor.name()
                )));
            }
            if is_set("is_non_linear_format_io") && tensor.format.is_linear {
                return Err(Error::invalid(format!(
                    "'{}' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly \
                     set to true in the model configuration.",
                    tensor.name()
                )));
            }
            for key in ["is_shape_tensor", "is_non_linear_format_io"] {
                if let Some(value) = take(key) {
                    entry.insert(key.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

/// The entry of a tensor that the configuration does not have.
fn whole_entry(tensor: &Tensor, is_batching: bool) -> Value {
    let dims = &tensor.dims;
    // A shape tensor's values have the batch first, and not its dimensions.
    let dims: Vec<i64> = match (tensor.is_shape, is_batching) {
        (true, true) => dims.iter().map(|dim| dim - 1).collect(),
        (true, false) | (false, false) => dims.clone(),
        (false, true) => dims.iter().skip(1).copied().collect(),
    };
    let data_type = tensor
        .data_type
        .map_or("TYPE_INVALID", sdk::DataType::config_name);
    let mut entry = json!({
        "name": tensor.name(),
        "data_type": data_type,
        "dims": dims,
        "is_shape_tensor": tensor.is_shape,
        "is_non_linear_format_io": !tensor.format.is_linear,
    });
    if dims.is_empty() && !tensor.is_shape {
        entry["dims"] = json!([1]);
        entry["reshape"] = json!({"shape": []});
    }
    entry
}

fn find<'f>(facts: &'f Facts, name: &str, is_input: bool) -> Option<&'f Tensor> {
    let mut tensors = facts.tensors.iter();
    tensors.find(|tensor| tensor.is_input == is_input && tensor.name() == name)
}

fn entries<'c>(config: &'c ModelConfig, key: &str) -> &'c [Value] {
    let entries = config.json().get(key).and_then(Value::as_array);
    entries.map_or(&[], Vec::as_slice)
}

fn integer(value: &Value) -> Option<i64> {
    let text = || value.as_str().and_then(|text| text.parse().ok());
    value.as_i64().or_else(text)
}

fn set(config: &mut ModelConfig, key: &str, value: Value) {
    if let Some(object) = config.json_mut().as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::testing::{bounds, tensor};

    fn batching() -> Facts {
        Facts {
            tensors: vec![
                tensor(c"A", true, &[-1, 16]),
                tensor(c"Y", false, &[-1, 16]),
            ],
            profiles: vec![
                vec![bounds(&[1, 16], &[2, 16], &[8, 16]), None],
                vec![bounds(&[1, 16], &[2, 16], &[32, 16]), None],
            ],
        }
    }

    fn completed(config: Value, facts: &Facts) -> Result<Value, String> {
        complete("m", &ModelConfig::new(config), facts)
            .map(|(config, _)| config.json().clone())
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn completes_an_empty_configuration() {
        let config = completed(json!({}), &batching()).unwrap();
        let entry = |name| {
            json!({"name": name, "data_type": "TYPE_FP32", "dims": [16],
                   "is_shape_tensor": false, "is_non_linear_format_io": false})
        };
        assert_eq!(
            config,
            json!({"max_batch_size": 8, "dynamic_batching": {},
                   "input": [entry("A")], "output": [entry("Y")]})
        );
    }

    #[test]
    fn the_profiles_of_instances_tell_the_batch() {
        let group = |profile: &[&str]| json!({"instance_group": [{"profile": profile}]});
        for (profiles, expected) in [(&["0"][..], 8), (&["0", "1"], 32), (&["1"], 32)] {
            let config = completed(group(profiles), &batching()).unwrap();
            assert_eq!(config["max_batch_size"], expected, "{profiles:?}");
        }
        assert_eq!(
            completed(group(&["2"]), &batching()).unwrap_err(),
            "unable to autofill for 'm', configuration specified invalid profile 2 . Number of \
             profiles supported by TensorRT engine: 2"
        );
    }

    #[test]
    fn what_is_there_stays() {
        let config = completed(
            json!({"max_batch_size": 4, "sequence_batching": {},
                   "input": [{"name": "A", "data_type": "TYPE_INVALID", "dims": []}],
                   "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": ["16"]}]}),
            &batching(),
        )
        .unwrap();
        assert_eq!(config["max_batch_size"], 4);
        assert!(config.get("dynamic_batching").is_none());
        assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
        assert_eq!(config["input"][0]["dims"], json!([16]));
        assert_eq!(config["output"][0]["dims"], json!(["16"]));
    }

    #[test]
    fn shapes_without_a_batch_switch_it_off() {
        let config = completed(
            json!({"input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [-1, 16]}]}),
            &batching(),
        )
        .unwrap();
        assert_eq!(config["max_batch_size"], 0);
        assert_eq!(config["output"][0]["dims"], json!([-1, 16]));
    }

    #[test]
    fn tells_what_does_not_fit() {
        let fixed = Facts {
            tensors: vec![tensor(c"A", true, &[]), tensor(c"Y", false, &[])],
            profiles: vec![vec![bounds(&[], &[], &[]), None]],
        };
        for (config, facts, expected) in [
            (
                json!({"max_batch_size": 9}),
                &batching(),
                "autofill failed for model 'm': configuration specified max-batch 9 but TensorRT \
                 engine only supports max-batch 8",
            ),
            (
                json!({"max_batch_size": 1}),
                &fixed,
                "autofill failed for model 'm': configuration specified max-batch 1 but TensorRT \
                 engine only supports max-batch 0",
            ),
            (
                json!({"input": [{"name": "A", "dims": [2], "allow_ragged_batch": true}]}),
                &fixed,
                "autofill failed for model 'm': model tensor shape configuration hints for \
                 dynamic batching but the underlying engine doesn't support batching.",
            ),
            (
                json!({"input": [{"name": "A", "dims": [16]}],
                       "output": [{"name": "Y", "dims": [-1, 16]}]}),
                &batching(),
                "unable to autofill for 'm', model tensor configurations are contradicting each \
                 other in terms of whether batching is supported",
            ),
            (
                json!({"input": [{"name": "A", "dims": [16], "is_shape_tensor": true}]}),
                &batching(),
                "'A' is incorrectly specified as a shape tensor.",
            ),
            (
                json!({"input": [{"name": "B", "dims": [16]}]}),
                &batching(),
                "unexpected inference input 'B', allowed inputs are: A",
            ),
        ] {
            assert_eq!(completed(config, facts).unwrap_err(), expected);
        }
    }
}
