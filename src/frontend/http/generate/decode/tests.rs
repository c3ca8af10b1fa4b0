//! Members of requests and their refusals, with upstream's texts and codes.

use conch_config::{normalize, parse_text};
use conch_engine::{Code, ParameterValue};

use super::*;

const INPUTS: &str = r#"
    input { name: "F" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
    input { name: "PAIRS" data_type: TYPE_INT32 dims: [ -1, 2 ] optional: true }
    input { name: "FOUR" data_type: TYPE_INT64 dims: [ 4 ] optional: true }
    input { name: "WIDE" data_type: TYPE_UINT8 dims: [ -1, -1 ] optional: true }
    input { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] optional: true }
    input { name: "FLAG" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "HALF" data_type: TYPE_FP16 dims: [ -1 ] optional: true }
    input { name: "data" data_type: TYPE_FP64 dims: [ -1 ] optional: true }
"#;

const LIMITS: JsonLimits = JsonLimits {
    input_bytes_max: 1 << 10,
    strict_integers: false,
};

fn config(inputs: &str, batch: u32) -> Arc<ResolvedConfig> {
    let text = format!(
        "name: \"m\" backend: \"b\" max_batch_size: {batch} {inputs} output {{ name: \"OUT\" \
         data_type: TYPE_FP32 dims: [ -1 ] }}"
    );
    let mut message = parse_text("config.pbtxt", &text).unwrap();
    normalize(&mut message);
    Arc::new(ResolvedConfig::from_message(message).unwrap())
}

/// The decoded request as text: id, inputs as `name[shape]=bytes`, parameters.
fn decoded(text: &[u8], config: &Arc<ResolvedConfig>) -> Result<String, Error> {
    let mut decoded = decode(ByteView::copy_of(text), config, LIMITS)?;
    let draft = decoded.draft();
    let mut rows: Vec<String> = Vec::new();
    for input in &draft.inputs {
        let bytes: Vec<u8> = input
            .chunks
            .iter()
            .flat_map(|chunk| chunk.as_ref().to_vec())
            .collect();
        rows.push(format!(
            "{}{:?}={bytes:?}",
            input.name,
            input.shape.as_slice()
        ));
    }
    rows.extend(draft.parameters.iter().map(|parameter| {
        let value = match &parameter.value {
            ParameterValue::Text(text) => format!("{text:?}"),
            ParameterValue::Int(number) => number.to_string(),
            ParameterValue::Bool(flag) => flag.to_string(),
            ParameterValue::Double(number) => format!("{number:?}"),
        };
        format!("{}: {value}", parameter.name)
    }));
    Ok(format!("{}|{}", draft.id, rows.join(" ")))
}

