//! The call specification of a compiled model: what its `forward` takes and returns, as names by
//! which a configuration can address each tensor.
//!
//! It is JSON, `[1, {"type", "context", "children_spec"}]`: tuples, lists and dictionaries, whose
//! keys are in the context, down to leaves without a type. Inputs are a tuple of two: positional
//! arguments, and a dictionary of those with keywords.

use conch_backend_sdk as sdk;
use sdk::engine::TensorInfo;
use sdk::serde_json::{self, Value};
use sdk::{Error, ModelConfig};

use crate::wiring::{Wiring, check_types, signature_of};

/// Names of the inputs in the model's order: `ARGS[0]`, `ARGS[1][key]`, `KWARGS[key]`.
///
/// # Errors
/// `Unsupported` if it says what cannot be addressed.
pub fn input_names(text: &str) -> Result<Vec<String>, Error> {
    let spec = parse(text)?;
    let parts = match (type_of(&spec), children(&spec)) {
        (Some("builtins.tuple"), [arguments, keywords]) => Some((arguments, keywords)),
        _ => None,
    };
    let (arguments, keywords) = parts
        .ok_or_else(|| refused("its inputs are no tuple of arguments and keyword arguments"))?;
    let mut names = Vec::new();
    collect(arguments, "ARGS", &mut names)?;
    collect(keywords, "KWARGS", &mut names)?;
    Ok(names)
}

/// Names of the outputs in the model's order: `RESULT`, `RESULT[0]`, `RESULT[key][1]`.
///
/// # Errors
/// As [`input_names`].
pub fn output_names(text: &str) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    collect(&parse(text)?, "RESULT", &mut names)?;
    Ok(names)
}

/// Brings a configuration together with a compiled model, each of whose tensors it names as the
/// call specification does, or `INPUT__<index>` and `OUTPUT__<index>`.
///
/// # Errors
/// Upstream's, if they do not fit.
pub fn wire(
    model_name: &str,
    config: &ModelConfig,
    inputs: &[String],
    outputs: &[String],
) -> Result<Wiring, Error> {
    let signature = signature_of(config)?;
    check_types(model_name, &signature, false)?;
    let expected = signature.inputs.len();
    if inputs.len() != expected {
        return Err(Error::internal(format!(
            "Failed to load model \"{model_name}\" configuration expects {expected} inputs, but \
             model expects {} inputs.",
            inputs.len()
        )));
    }
    if signature.outputs.is_empty() {
        return Err(Error::internal(format!(
            "Configuration for model \"{model_name}\" must define at least one output, none were \
             specified."
        )));
    }
    let wiring = Wiring {
        inputs: positions(model_name, "Input", &signature.inputs, inputs)?,
        outputs: positions(model_name, "Output", &signature.outputs, outputs)?,
        signature,
    };
    let mut given = wiring.inputs.clone();
    given.sort_unstable();
    given.dedup();
    if given.len() != wiring.inputs.len() {
        return Err(Error::invalid(format!(
            "Failed to load model \"{model_name}\": two inputs of the configuration are the same \
             input of the model"
        )));
    }
    Ok(wiring)
}

/// Where each tensor of the configuration is among those of the model.
fn positions(
    model_name: &str,
    side: &str,
    infos: &[TensorInfo],
    names: &[String],
) -> Result<Vec<usize>, Error> {
    let prefix = format!("{}__", side.to_uppercase());
    let position = |info: &TensorInfo| {
        let name = info.name();
        let by_name = names.iter().position(|known| known == name);
        let by_index = || name.strip_prefix(&prefix)?.parse().ok();
        by_name
            .or_else(by_index)
            .filter(|&index| index < names.len())
            .ok_or_else(|| {
                Error::internal(format!(
                    "{side} \"{name}\" for model instance \"{model_name}\" is not found in model \
                     {} map. It has: {}",
                    side.to_lowercase(),
                    names.join(", ")
                ))
            })
    };
    infos.iter().map(position).collect()
}

