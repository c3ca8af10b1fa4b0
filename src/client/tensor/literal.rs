//! Tensors that are written in JSON, on a command line, in a file or in an answer.

use conch_config::DataType;
use serde_json::Value;

use super::WireTensor;
use super::elements;

/// The tensor that a word of the command line is: nested lists, or a scalar. For BYTES, a word that
/// is no list and no string in JSON stands for itself.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(text: &str, data_type: DataType) -> Result<WireTensor, String> {
    let is_text = data_type == DataType::Bytes && !text.trim_start().starts_with('[');
    let value = match serde_json::from_str(text) {
        Ok(value @ Value::String(_)) => value,
        _ if is_text => Value::from(text),
        Ok(value) => value,
        Err(cause) => return Err(format!("it is not JSON: {cause}")),
    };
    of_value(&value, data_type)
}

/// The tensor that `value` is: lists nested as its dimensions, or an object whose `data` are these
/// and whose `shape` says how a flat list is meant.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn of_value(value: &Value, data_type: DataType) -> Result<WireTensor, String> {
    let (value, shape) = match value.get("data") {
        Some(data) => (data, value.get("shape")),
        None => (value, None),
    };
    let nested = nesting(value);
    let mut bytes = Vec::new();
    push_nested(&mut bytes, value, &nested, data_type)?;
    let shape = match shape {
        Some(shape) => {
            let sizes: Option<Vec<i64>> = shape
                .as_array()
                .and_then(|sizes| sizes.iter().map(Value::as_i64).collect());
            sizes.ok_or_else(|| format!("{shape} is no shape"))?
        }
        None => nested.clone(),
    };
    let count = super::shape::element_count(&nested);
    if count.is_none() || super::shape::element_count(&shape) != count {
        return Err(format!(
            "its shape is {}, and its values are of shape {}",
            super::shape::shown(&shape),
            super::shape::shown(&nested)
        ));
    }
    Ok(WireTensor {
        data_type,
        shape,
        bytes,
    })
}

/// The sizes of lists, going into the first of each.
fn nesting(value: &Value) -> Vec<i64> {
    let mut shape = Vec::new();
    let mut value = Some(value);
    while let Some(Value::Array(list)) = value {
        shape.push(i64::try_from(list.len()).unwrap_or(i64::MAX));
        value = list.first();
    }
    shape
}

/// Goes as deep as JSON is nested, which its parser bounds.
fn push_nested(
    bytes: &mut Vec<u8>,
    value: &Value,
    shape: &[i64],
    data_type: DataType,
) -> Result<(), String> {
    match (value, shape) {
        (Value::Array(list), [size, rest @ ..]) => {
            if i64::try_from(list.len()) != Ok(*size) {
                return Err(format!(
                    "its lists are of different lengths: {size} and {}",
                    list.len()
                ));
            }
            list.iter()
                .try_for_each(|value| push_nested(bytes, value, rest, data_type))
        }
        (Value::Array(_), []) | (_, [_, ..]) => {
            Err(String::from("its lists are not all nested as deep"))
        }
        (value, []) => elements::push(bytes, value, data_type),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_tensors() {
        let table: [(&str, DataType, &[i64], &[u8]); 12] = [
            ("[1,2,3]", DataType::Uint8, &[3], &[1, 2, 3]),
            ("[[1,2],[3,4]]", DataType::Uint8, &[2, 2], &[1, 2, 3, 4]),
            ("7", DataType::Uint8, &[], &[7]),
            ("[]", DataType::Fp32, &[0], &[]),
            ("[[],[]]", DataType::Fp32, &[2, 0], &[]),
            ("true", DataType::Bool, &[], &[1]),
            ("ab", DataType::Bytes, &[], &[2, 0, 0, 0, b'a', b'b']),
            ("\"ab\"", DataType::Bytes, &[], &[2, 0, 0, 0, b'a', b'b']),
            ("42", DataType::Bytes, &[], &[2, 0, 0, 0, b'4', b'2']),
            ("", DataType::Bytes, &[], &[0, 0, 0, 0]),
            ("[\"a\"]", DataType::Bytes, &[1], &[1, 0, 0, 0, b'a']),
            (
                r#"{"shape":[1,2],"data":[5,6]}"#,
                DataType::Uint8,
                &[1, 2],
                &[5, 6],
            ),
        ];
        for (text, data_type, shape, bytes) in table {
            let tensor = parse(text, data_type).unwrap();
            assert_eq!((&*tensor.shape, &*tensor.bytes), (shape, bytes), "{text}");
        }
    }

    #[test]
    fn words_that_are_no_tensors_are_refused() {
        for (text, data_type, expected) in [
            ("[1,2", DataType::Fp32, "it is not JSON"),
            ("ab", DataType::Fp32, "it is not JSON"),
            ("[\"a\"", DataType::Bytes, "it is not JSON"),
            ("[[1,2],[3]]", DataType::Fp32, "different lengths: 2 and 1"),
            ("[[1],2]", DataType::Fp32, "nested as deep"),
            ("[1,[2]]", DataType::Fp32, "nested as deep"),
            ("[1,1.5]", DataType::Int32, "1.5 is not of type INT32"),
            ("[1]", DataType::Bytes, "1 is not of type BYTES"),
            ("{}", DataType::Fp32, "{} is not of type FP32"),
            (
                r#"{"shape":[3],"data":[5,6]}"#,
                DataType::Uint8,
                "its shape is [3], and its values are of shape [2]",
            ),
            (
                r#"{"shape":3,"data":[5]}"#,
                DataType::Uint8,
                "3 is no shape",
            ),
        ] {
            let error = parse(text, data_type).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
