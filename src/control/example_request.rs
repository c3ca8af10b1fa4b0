//! A request that a model answers, as a command that a shell takes: names, types and shapes are the
//! model's, values are ones. Pure functions.
//!
//! Sizes that the model leaves open are 1. Whether a model likes that, only its author knows.

use conch_config::{DataType, ResolvedConfig, Scheduling, TensorSpec};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

use crate::json::to_json;

/// How curl reaches the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurlTarget {
    /// `http://localhost:8000`.
    pub origin: String,
    /// Words that stand before the URL, without quotes.
    pub options: Vec<String>,
}

/// The command, on one line. None if no shell could send it: the tensors are too large, or the
/// model streams what JSON cannot hold.
pub fn curl(config: &ResolvedConfig, target: &CurlTarget) -> Option<String> {
    if config.is_decoupled {
        return generate(config, target);
    }
    let mut tail_bytes: u64 = 0;
    let mut inputs = Vec::with_capacity(config.inputs.len());
    for spec in &config.inputs {
        let example = InputExample::of(spec, config.is_batching())?;
        if let Some(InputParameters { binary_data_size }) = example.parameters {
            tail_bytes = tail_bytes.checked_add(binary_data_size)?;
        }
        inputs.push(example);
    }
    let has_binary_outputs = config
        .outputs
        .iter()
        .any(|spec| !is_in_json(spec.data_type));
    let is_sequence = matches!(config.scheduling, Scheduling::Sequence(_));
    let request = RequestExample {
        parameters: (has_binary_outputs || is_sequence).then_some(RequestParameters {
            sequence_id: is_sequence.then_some(1),
            sequence_start: is_sequence.then_some(true),
            sequence_end: is_sequence.then_some(true),
            binary_data_output: has_binary_outputs.then_some(true),
        }),
        inputs,
    };
    let json = to_json(&request);
    let call = call(target, &config.name, "infer");
    let shown = shown(config, has_binary_outputs);
    if tail_bytes == 0 {
        return Some(format!("curl -sS {call} -d {}{shown}", quoted(&json)));
    }
    // Zeros are values of every type: numbers, and for BYTES strings without a byte.
    Some(format!(
        "{{ printf %s {}; head -c {tail_bytes} /dev/zero; }} | curl -sS {call} -H \
         'Inference-Header-Content-Length: {}' --data-binary @-{shown}",
        quoted(&json),
        json.len()
    ))
}

/// For models that answer with any number of responses, which only streams carry.
fn generate(config: &ResolvedConfig, target: &CurlTarget) -> Option<String> {
    let mut members = serde_json::Map::new();
    for spec in &config.inputs {
        let count = element_count(&shape_of(spec, config.is_batching()))?;
        if count > JSON_VALUES_MAX || !is_in_json(spec.data_type) {
            return None;
        }
        let value = match spec.data_type {
            DataType::Bool => serde_json::Value::from(true),
            DataType::Bytes => serde_json::Value::from("text"),
            _ => serde_json::Value::from(1),
        };
        let value = match count {
            1 => value,
            count => serde_json::Value::from(vec![value; usize::try_from(count).ok()?]),
        };
        members.insert(spec.name.to_string(), value);
    }
    let call = call(target, &config.name, "generate_stream");
    let json = to_json(&members);
    Some(format!("curl -sSN {call} -d {}", quoted(&json)))
}

/// Options and URL.
fn call(target: &CurlTarget, name: &str, operation: &str) -> String {
    let mut words: Vec<String> = target.options.iter().map(|word| quoted(word)).collect();
    let url = format!("{}/v2/models/{name}/{operation}", target.origin);
    words.push(quoted(&url));
    words.join(" ")
}

/// What keeps a terminal usable: bytes that are no text, and answers that fill pages.
fn shown(config: &ResolvedConfig, has_binary_outputs: bool) -> String {
    let counts = config.outputs.iter().map(|spec| {
        let count = element_count(&shape_of(spec, config.is_batching()));
        count.unwrap_or(u64::MAX)
    });
    let count = counts.fold(0, u64::saturating_add);
    if has_binary_outputs {
        format!(" | LC_ALL=C tr -c '[:print:]' . | cut -c 1-{SHOWN_CHARACTERS}")
    } else if count > SHOWN_VALUES_MAX {
        format!(" | cut -c 1-{SHOWN_CHARACTERS}")
    } else {
        String::new()
    }
}

