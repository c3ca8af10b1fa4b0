//! Tensors of zeros, and of numbers by chance, the same in every run.

use conch_config::DataType;

use super::shape::{element_count, shown};
use super::{TENSOR_BYTES_MAX, WireTensor, elements};
use crate::options::InputFill;

/// A tensor of this shape.
///
/// # Errors
/// It would be too large.
pub(crate) fn filled(
    fill: InputFill,
    data_type: DataType,
    shape: Vec<i64>,
    seed: u64,
) -> Result<WireTensor, String> {
    // An element of BYTES is its length and, by chance, a word.
    let element_bytes = data_type.element_bytes().unwrap_or(4 + WORD_BYTES) as u64;
    let count = element_count(&shape)
        .filter(|count| {
            let bytes = count.checked_mul(element_bytes);
            bytes.is_some_and(|bytes| bytes <= TENSOR_BYTES_MAX)
        })
        .ok_or_else(|| {
            format!(
                "a tensor of shape {} is too large to be made",
                shown(&shape)
            )
        })?;
    let mut state = seed;
    let mut bytes = Vec::new();
    for _ in 0..count {
        match fill {
            InputFill::Zeros => {
                let zeros = data_type.element_bytes().unwrap_or(4);
                bytes.resize(bytes.len() + zeros, 0);
            }
            InputFill::Random => push_random(&mut bytes, data_type, &mut state)?,
        }
    }
    Ok(WireTensor {
        data_type,
        shape,
        bytes,
    })
}

/// Small numbers: indices and tokens that most models know.
fn push_random(bytes: &mut Vec<u8>, data_type: DataType, state: &mut u64) -> Result<(), String> {
    let bits = next(state);
    let small = (bits % SMALL_MAX) as u8;
    match data_type {
        DataType::Bool => bytes.push(small & 1),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
            let number = (bits >> 11) as f64 / (1_u64 << 53) as f64;
            elements::push_float(bytes, number, data_type);
        }
        DataType::Bytes => {
            let letters = bits.to_le_bytes().map(|byte| b'a' + byte % 26);
            elements::push_bytes(bytes, &letters)?;
        }
        _ => {
            let zeros = data_type.element_bytes().unwrap_or(1) - 1;
            bytes.push(small);
            bytes.resize(bytes.len() + zeros, 0);
        }
    }
    Ok(())
}

/// The next number of splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Integers are below it.
const SMALL_MAX: u64 = 100;
/// Letters of an element of BYTES.
const WORD_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::elements::{Element, Elements};

    #[test]
    fn tensors_of_every_type_are_filled() {
        for data_type in DataType::ALL {
            for fill in [InputFill::Zeros, InputFill::Random] {
                let tensor = filled(fill, data_type, vec![2, 50], 1).unwrap();
                let mut elements = Elements::new(data_type, &tensor.bytes);
                assert_eq!(elements.by_ref().count(), 100, "{data_type:?}");
                assert!(elements.is_at_end());
                let elements = Elements::new(data_type, &tensor.bytes);
                let is_zero = |element: &Element<'_>| match element {
                    Element::Bytes(bytes) => bytes.is_empty(),
                    other => other.number() == Some(0.0),
                };
                let zero_count = elements.filter(is_zero).count();
                match fill {
                    InputFill::Zeros => assert_eq!(zero_count, 100, "{data_type:?}"),
                    InputFill::Random => assert!(zero_count < 80, "{data_type:?}"),
                }
                let again = filled(fill, data_type, vec![2, 50], 1).unwrap();
                assert_eq!(tensor, again);
            }
        }
    }

    #[test]
    fn what_no_machine_holds_is_refused() {
        for shape in [vec![1 << 40], vec![i64::MAX, 8], vec![-1]] {
            assert!(filled(InputFill::Zeros, DataType::Fp32, shape, 0).is_err());
        }
        let empty = filled(InputFill::Random, DataType::Fp32, vec![0], 0).unwrap();
        assert!(empty.bytes.is_empty());
    }
}