fn parse(text: &str) -> Result<Value, Error> {
    let parsed: Result<[Value; 2], _> = serde_json::from_str(text);
    match parsed {
        Ok([_, spec]) if spec.is_object() => Ok(spec),
        Ok(_) => Err(refused("it is no object")),
        Err(error) => Err(refused(&error.to_string())),
    }
}

/// Appends the names of the leaves under `spec`. The JSON's depth is bounded by its parser.
fn collect(spec: &Value, prefix: &str, names: &mut Vec<String>) -> Result<(), Error> {
    let children = children(spec);
    let keys: Vec<String> = match type_of(spec) {
        None => {
            names.push(prefix.to_owned());
            return Ok(());
        }
        Some("builtins.tuple" | "builtins.list") => {
            (0..children.len()).map(|index| index.to_string()).collect()
        }
        Some("builtins.dict") => keys(spec)?,
        Some(other) => {
            return Err(refused(&format!(
                "Value of `type` property ('{other}') is unsupported."
            )));
        }
    };
    if keys.len() != children.len() {
        return Err(refused(
            "Number of entries in 'children_spec' does not match number of entries in 'context'.",
        ));
    }
    for (key, child) in keys.iter().zip(children) {
        collect(child, &format!("{prefix}[{key}]"), names)?;
    }
    Ok(())
}

fn type_of(spec: &Value) -> Option<&str> {
    spec.get("type").and_then(Value::as_str)
}

fn children(spec: &Value) -> &[Value] {
    let children = spec.get("children_spec").and_then(Value::as_array);
    children.map_or(&[], Vec::as_slice)
}

/// Keys of a dictionary: an array of strings, or its text.
fn keys(spec: &Value) -> Result<Vec<String>, Error> {
    let context = spec.get("context").unwrap_or(&Value::Null);
    let parsed = match context.as_str() {
        Some(text) => serde_json::from_str(text).unwrap_or(Value::Null),
        None => context.clone(),
    };
    match parsed {
        Value::Null => Ok(Vec::new()),
        keys => serde_json::from_value(keys)
            .map_err(|_| refused("the keys of a dictionary in it are no strings")),
    }
}

