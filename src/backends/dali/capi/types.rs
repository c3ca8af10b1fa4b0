//! DALI's numbers for types of elements.

use conch_backend_sdk::DataType;
use conch_backend_sdk::engine::TypeNumbers;

/// Types that both have. DALI has neither BYTES nor BF16, and others beside numbers, such as its
/// names of interpolations.
pub const TYPES: TypeNumbers = TypeNumbers(&[
    (DataType::Uint8, 0),
    (DataType::Uint16, 1),
    (DataType::Uint32, 2),
    (DataType::Uint64, 3),
    (DataType::Int8, 4),
    (DataType::Int16, 5),
    (DataType::Int32, 6),
    (DataType::Int64, 7),
    (DataType::Fp16, 8),
    (DataType::Fp32, 9),
    (DataType::Fp64, 10),
    (DataType::Bool, 11),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways() {
        for data_type in DataType::ALL {
            let number = TYPES.number(data_type);
            assert_eq!(
                number.and_then(|number| TYPES.data_type(number)),
                number.map(|_| data_type)
            );
            let is_missing = matches!(data_type, DataType::Bytes | DataType::Bf16);
            assert_eq!(number.is_none(), is_missing, "{data_type:?}");
        }
        for unknown in [-1, 12, 20, 1001] {
            assert_eq!(TYPES.data_type(unknown), None);
        }
    }
}
