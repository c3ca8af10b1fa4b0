//! Tensors as a terminal shows them.

use conch_config::DataType;
use serde_json::{Number, Value};

use crate::answer::InferAnswer;
use crate::printable::printable;
use crate::tensor::WireTensor;
use crate::tensor::elements::{Element, Elements};
use crate::tensor::shape::{element_count, shown};

/// The whole answer. With `has_classes`, outputs of BYTES are classes.
pub(crate) fn answer(answer: &InferAnswer, has_classes: bool) -> String {
    let mut text = printable(&answer.model);
    if !answer.version.is_empty() {
        text.push_str(&format!(", version {}", printable(&answer.version)));
    }
    if !answer.id.is_empty() {
        text.push_str(&format!(", id {}", printable(&answer.id)));
    }
    text.push('\n');
    for output in &answer.outputs {
        let tensor = &output.tensor;
        let name = printable(&output.name);
        let kind = tensor.data_type.name();
        text.push_str(&format!("{name}: {kind} {}\n", shown(&tensor.shape)));
        match has_classes && tensor.data_type == DataType::Bytes {
            true => push_classes(&mut text, tensor),
            false => push_values(&mut text, tensor),
        }
    }
    text
}

fn push_values(text: &mut String, tensor: &WireTensor) {
    let count = element_count(&tensor.shape).unwrap_or(0);
    let elements = || Elements::new(tensor.data_type, &tensor.bytes);
    if count <= WHOLE_VALUES_MAX {
        let mut elements = elements();
        let mut line = String::new();
        push_nested(&mut line, &mut elements, &tensor.shape);
        text.push_str(&format!("  {line}\n"));
        return;
    }
    let first: Vec<String> = elements().take(FIRST_VALUES).map(element).collect();
    text.push_str(&format!("  {}, ...\n", first.join(", ")));
    let mut numbers = elements().filter_map(Element::number);
    if let Some(first) = numbers.next() {
        let (mut min, mut max, mut sum) = (first, first, first);
        for number in numbers {
            (min, max, sum) = (min.min(number), max.max(number), sum + number);
        }
        let mean = sum / count as f64;
        text.push_str(&format!("  min {min}, max {max}, mean {mean:.6}\n"));
    }
}

/// Lists as deep as the shape.
fn push_nested(line: &mut String, elements: &mut Elements<'_>, shape: &[i64]) {
    let [size, rest @ ..] = shape else {
        line.push_str(&elements.next().map(element).unwrap_or_default());
        return;
    };
    line.push('[');
    // An empty list within may be one of very many.
    let size = match element_count(rest) {
        Some(0) => 0,
        _ => *size,
    };
    for index in 0..size {
        if index > 0 {
            line.push_str(", ");
        }
        push_nested(line, elements, rest);
    }
    line.push(']');
}

/// `value:index:label` of each class, a blank line between requests of a batch.
fn push_classes(text: &mut String, tensor: &WireTensor) {
    let per_row = tensor
        .shape
        .last()
        .and_then(|size| usize::try_from(*size).ok());
    let per_row = per_row.unwrap_or(0).max(1);
    let elements = Elements::new(tensor.data_type, &tensor.bytes);
    for (index, class) in elements.take(CLASSES_MAX).enumerate() {
        if index > 0 && index % per_row == 0 {
            text.push('\n');
        }
        let Element::Bytes(class) = class else {
            continue;
        };
        let class = printable(&String::from_utf8_lossy(class));
        let words: Vec<&str> = class.splitn(3, ':').collect();
        text.push_str(&format!("  {}\n", words.join("  ")));
    }
}

fn element(element: Element<'_>) -> String {
    match element {
        Element::Bool(value) => value.to_string(),
        Element::Unsigned(value) => value.to_string(),
        Element::Signed(value) => value.to_string(),
        Element::Single(value) => format!("{value:?}"),
        Element::Double(value) => format!("{value:?}"),
        Element::Bytes(bytes) => {
            let start = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
            let more = if start.len() < bytes.len() { "..." } else { "" };
            match std::str::from_utf8(start) {
                Ok(text) => format!("{}{more}", Value::from(printable(text))),
                // Cut within a character, or no text at all.
                Err(_) => format!("b\"{}\"{more}", start.escape_ascii()),
            }
        }
    }
}

