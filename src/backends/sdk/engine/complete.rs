//! Fills in what a configuration leaves out, from the model's own signature, by upstream's rules.

use serde_json::{Value, json};

use super::tensor::{Signature, TensorInfo};
use crate::{Error, ModelConfig, ModelContext};

/// Fills in what the configuration of a model that is being loaded leaves out, if the server asks
/// for it, and tells in the log what it did. `signature` loads the model to tell what it takes; it
/// is only called where something is missing.
///
/// # Errors
/// Those of `signature` and [`complete`], or whatever the server reports.
pub fn autofill(
    context: &mut ModelContext,
    default_max_batch_size: i64,
    signature: impl FnOnce() -> Result<Signature, Error>,
) -> Result<(), Error> {
    if !context.may_complete()? {
        return Ok(());
    }
    let name = context.name().to_owned();
    if !is_incomplete(context.config()) {
        crate::info!(
            "skipping model configuration auto-complete for '{name}': inputs and outputs already \
             specified"
        );
        return Ok(());
    }
    let completed = complete(
        &name,
        context.config(),
        &signature()?,
        default_max_batch_size,
    )?;
    warn_of_batching(&name, context.config(), &completed);
    context.complete(&completed)
}

/// Says that a batch size was chosen that nobody asked for, as upstream does.
pub fn warn_of_batching(model_name: &str, config: &ModelConfig, completed: &ModelConfig) {
    let size = completed.max_batch_size();
    if config.max_batch_size() == 0 && size > 0 {
        crate::warning!(
            "autofilled max_batch_size to {size} for model '{model_name}' since batching is \
             supported but no max_batch_size is specified in model configuration. Must specify \
             max_batch_size to utilize autofill with a larger max batch size"
        );
    }
}

/// Whether the configuration leaves out inputs or outputs, without which upstream completes
/// nothing.
pub fn is_incomplete(config: &ModelConfig) -> bool {
    count(config, "input") + count(config, "batch_input") == 0 || count(config, "output") == 0
}

/// Completes batch size, scheduler, inputs and outputs.
///
/// # Errors
/// `InvalidArgument` if the configuration has a batch size and the model cannot batch.
pub fn complete(
    model_name: &str,
    config: &ModelConfig,
    signature: &Signature,
    default_max_batch_size: i64,
) -> Result<ModelConfig, Error> {
    let mut config = config.clone();
    complete_batching(model_name, &mut config, signature, default_max_batch_size)?;
    let is_batching = config.max_batch_size() > 0;
    if count(&config, "input") + count(&config, "batch_input") == 0 {
        set(
            &mut config,
            "input",
            tensors(&signature.inputs, is_batching),
        );
    }
    if count(&config, "output") == 0 {
        set(
            &mut config,
            "output",
            tensors(&signature.outputs, is_batching),
        );
    }
    Ok(config)
}

fn complete_batching(
    model_name: &str,
    config: &mut ModelConfig,
    signature: &Signature,
    default_max_batch_size: i64,
) -> Result<(), Error> {
    let can_batch = signature
        .inputs
        .iter()
        .chain(&signature.outputs)
        .all(|info| info.dims.first() == Some(&-1));
    if !can_batch {
        if config.max_batch_size() != 0 {
            return Err(Error::invalid(format!(
                "autofill failed for model '{model_name}': model does not support batching while \
                 non-zero max_batch_size is specified"
            )));
        }
        return Ok(());
    }
    if config.max_batch_size() == 0 {
        let size = default_max_batch_size.max(0);
        set(config, "max_batch_size", json!(size));
    }
    let has_scheduler = [
        "sequence_batching",
        "dynamic_batching",
        "ensemble_scheduling",
    ]
    .iter()
    .any(|key| config.json().get(key).is_some_and(|value| !value.is_null()));
    if config.max_batch_size() > 1 && !has_scheduler {
        set(config, "dynamic_batching", json!({}));
    }
    Ok(())
}

