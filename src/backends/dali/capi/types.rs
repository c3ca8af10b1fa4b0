//! DALI's numbers for types of elements.

use std::ffi::c_int;

use conch_backend_sdk::DataType;

const TYPES: [(c_int, DataType); 12] = [
    (0, DataType::Uint8),
    (1, DataType::Uint16),
    (2, DataType::Uint32),
    (3, DataType::Uint64),
    (4, DataType::Int8),
    (5, DataType::Int16),
    (6, DataType::Int32),
    (7, DataType::Int64),
    (8, DataType::Fp16),
    (9, DataType::Fp32),
    (10, DataType::Fp64),
    (11, DataType::Bool),
];

/// `None` for what DALI has beside numbers, such as its names of interpolations.
pub fn from_dali(number: c_int) -> Option<DataType> {
    let mut types = TYPES.iter();
    types
        .find(|(known, _)| *known == number)
        .map(|&(_, data_type)| data_type)
}

/// `None` for types that DALI does not have: BYTES, BF16.
pub fn to_dali(data_type: DataType) -> Option<c_int> {
    let mut types = TYPES.iter();
    types
        .find(|(_, known)| *known == data_type)
        .map(|&(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways() {
        for data_type in DataType::ALL {
            let number = to_dali(data_type);
            assert_eq!(number.and_then(from_dali), number.map(|_| data_type));
            let is_missing = matches!(data_type, DataType::Bytes | DataType::Bf16);
            assert_eq!(number.is_none(), is_missing, "{data_type:?}");
        }
        for unknown in [-1, 12, 20, 1001] {
            assert_eq!(from_dali(unknown), None);
        }
    }
}
