//! Tensor element types.

/// The element type of a tensor, numbered as in the ModelConfig message and Triton's C API (0 is
/// "invalid" there and has no value here).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    Bool = 1,
    Uint8 = 2,
    Uint16 = 3,
    Uint32 = 4,
    Uint64 = 5,
    Int8 = 6,
    Int16 = 7,
    Int32 = 8,
    Int64 = 9,
    Fp16 = 10,
    Fp32 = 11,
    Fp64 = 12,
    Bytes = 13,
    Bf16 = 14,
}

impl DataType {
    pub const ALL: [DataType; 14] = [
        DataType::Bool,
        DataType::Uint8,
        DataType::Uint16,
        DataType::Uint32,
        DataType::Uint64,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Fp16,
        DataType::Fp32,
        DataType::Fp64,
        DataType::Bytes,
        DataType::Bf16,
    ];

    /// The type with this protobuf or C number.
    pub fn from_number(number: u32) -> Option<DataType> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        DataType::ALL.get(index).copied()
    }

    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The name on the wire: `FP32`, `BYTES`, …
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Bool => "BOOL",
            DataType::Uint8 => "UINT8",
            DataType::Uint16 => "UINT16",
            DataType::Uint32 => "UINT32",
            DataType::Uint64 => "UINT64",
            DataType::Int8 => "INT8",
            DataType::Int16 => "INT16",
            DataType::Int32 => "INT32",
            DataType::Int64 => "INT64",
            DataType::Fp16 => "FP16",
            DataType::Fp32 => "FP32",
            DataType::Fp64 => "FP64",
            DataType::Bytes => "BYTES",
            DataType::Bf16 => "BF16",
        }
    }

    /// The type with this wire name (exact, upper case).
    pub fn from_name(name: &str) -> Option<DataType> {
        DataType::ALL
            .into_iter()
            .find(|data_type| data_type.name() == name)
    }

    /// Bytes per element; none for BYTES, whose elements vary.
    pub const fn element_bytes(self) -> Option<usize> {
        match self {
            DataType::Bool | DataType::Uint8 | DataType::Int8 => Some(1),
            DataType::Uint16 | DataType::Int16 | DataType::Fp16 | DataType::Bf16 => Some(2),
            DataType::Uint32 | DataType::Int32 | DataType::Fp32 => Some(4),
            DataType::Uint64 | DataType::Int64 | DataType::Fp64 => Some(8),
            DataType::Bytes => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for (index, data_type) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(data_type.number() as usize, index + 1);
            assert_eq!(DataType::from_number(data_type.number()), Some(data_type));
            assert_eq!(DataType::from_name(data_type.name()), Some(data_type));
        }
        assert_eq!(DataType::from_number(0), None);
        assert_eq!(DataType::from_number(15), None);
        assert_eq!(DataType::from_name("fp32"), None);
    }
}
