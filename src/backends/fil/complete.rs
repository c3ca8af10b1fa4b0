//! Fills in what a configuration leaves out. Upstream's backend wants all of it said.

use conch_backend_sdk as sdk;
use sdk::serde_json::{Value, json};
use sdk::{Error, ModelConfig};

use crate::forest::model::Forest;
use crate::settings::Settings;
use crate::signature::{Answer, INPUT, OUTPUT, configured_width};

/// The completed configuration; none if nothing is missing.
///
/// # Errors
/// `InvalidArgument` if an output has a data type that there is not.
pub fn complete(
    config: &ModelConfig,
    forest: &Forest,
    settings: &Settings,
    default_max_batch_size: i64,
) -> Result<Option<ModelConfig>, Error> {
    let (has_input, has_output) = (has(config, "input"), has(config, "output"));
    if has_input && has_output {
        return Ok(None);
    }
    let mut completed = config.clone();
    // With one of them there, the configuration's choice of batching is one.
    if !has_input && !has_output && config.max_batch_size() == 0 {
        let size = default_max_batch_size.max(0);
        set(&mut completed, "max_batch_size", json!(size));
        let has_scheduler = ["sequence_batching", "dynamic_batching"]
            .iter()
            .any(|key| config.json().get(key).is_some_and(|value| !value.is_null()));
        if size > 1 && !has_scheduler {
            set(&mut completed, "dynamic_batching", json!({}));
        }
    }
    let is_batching = completed.max_batch_size() > 0;
    let tensor = |name: &str, width: usize| {
        let dims = if is_batching {
            json!([width])
        } else {
            json!([-1, width])
        };
        json!([{"name": name, "data_type": "TYPE_FP32", "dims": dims}])
    };
    if !has_input {
        set(&mut completed, "input", tensor(INPUT, forest.feature_count));
    }
    if !has_output {
        let answer = Answer::new(forest, settings, configured_width(config, OUTPUT)?);
        let width = answer.width(forest.class_count);
        set(&mut completed, "output", tensor(OUTPUT, width));
    }
    Ok(Some(completed))
}

fn has(config: &ModelConfig, key: &str) -> bool {
    let list = config.json().get(key).and_then(Value::as_array);
    list.is_some_and(|list| !list.is_empty())
}

fn set(config: &mut ModelConfig, key: &str, value: Value) {
    if let Some(object) = config.json_mut().as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forest::Link;
    use crate::forest::model::Task;

    fn check(text: &str, expected: Option<Value>) {
        let config = ModelConfig::parse(text.as_bytes()).unwrap();
        let forest = Forest {
            feature_count: 4,
            class_count: 1,
            task: Task::Binary,
            trees: vec![],
            is_averaged: false,
            base_scores: vec![0.0],
            link: Link::Identity,
        };
        let settings = Settings::new(&config).unwrap();
        let completed = complete(&config, &forest, &settings, 4).unwrap();
        assert_eq!(
            completed.map(|config| config.json().clone()),
            expected,
            "{text}"
        );
    }

    #[test]
    fn completes() {
        check(
            "{}",
            Some(json!({
                "max_batch_size": 4, "dynamic_batching": {},
                "input": [{"name": "input__0", "data_type": "TYPE_FP32", "dims": [4]}],
                "output": [{"name": "output__0", "data_type": "TYPE_FP32", "dims": [1]}],
            })),
        );
        let input = r#""input": [{"name": "input__0", "data_type": "TYPE_FP32", "dims": [-1, 4]}]"#;
        let given: Value = sdk::serde_json::from_str(&format!("{{{input}}}")).unwrap();
        let proba = r#""parameters": {"predict_proba": {"string_value": "true"}}"#;
        check(
            &format!("{{{input}, {proba}}}"),
            Some(json!({
                "input": given["input"], "parameters": {"predict_proba": {"string_value": "true"}},
                "output": [{"name": "output__0", "data_type": "TYPE_FP32", "dims": [-1, 2]}],
            })),
        );
        let output = input.replace("input", "output");
        check(&format!("{{{input}, {output}}}"), None);
    }
}