/// As JSON has it.
///
/// # Errors
/// JSON has no infinities, and nothing but text.
pub(crate) fn json(element: Element<'_>) -> Result<Value, String> {
    let float = |value: f64| {
        let number = Number::from_f64(value).map(Value::Number);
        number.ok_or_else(|| format!("JSON has no number {value}"))
    };
    match element {
        Element::Bool(value) => Ok(Value::from(value)),
        Element::Unsigned(value) => Ok(Value::from(value)),
        Element::Signed(value) => Ok(Value::from(value)),
        Element::Single(value) => float(f64::from(value)),
        Element::Double(value) => float(value),
        Element::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Value::from(text)),
            Err(_) => Err(String::from("JSON has no bytes that are not UTF-8")),
        },
    }
}

/// Values that are shown whole; some lines of a terminal.
const WHOLE_VALUES_MAX: u64 = 64;
/// Values that are shown of more.
const FIRST_VALUES: usize = 8;
/// Bytes that are shown of an element of BYTES.
const TEXT_BYTES_MAX: usize = 200;
/// Lines of classes.
const CLASSES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::NamedTensor;
    use crate::tensor::literal;

    fn shown(text: &str, data_type: DataType, has_classes: bool) -> String {
        let outputs = vec![NamedTensor {
            name: String::from("Y"),
            tensor: literal::parse(text, data_type).unwrap(),
        }];
        let answer = InferAnswer {
            model: String::from("m"),
            version: String::from("1"),
            id: String::new(),
            outputs,
        };
        super::answer(&answer, has_classes)
    }

    #[test]
    fn tensors_are_shown() {
        let many = format!("[{}0]", "1,".repeat(99));
        let long = format!("[\"{}\"]", "x".repeat(300));
        let long_shown = format!("BYTES [1]\n  [\"{}\"...]", "x".repeat(200));
        for (text, data_type, expected) in [
            (
                "[[1,2],[3,4]]",
                DataType::Fp32,
                "FP32 [2,2]\n  [[1.0, 2.0], [3.0, 4.0]]",
            ),
            ("7", DataType::Int8, "INT8 []\n  7"),
            ("[]", DataType::Int8, "INT8 [0]\n  []"),
            ("[[],[]]", DataType::Int8, "INT8 [2,0]\n  []"),
            ("[true,false]", DataType::Bool, "BOOL [2]\n  [true, false]"),
            ("[1e-9]", DataType::Fp64, "FP64 [1]\n  [1e-9]"),
            (
                r#"["a\u001b\"\n"]"#,
                DataType::Bytes,
                "BYTES [1]\n  [\"a\\\\u{1b}\\\"\\n\"]",
            ),
            (&long, DataType::Bytes, &long_shown),
            (
                &many,
                DataType::Uint8,
                "UINT8 [100]\n  1, 1, 1, 1, 1, 1, 1, 1, ...\n  min 0, max 1, mean 0.990000",
            ),
        ] {
            let expected = format!("m, version 1\nY: {expected}\n");
            assert_eq!(shown(text, data_type, false), expected);
        }
        let classes = shown(
            r#"[["0.9:1:cat:s","0.1:0"],["1:1:","0:0:"]]"#,
            DataType::Bytes,
            true,
        );
        assert_eq!(
            classes,
            "m, version 1\nY: BYTES [2,2]\n  0.9  1  cat:s\n  0.1  0\n\n  1  1  \n  0  0  \n"
        );
    }

    #[test]
    fn bytes_that_are_no_text() {
        assert_eq!(element(Element::Bytes(&[0xff, b'a'])), "b\"\\xffa\"");
        assert!(json(Element::Bytes(&[0xff])).is_err());
        assert!(json(Element::Double(f64::NAN)).is_err());
    }
}
