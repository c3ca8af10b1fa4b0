//! An operation with the data types that it has in a model.

use conch_backend_sdk as sdk;
use sdk::DataType;

use crate::element::NumberType;
use crate::operation::Operation;

#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    pub operation: Operation,
    pub input_type: DataType,
    pub output_type: DataType,
    /// The same as types of numbers; none where bits are moved.
    pub numbers: Option<(NumberType, NumberType)>,
    /// Of an element of the input.
    pub element_bytes: usize,
    /// Of an element of the output.
    pub output_bytes: usize,
}

impl Formula {
    /// # Errors
    /// What was expected of the types, and got, as `(is_output, message)`.
    pub fn new(
        operation: Operation,
        input_type: DataType,
        output_type: DataType,
    ) -> Result<Formula, (bool, String)> {
        let wrong = |is_output, expected: &str| {
            let got = if is_output { output_type } else { input_type };
            let got = got.config_name();
            Err((is_output, format!("expected {expected}, got {got}")))
        };
        let bytes = input_type.element_bytes();
        let (Some(element_bytes), Some(output_bytes)) = (bytes, output_type.element_bytes()) else {
            return wrong(bytes.is_some(), "a datatype of a fixed size");
        };
        let must_match = matches!(
            operation,
            Operation::Add | Operation::Multiply | Operation::Layout(_)
        );
        let numbers = match operation {
            Operation::Layout(_) => None,
            _ => {
                let Some(from) = NumberType::of(input_type) else {
                    return wrong(false, &supported());
                };
                let Some(to) = NumberType::of(output_type) else {
                    return wrong(true, &supported());
                };
                Some((from, to))
            }
        };
        if must_match && input_type != output_type {
            return wrong(true, input_type.config_name());
        }
        if matches!(operation, Operation::NormalizeImage { .. }) {
            if input_type != DataType::Uint8 {
                return wrong(false, "TYPE_UINT8");
            }
            if !matches!(
                output_type,
                DataType::Fp32 | DataType::Fp16 | DataType::Bf16
            ) {
                return wrong(true, "TYPE_FP32, TYPE_FP16 or TYPE_BF16");
            }
        }
        Ok(Formula {
            operation,
            input_type,
            output_type,
            numbers,
            element_bytes,
            output_bytes,
        })
    }
}

/// The types of numbers, for messages.
fn supported() -> String {
    let names = NumberType::ALL.map(|number| number.data_type().config_name());
    format!("one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Channels, Order};

    #[test]
    fn types_must_suit_the_operation() {
        use DataType::{Bf16, Bool, Bytes, Fp16, Fp32, Fp64, Int8, Int64, Uint8};
        let channels = Channels {
            scale: vec![1.0],
            shift: vec![0.0],
        };
        let normalize = Operation::NormalizeImage { channels };
        let layout = Operation::Layout(Order::ChannelsLast);
        for (operation, from, to, expected) in [
            (&Operation::Add, Fp32, Fp32, None),
            (
                &Operation::Add,
                Fp32,
                Fp16,
                Some((true, "expected TYPE_FP32, got TYPE_FP16")),
            ),
            (
                &Operation::Multiply,
                Fp64,
                Fp64,
                Some((false, "TYPE_UINT8, got TYPE_FP64")),
            ),
            (&Operation::Cast, Int8, Bf16, None),
            (
                &Operation::Cast,
                Int8,
                Int64,
                Some((true, "TYPE_UINT8, got TYPE_INT64")),
            ),
            (&layout, Int64, Int64, None),
            (&layout, Bool, Bool, None),
            (
                &layout,
                Int64,
                Fp64,
                Some((true, "expected TYPE_INT64, got TYPE_FP64")),
            ),
            (
                &layout,
                Bytes,
                Bytes,
                Some((false, "fixed size, got TYPE_STRING")),
            ),
            (&normalize, Uint8, Fp16, None),
            (
                &normalize,
                Int8,
                Fp16,
                Some((false, "expected TYPE_UINT8, got TYPE_INT8")),
            ),
            (&normalize, Uint8, Int8, Some((true, "got TYPE_INT8"))),
        ] {
            let found = Formula::new(operation.clone(), from, to);
            match (found, expected) {
                (Ok(_), None) => {}
                (Err((is_output, message)), Some((expected_output, text))) => {
                    assert_eq!(is_output, expected_output, "{message}");
                    assert!(message.contains(text), "{message}");
                }
                (found, _) => panic!("{operation:?} {from:?} {to:?}: {found:?}"),
            }
        }
    }
}
