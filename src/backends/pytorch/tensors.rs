//! Triton's data types and torch's scalar types.

use conch_backend_sdk::DataType;

/// Each type that both have, and torch's number for it (`c10::ScalarType`, which is written into
/// files and does not change). Torch's unsigned types beyond 8 bits have few operators; upstream's
/// backend refuses them.
const TYPES: [(DataType, i32); 10] = [
    (DataType::Uint8, 0),
    (DataType::Int8, 1),
    (DataType::Int16, 2),
    (DataType::Int32, 3),
    (DataType::Int64, 4),
    (DataType::Fp16, 5),
    (DataType::Fp32, 6),
    (DataType::Fp64, 7),
    (DataType::Bool, 11),
    (DataType::Bf16, 15),
];

/// Torch's number for a type.
pub fn scalar_type_of(data_type: DataType) -> Option<i32> {
    let mut types = TYPES.iter();
    types
        .find(|(known, _)| *known == data_type)
        .map(|&(_, scalar_type)| scalar_type)
}

/// The type of one of torch's numbers.
pub fn data_type_of(scalar_type: i32) -> Option<DataType> {
    let mut types = TYPES.iter();
    types
        .find(|(_, known)| *known == scalar_type)
        .map(|&(data_type, _)| data_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_map_both_ways() {
        for data_type in DataType::ALL {
            let scalar_type = scalar_type_of(data_type);
            assert_eq!(
                scalar_type.and_then(data_type_of),
                scalar_type.map(|_| data_type)
            );
        }
        assert_eq!(scalar_type_of(DataType::Bytes), None);
        assert_eq!(scalar_type_of(DataType::Uint32), None);
        // Complex, quantised.
        assert_eq!(data_type_of(9), None);
        assert_eq!(data_type_of(13), None);
    }
}
