//! TensorFlow's element types (`types.proto`, which has the numbers of `TF_DataType`).

use conch_backend_sdk::DataType;

/// The element type of a number; `None` where Triton has no such type.
pub fn data_type(number: i32) -> Option<DataType> {
    DataType::ALL
        .into_iter()
        .find(|&data_type| number_of(data_type) == number)
}

/// The number of an element type.
pub fn number_of(data_type: DataType) -> i32 {
    match data_type {
        DataType::Fp32 => 1,
        DataType::Fp64 => 2,
        DataType::Int32 => 3,
        DataType::Uint8 => 4,
        DataType::Int16 => 5,
        DataType::Int8 => 6,
        DataType::Bytes => 7,
        DataType::Int64 => 9,
        DataType::Bool => 10,
        DataType::Bf16 => 14,
        DataType::Uint16 => 17,
        DataType::Fp16 => 19,
        DataType::Uint32 => 22,
        DataType::Uint64 => 23,
    }
}

/// What TensorFlow calls the types that Triton does not have, for messages.
pub fn name_of(number: i32) -> String {
    let name = match number {
        0 => "DT_INVALID",
        8 => "DT_COMPLEX64",
        11 => "DT_QINT8",
        12 => "DT_QUINT8",
        13 => "DT_QINT32",
        15 => "DT_QINT16",
        16 => "DT_QUINT16",
        18 => "DT_COMPLEX128",
        20 => "DT_RESOURCE",
        21 => "DT_VARIANT",
        24 => "DT_FLOAT8_E5M2",
        25 => "DT_FLOAT8_E4M3FN",
        29 => "DT_INT4",
        30 => "DT_UINT4",
        _ => return format!("DataType {number}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_map_both_ways() {
        for known in DataType::ALL {
            assert_eq!(data_type(number_of(known)), Some(known));
        }
        // Invalid, complex, quantised, resources, variants, references (100 and more).
        for number in [0, 8, 11, 12, 13, 15, 16, 18, 20, 21, 24, 101, -1] {
            assert_eq!(data_type(number), None, "{number}");
        }
        assert_eq!(name_of(21), "DT_VARIANT");
        assert_eq!(name_of(101), "DataType 101");
    }
}
