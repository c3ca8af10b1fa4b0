//! Triton's data types and torch's scalar types.

use conch_backend_sdk::DataType;
use conch_backend_sdk::engine::TypeNumbers;

/// Each type that both have, and torch's number for it (`c10::ScalarType`, which is written into
/// files and does not change). Torch's unsigned types beyond 8 bits have few operators; upstream's
/// backend refuses them.
pub const SCALAR_TYPES: TypeNumbers = TypeNumbers(&[
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
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_map_both_ways() {
        for data_type in DataType::ALL {
            let scalar_type = SCALAR_TYPES.number(data_type);
            assert_eq!(
                scalar_type.and_then(|number| SCALAR_TYPES.data_type(number)),
                scalar_type.map(|_| data_type)
            );
        }
        assert_eq!(SCALAR_TYPES.number(DataType::Bytes), None);
        assert_eq!(SCALAR_TYPES.number(DataType::Uint32), None);
        // Complex, quantised.
        assert_eq!(SCALAR_TYPES.data_type(9), None);
        assert_eq!(SCALAR_TYPES.data_type(13), None);
    }
}