/// A request of the inference protocol, in the order in which its documentation has the members.
#[derive(Serialize)]
struct RequestExample<'c> {
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<RequestParameters>,
    inputs: Vec<InputExample<'c>>,
}

#[derive(Serialize)]
struct RequestParameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_start: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_end: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data_output: Option<bool>,
}

#[derive(Serialize)]
struct InputExample<'c> {
    name: &'c str,
    datatype: &'static str,
    shape: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<ExampleValues>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<InputParameters>,
}

#[derive(Serialize)]
struct InputParameters {
    binary_data_size: u64,
}

impl InputExample<'_> {
    fn of(spec: &TensorSpec, is_batching: bool) -> Option<InputExample<'_>> {
        let shape = shape_of(spec, is_batching);
        let count = element_count(&shape)?;
        let is_json = count <= JSON_VALUES_MAX && is_in_json(spec.data_type);
        // A string is its length, in four bytes, and what it says.
        let element_bytes = spec.data_type.element_bytes().unwrap_or(4);
        let bytes = count.checked_mul(u64::try_from(element_bytes).ok()?)?;
        if bytes > BYTES_MAX {
            return None;
        }
        Some(InputExample {
            name: &spec.name,
            datatype: spec.data_type.name(),
            shape,
            data: is_json.then_some(ExampleValues {
                count,
                data_type: spec.data_type,
            }),
            parameters: (!is_json).then_some(InputParameters {
                binary_data_size: bytes,
            }),
        })
    }
}

/// As many ones as a tensor has elements.
struct ExampleValues {
    count: u64,
    data_type: DataType,
}

impl Serialize for ExampleValues {
    fn serialize<S: Serializer>(&self, target: S) -> Result<S::Ok, S::Error> {
        let mut values = target.serialize_seq(None)?;
        for _ in 0..self.count {
            match self.data_type {
                DataType::Bool => values.serialize_element(&true)?,
                DataType::Bytes => values.serialize_element("text")?,
                _ => values.serialize_element(&1)?,
            }
        }
        values.end()
    }
}

/// With the batch dimension, and 1 where the size is open.
fn shape_of(spec: &TensorSpec, is_batching: bool) -> Vec<u64> {
    let has_batch = is_batching && !spec.is_shape_tensor;
    let dims = spec.dims.iter().map(|dim| u64::try_from(*dim).unwrap_or(1));
    has_batch.then_some(1).into_iter().chain(dims).collect()
}

fn element_count(shape: &[u64]) -> Option<u64> {
    let mut dims = shape.iter();
    dims.try_fold(1_u64, |count, dim| count.checked_mul(*dim))
}

/// The protocol writes values of these types only as bytes.
fn is_in_json(data_type: DataType) -> bool {
    !matches!(data_type, DataType::Fp16 | DataType::Bf16)
}