fn tensors(infos: &[TensorInfo], is_batching: bool) -> Value {
    infos
        .iter()
        .map(|info| {
            let dims = info
                .dims
                .get(usize::from(is_batching)..)
                .unwrap_or_default();
            let mut tensor = json!({
                "name": info.name(),
                "data_type": info.data_type.config_name(),
                "dims": dims,
            });
            if let (true, Some(object)) = (dims.is_empty(), tensor.as_object_mut()) {
                object.insert("dims".to_owned(), json!([1]));
                // An empty reshape without batching would be a scalar, which a configuration cannot
                // say.
                if is_batching {
                    object.insert("reshape".to_owned(), json!({"shape": []}));
                }
            }
            tensor
        })
        .collect()
}

fn count(config: &ModelConfig, key: &str) -> usize {
    let list = config.json().get(key).and_then(Value::as_array);
    list.map_or(0, Vec::len)
}

fn set(config: &mut ModelConfig, key: &str, value: Value) {
    if let Some(object) = config.json_mut().as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::DataType;

    fn info(name: &str, dims: &[i64]) -> TensorInfo {
        TensorInfo {
            name: CString::new(name).unwrap(),
            data_type: DataType::Fp32,
            dims: dims.to_vec(),
        }
    }

    fn completed(
        config: &str,
        input: &[i64],
        output: &[i64],
        default: i64,
    ) -> Result<Value, Error> {
        let signature = Signature {
            inputs: vec![info("A", input)],
            outputs: vec![info("B", output)],
            initializers: vec![],
        };
        let config = ModelConfig::parse(config.as_bytes())?;
        complete("m", &config, &signature, default).map(|config| config.json().clone())
    }

    #[test]
    fn completes_models_that_batch() {
        assert_eq!(
            completed("{}", &[-1, 16], &[-1], 4).unwrap(),
            json!({
                "max_batch_size": 4,
                "dynamic_batching": {},
                "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [16]}],
                "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [1],
                            "reshape": {"shape": []}}],
            })
        );
        // A default of one row needs no scheduler; of none, no batching.
        let one = completed("{}", &[-1, 16], &[-1, 2], 1).unwrap();
        assert_eq!(one["max_batch_size"], 1);
        assert!(one.get("dynamic_batching").is_none());
        let none = completed("{}", &[-1, 16], &[-1, 2], 0).unwrap();
        assert_eq!(none["max_batch_size"], 0);
        assert_eq!(none["input"][0]["dims"], json!([-1, 16]));
    }

    #[test]
    fn keeps_what_is_there() {
        let config =
            r#"{"max_batch_size": 32, "sequence_batching": {}, "output": [{"name": "X"}]}"#;
        let value = completed(config, &[-1, 16], &[-1, 2], 4).unwrap();
        assert_eq!(value["max_batch_size"], 32);
        assert!(value.get("dynamic_batching").is_none());
        assert_eq!(value["output"], json!([{"name": "X"}]));
        assert_eq!(value["input"][0]["name"], "A");
    }

    #[test]
    fn completes_models_that_do_not_batch() {
        let value = completed("{}", &[3, 2], &[], 4).unwrap();
        assert!(value.get("max_batch_size").is_none());
        assert_eq!(value["input"][0]["dims"], json!([3, 2]));
        assert_eq!(
            value["output"][0],
            json!({"name": "B", "data_type": "TYPE_FP32", "dims": [1]})
        );
        let refused = completed(r#"{"max_batch_size": 8}"#, &[3, 2], &[-1], 4).unwrap_err();
        assert!(refused.message().contains("does not support batching"));
    }

    #[test]
    fn knows_what_is_incomplete() {
        for (config, expected) in [
            ("{}", true),
            (r#"{"input": [{}]}"#, true),
            (r#"{"input": [{}], "output": [{}]}"#, false),
            (r#"{"batch_input": [{}], "output": [{}]}"#, false),
        ] {
            let config = ModelConfig::parse(config.as_bytes()).unwrap();
            assert_eq!(is_incomplete(&config), expected);
        }
    }
}