fn bytes_of<const N: usize>(values: [f32; N]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[test]
fn members_become_tensors_and_parameters() {
    let config = config(INPUTS, 0);
    for (text, expected) in [
        ("{}", "|".to_owned()),
        (
            r#"{"F":[1,2.5]}"#,
            format!("|F[2]={:?}", bytes_of([1.0, 2.5])),
        ),
        (r#"{"F":3}"#, format!("|F[1]={:?}", bytes_of([3.0]))),
        (
            r#"{"F":[[1],[2]]}"#,
            format!("|F[2]={:?}", bytes_of([1.0, 2.0])),
        ),
        // As in 2.51; 26.09 forgets the shape, and refuses it for that.
        (r#"{"F":[]}"#, "|F[0]=[]".to_owned()),
        (
            r#"{"PAIRS":[1,2,3,4]}"#,
            "|PAIRS[2, 2]=[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]".to_owned(),
        ),
        (r#"{"WIDE":[7,8,9]}"#, "|WIDE[1, 3]=[7, 8, 9]".to_owned()),
        (
            r#"{"TEXT":"a\u0000\u00e9"}"#,
            "|TEXT[1]=[4, 0, 0, 0, 97, 0, 195, 169]".to_owned(),
        ),
        (
            r#"{"TEXT":["","b"]}"#,
            "|TEXT[2]=[0, 0, 0, 0, 1, 0, 0, 0, 98]".to_owned(),
        ),
        (r#"{"FLAG":true}"#, "|FLAG[1]=[1]".to_owned()),
        (
            r#"{"data":[NaN]}"#,
            format!("|data[1]={:?}", f64::NAN.to_le_bytes()),
        ),
        (r#"{"p":{"x":1},"q":1}"#, String::new()),
        (
            r#"{"a":1,"b":true,"c":"x","d":1.5,"e":18446744073709551615}"#,
            "|a: 1 b: true c: \"x\" d: 1.5 e: 1.8446744073709552e19".to_owned(),
        ),
        // The id is a parameter as well.
        (
            r#"{"id":"r","FLAG":[false]}"#,
            "r|FLAG[1]=[0] id: \"r\"".to_owned(),
        ),
        // What infer reserves is plain here.
        (
            r#"{"sequence_id":5,"priority":-1,"triton_x":"y","timeout":2}"#,
            "|sequence_id: 5 priority: -1 triton_x: \"y\" timeout: 2".to_owned(),
        ),
        (
            r#"{"parameters":{"FLAG":true,"a":1}}"#,
            "|FLAG[1]=[1] a: 1".to_owned(),
        ),
    ] {
        match decoded(text.as_bytes(), &config) {
            Ok(got) => assert_eq!(got, expected, "{text}"),
            Err(error) => assert!(expected.is_empty(), "{text}: {}", error.message),
        }
    }
}

#[test]
fn a_batch_dimension_takes_part() {
    let config = config(
        r#"input { name: "F" data_type: TYPE_UINT8 dims: [ 2 ] }"#,
        8,
    );
    assert_eq!(
        decoded(br#"{"F":[1,2,3,4]}"#, &config).unwrap(),
        "|F[2, 2]=[1, 2, 3, 4]"
    );
}

const SHAPE: &str = "The schema can not convert input 'PAIRS' to tensor with proper shape";

/// A request, and its refusal.
const REFUSED: &[(&str, Code, &str)] = &[
    (
        "",
        Code::Internal,
        "failed to parse the request JSON buffer: The document is empty. at 0",
    ),
    (
        "[1,2]",
        Code::Internal,
        "attempt to get members for non-object",
    ),
    (
        "null",
        Code::Internal,
        "attempt to get members for non-object",
    ),
    (
        r#"{"id":5}"#,
        Code::Internal,
        "Unable to parse 'id': attempt to access JSON non-string as string",
    ),
    (r#"{"PAIRS":[1,2,3]}"#, Code::InvalidArg, SHAPE),
    (r#"{"PAIRS":null}"#, Code::InvalidArg, SHAPE),
    (
        r#"{"FOUR":[]}"#,
        Code::InvalidArg,
        "The schema can not convert input 'FOUR' to tensor with proper shape",
    ),
    (
        r#"{"F":[[1,2],[3,4]]}"#,
        Code::Internal,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    (
        r#"{"F":[[],[]]}"#,
        Code::Internal,
        "Failed to parse 'data' field: shape does not match true shape",
    ),
    (
        r#"{"F":"x"}"#,
        Code::Internal,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        r#"{"F":null}"#,
        Code::Internal,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        r#"{"F":{"a":[1]}}"#,
        Code::Internal,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        r#"{"F":[1,true]}"#,
        Code::Internal,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        r#"{"FLAG":1}"#,
        Code::Internal,
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    (
        r#"{"TEXT":5}"#,
        Code::Internal,
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    (
        r#"{"TEXT":{"a":"b"}}"#,
        Code::Internal,
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    (
        r#"{"WIDE":[-1]}"#,
        Code::Internal,
        "Unable to parse 'data': attempt to access JSON non-unsigned-integer as \
         unsigned-integer",
    ),
    (
        r#"{"HALF":"x"}"#,
        Code::InvalidArg,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for \
         input HALF",
    ),
    (
        r#"{"HALF":[]}"#,
        Code::InvalidArg,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for \
         input HALF",
    ),
    (
        r#"{"F":1,"F":2}"#,
        Code::InvalidArg,
        "[request id: <id_unknown>] input 'F' already exists in request",
    ),
    (
        r#"{"id":"r","F":1,"parameters":{"F":2}}"#,
        Code::InvalidArg,
        "Converting keyword: 'parameters': [request id: r] input 'F' already exists in request",
    ),
    (
        r#"{"x":null}"#,
        Code::InvalidArg,
        "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    (
        r#"{"data2":[1]}"#,
        Code::InvalidArg,
        "parameter 'data2' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    (
        r#"{"parameters":{"parameters":{"a":1}}}"#,
        Code::InvalidArg,
        "Converting keyword: 'parameters': parameter 'parameters' has invalid type. It should be \
         either 'int', 'bool', or 'string'.",
    ),
    (
        r#"{"parameters":[1]}"#,
        Code::Internal,
        "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as \
         object",
    ),
];

#[test]
fn refuses_in_upstreams_words() {
    let all = config(INPUTS, 0);
    for &(text, code, expected) in REFUSED {
        let error = decoded(text.as_bytes(), &all).expect_err(text);
        assert_eq!((error.code, &*error.message), (code, expected), "{text}");
    }
    let named = config(
        r#"input { name: "parameters" data_type: TYPE_FP32 dims: [ -1 ] }"#,
        0,
    );
    assert_eq!(
        decoded(br#"{"parameters":{"parameters":1}}"#, &named)
            .unwrap_err()
            .message,
        "Keyword 'parameters' for nested schema also given as input tensor name"
    );
}

#[test]
fn tensors_are_bounded_together() {
    let config = config(INPUTS, 0);
    let numbers = |count: usize| vec!["1"; count].join(",");
    // The limit here is 1 KiB.
    let fits = format!(r#"{{"F":[{}],"data":[{}]}}"#, numbers(128), numbers(64));
    assert!(decoded(fits.as_bytes(), &config).is_ok());
    let exceeds = format!(r#"{{"F":[{}],"data":[{}]}}"#, numbers(128), numbers(65));
    assert_eq!(
        decoded(exceeds.as_bytes(), &config).unwrap_err().message,
        "request size of 512 bytes with input 'data' of size 520 bytes exceeds the maximum allowed \
         input size of 1024. Use --http-max-input-size to increase the limit."
    );
}

#[test]
fn shapes_come_out_even_or_not_at_all() {
    let shape = |dims: &[i64], count| {
        fit(dims.iter().copied().collect(), count).map(|shape| shape.to_vec())
    };
    for (dims, count, expected) in [
        (&[-1][..], 3, Some(&[3][..])),
        (&[-1, 2], 3, None),
        (&[-1, 2], 4, Some(&[2, 2])),
        (&[2, -1, -1], 8, Some(&[2, 1, 4])),
        (&[-1, 3, -1, 2], 12, Some(&[1, 3, 2, 2])),
        (&[4], 8, None),
        (&[], 1, Some(&[])),
        (&[], 2, None),
        (&[-1, 2], 0, Some(&[0, 2])),
        (&[4], 0, None),
        (&[0, 2], 0, Some(&[0, 2])),
        (&[-1, 0], 0, Some(&[0, 0])),
        (&[0], 1, None),
        (&[i64::MAX, i64::MAX], 6, None),
    ] {
        assert_eq!(
            shape(dims, count).as_deref(),
            expected,
            "{dims:?} of {count}"
        );
    }
}