fn refused(why: &str) -> Error {
    Error::unsupported(format!(
        "Failed to parse PyTorch model's PT2 call specification: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn node(kind: &str, context: &str, children: &[String]) -> String {
        let children = children.join(", ");
        format!(
            r#"{{"type": "builtins.{kind}", "context": {context}, "children_spec": [{children}]}}"#
        )
    }

    fn leaf() -> String {
        LEAF.to_owned()
    }

    #[test]
    fn names_inputs() {
        let options = node("dict", r#""[\"keyA\", \"key2\"]""#, &[leaf(), leaf()]);
        let arguments = node("tuple", r#""null""#, &[leaf(), leaf(), options]);
        let keywords = node("dict", r#"["kwarg1"]"#, &[leaf()]);
        let spec = format!(
            "[1, {}]",
            node("tuple", r#""null""#, &[arguments, keywords])
        );
        assert_eq!(
            input_names(&spec).unwrap(),
            [
                "ARGS[0]",
                "ARGS[1]",
                "ARGS[2][keyA]",
                "ARGS[2][key2]",
                "KWARGS[kwarg1]"
            ]
        );
        let none = node("dict", r#""[]""#, &[]);
        let spec = format!(
            "[1, {}]",
            node("tuple", "null", &[node("tuple", "null", &[leaf()]), none])
        );
        assert_eq!(input_names(&spec).unwrap(), ["ARGS[0]"]);
    }

    #[test]
    fn names_outputs() {
        let pair = node("tuple", "null", &[leaf(), leaf()]);
        let all = node("dict", r#""[\"AAA\", \"BBB\"]""#, &[leaf(), pair.clone()]);
        for (spec, expected) in [
            (leaf(), &["RESULT"][..]),
            (pair, &["RESULT[0]", "RESULT[1]"]),
            (all, &["RESULT[AAA]", "RESULT[BBB][0]", "RESULT[BBB][1]"]),
            (node("list", "null", &[leaf()]), &["RESULT[0]"]),
        ] {
            assert_eq!(
                output_names(&format!("[1, {spec}]")).unwrap(),
                expected,
                "{spec}"
            );
        }
    }

    /// What a configuration's names are to a model of two inputs and two outputs.
    fn wired(inputs: &[&str], outputs: &[&str]) -> Result<(Vec<usize>, Vec<usize>), Error> {
        let names = |names: [&str; 2]| names.map(str::to_owned);
        let tensors = |names: &[&str]| -> Value {
            let tensor =
                |name| serde_json::json!({"name": name, "data_type": "TYPE_FP32", "dims": [2]});
            names.iter().map(tensor).collect()
        };
        let config = ModelConfig::new(serde_json::json!({
            "input": tensors(inputs), "output": tensors(outputs),
        }));
        let model_inputs = names(["ARGS[0]", "KWARGS[k]"]);
        let model_outputs = names(["RESULT[a]", "RESULT[b]"]);
        wire("m", &config, &model_inputs, &model_outputs)
            .map(|wiring| (wiring.inputs, wiring.outputs))
    }

    #[test]
    fn names_in_a_configuration() {
        for (inputs, outputs, expected) in [
            (
                ["ARGS[0]", "KWARGS[k]"],
                &["RESULT[b]"][..],
                (vec![0, 1], vec![1]),
            ),
            (
                ["INPUT__1", "ARGS[0]"],
                &["OUTPUT__1", "OUTPUT__0"],
                (vec![1, 0], vec![1, 0]),
            ),
        ] {
            assert_eq!(wired(&inputs, outputs), Ok(expected));
        }
    }

    #[test]
    fn refuses_names_that_do_not_fit() {
        for (inputs, outputs, expected) in [
            (
                &["INPUT__1"][..],
                &["OUTPUT__0"][..],
                "Failed to load model \"m\" configuration expects 1 inputs, but model expects 2 \
                 inputs.",
            ),
            (
                &["x", "INPUT__1"],
                &["OUTPUT__0"],
                "Input \"x\" for model instance \"m\" is not found in model input map. It has: \
                 ARGS[0], KWARGS[k]",
            ),
            (
                &["INPUT__0", "INPUT__1"],
                &["OUTPUT__2"],
                "Output \"OUTPUT__2\" for model instance \"m\" is not found in model output map. \
                 It has: RESULT[a], RESULT[b]",
            ),
            (
                &["INPUT__0", "ARGS[0]"],
                &["OUTPUT__0"],
                "Failed to load model \"m\": two inputs of the configuration are the same input of \
                 the model",
            ),
            (
                &["INPUT__0", "INPUT__1"],
                &[],
                "Configuration for model \"m\" must define at least one output, none \
                 were specified.",
            ),
        ] {
            assert_eq!(wired(inputs, outputs).unwrap_err().message(), expected);
        }
    }

    #[test]
    fn refuses_what_cannot_be_addressed() {
        let ordered =
            r#"{"type": "collections.OrderedDict", "context": null, "children_spec": []}"#;
        for text in [
            "",
            "[]",
            "[1, 2]",
            "[1, {}, 3]",
            &format!("[1, {ordered}]"),
            &format!("[1, {}]", node("dict", r#""[\"one\"]""#, &[])),
            &format!("[1, {}]", node("dict", "[1]", &[leaf()])),
            &format!("[1, {}]", node("dict", "7", &[leaf()])),
        ] {
            assert!(output_names(text).is_err(), "{text}");
            assert!(input_names(text).is_err(), "{text}");
        }
        // Deeper than the parser goes.
        let deep = "[1, ".to_owned() + &r#"{"children_spec": ["#.repeat(1000);
        assert!(output_names(&deep).is_err());
    }
}