/// As one word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return String::from(word);
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Values of an input that are written out; some lines of a terminal.
const JSON_VALUES_MAX: u64 = 64;
/// Bytes of an input that is sent by an example.
const BYTES_MAX: u64 = 1 << 30;
/// Values of the outputs that are shown whole, and what is shown of more.
const SHOWN_VALUES_MAX: u64 = 64;
const SHOWN_CHARACTERS: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(config: &str) -> Option<String> {
        let mut message = conch_config::parse_text("m", config.as_bytes()).unwrap();
        conch_config::normalize(&mut message);
        let config = ResolvedConfig::from_partial(message).unwrap();
        let target = CurlTarget {
            origin: String::from("http://localhost:8000"),
            options: Vec::new(),
        };
        curl(&config, &target)
    }

    const URL: &str = "http://localhost:8000/v2/models/m/infer";
    const OUTPUT: &str = "output { name: 'Y' data_type: TYPE_FP32 dims: [ 4 ] } ";

    fn input(name: &str, data_type: &str, dims: &str) -> String {
        format!("input {{ name: \"{name}\" data_type: TYPE_{data_type} dims: [ {dims} ] }} ")
    }

    /// Looks at rows of a configuration and the command, or none.
    fn check(table: &[(String, Option<String>)]) {
        for (config, expected) in table {
            let told = told(&format!("name: 'm' backend: 'b' {config}"));
            assert_eq!(told, *expected, "{config}");
        }
    }

    #[test]
    fn commands_for_tensors() {
        check(&[
            (
                input("X", "FP32", "-1, 2") + &input("B", "BOOL", "1") + OUTPUT,
                Some(format!(
                    r#"curl -sS {URL} -d '{{"inputs":[{},{}]}}'"#,
                    r#"{"name":"X","datatype":"FP32","shape":[1,2],"data":[1,1]}"#,
                    r#"{"name":"B","datatype":"BOOL","shape":[1],"data":[true]}"#
                )),
            ),
            (
                String::from("max_batch_size: 4 ") + &input("it's", "STRING", "2") + OUTPUT,
                Some(format!(
                    r#"curl -sS {URL} -d '{{"inputs":[{}]}}'"#,
                    r#"{"name":"it'\''s","datatype":"BYTES","shape":[1,2],"data":["text","text"]}"#
                )),
            ),
            (
                input("X", "FP32", "3, 224, 224") + &input("N", "INT64", "1") + OUTPUT,
                Some(format!(
                    "{{ printf %s '{{\"inputs\":[{},{}]}}'; head -c 602112 /dev/zero; }} | \
                     curl -sS {URL} -H 'Inference-Header-Content-Length: 159' --data-binary @-",
                    concat!(
                        r#"{"name":"X","datatype":"FP32","shape":[3,224,224],"#,
                        r#""parameters":{"binary_data_size":602112}}"#
                    ),
                    r#"{"name":"N","datatype":"INT64","shape":[1],"data":[1]}"#
                )),
            ),
            (
                input("X", "FP32", "1") + "output { name: 'Y' data_type: TYPE_FP32 dims: [ 65 ] }",
                Some(format!(
                    r#"curl -sS {URL} -d '{{"inputs":[{}]}}' | cut -c 1-400"#,
                    r#"{"name":"X","datatype":"FP32","shape":[1],"data":[1]}"#
                )),
            ),
            (
                input("X", "FP16", "2") + "output { name: 'Y' data_type: TYPE_BF16 dims: [ 2 ] }",
                Some(format!(
                    "{{ printf %s '{{{},\"inputs\":[{}]}}'; head -c 4 /dev/zero; }} | curl -sS \
                     {URL} -H 'Inference-Header-Content-Length: 132' --data-binary @- | \
                     LC_ALL=C tr -c '[:print:]' . | cut -c 1-400",
                    r#""parameters":{"binary_data_output":true}"#,
                    concat!(
                        r#"{"name":"X","datatype":"FP16","shape":[2],"#,
                        r#""parameters":{"binary_data_size":4}}"#
                    )
                )),
            ),
        ]);
    }

    #[test]
    fn commands_for_kinds_of_models() {
        check(&[
            (
                String::from("max_batch_size: 1 sequence_batching { } ")
                    + &input("X", "INT32", "1")
                    + OUTPUT,
                Some(format!(
                    r#"curl -sS {URL} -d '{{{},"inputs":[{}]}}'"#,
                    concat!(
                        r#""parameters":{"sequence_id":1,"#,
                        r#""sequence_start":true,"sequence_end":true}"#
                    ),
                    r#"{"name":"X","datatype":"INT32","shape":[1,1],"data":[1]}"#
                )),
            ),
            (
                String::from("model_transaction_policy { decoupled: true } ")
                    + &input("X", "INT32", "2")
                    + &input("S", "STRING", "1")
                    + OUTPUT,
                Some(format!(
                    r#"curl -sSN {}generate_stream -d '{{"S":"text","X":[1,1]}}'"#,
                    URL.trim_end_matches("infer")
                )),
            ),
            (
                input("X", "FP32", "1000000, 1000000, 1000000, 1000000") + OUTPUT,
                None,
            ),
        ]);
    }

    #[test]
    fn words_of_a_shell() {
        for (word, expected) in [
            ("http://[::1]:8000/v2", "'http://[::1]:8000/v2'"),
            ("--unix-socket", "--unix-socket"),
            ("/run/a socket", "'/run/a socket'"),
            ("$(x) `y` \"z\" 'w'", r#"'$(x) `y` "z" '\''w'\'''"#),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), expected, "{word}");
        }
    }
}
