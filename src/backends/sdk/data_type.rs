//! Element types of tensors.

use conch_abi as abi;

/// Element type of a tensor, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Fp32,
    Fp64,
    Bytes,
    Bf16,
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

    /// Name on the wire, such as `FP32`.
    pub fn name(self) -> &'static str {
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

    /// Name in a model configuration, such as `TYPE_FP32`; BYTES is called `TYPE_STRING` there.
    pub fn config_name(self) -> &'static str {
        match self {
            DataType::Bool => "TYPE_BOOL",
            DataType::Uint8 => "TYPE_UINT8",
            DataType::Uint16 => "TYPE_UINT16",
            DataType::Uint32 => "TYPE_UINT32",
            DataType::Uint64 => "TYPE_UINT64",
            DataType::Int8 => "TYPE_INT8",
            DataType::Int16 => "TYPE_INT16",
            DataType::Int32 => "TYPE_INT32",
            DataType::Int64 => "TYPE_INT64",
            DataType::Fp16 => "TYPE_FP16",
            DataType::Fp32 => "TYPE_FP32",
            DataType::Fp64 => "TYPE_FP64",
            DataType::Bytes => "TYPE_STRING",
            DataType::Bf16 => "TYPE_BF16",
        }
    }

    pub fn from_config_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|data_type| data_type.config_name() == name)
    }

    /// Bytes of one element; `None` for BYTES, whose elements differ in length.
    pub fn element_bytes(self) -> Option<usize> {
        match self {
            DataType::Bool | DataType::Uint8 | DataType::Int8 => Some(1),
            DataType::Uint16 | DataType::Int16 | DataType::Fp16 | DataType::Bf16 => Some(2),
            DataType::Uint32 | DataType::Int32 | DataType::Fp32 => Some(4),
            DataType::Uint64 | DataType::Int64 | DataType::Fp64 => Some(8),
            DataType::Bytes => None,
        }
    }

    /// Bytes of a tensor of this shape; `None` for BYTES, and where [`element_count`] knows none or
    /// the product overflows.
    pub fn byte_count(self, shape: &[i64]) -> Option<usize> {
        self.element_bytes()?.checked_mul(element_count(shape)?)
    }

    /// The type of a number of Triton's C API.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::from_raw(number)
    }

    /// The number of Triton's C API.
    pub fn number(self) -> u32 {
        self.to_raw()
    }

    pub(crate) fn from_raw(raw: abi::TRITONSERVER_DataType) -> Option<Self> {
        let index = usize::try_from(raw.checked_sub(1)?).ok()?;
        Self::ALL.get(index).copied()
    }

    pub(crate) fn to_raw(self) -> abi::TRITONSERVER_DataType {
        match self {
            DataType::Bool => abi::TRITONSERVER_TYPE_BOOL,
            DataType::Uint8 => abi::TRITONSERVER_TYPE_UINT8,
            DataType::Uint16 => abi::TRITONSERVER_TYPE_UINT16,
            DataType::Uint32 => abi::TRITONSERVER_TYPE_UINT32,
            DataType::Uint64 => abi::TRITONSERVER_TYPE_UINT64,
            DataType::Int8 => abi::TRITONSERVER_TYPE_INT8,
            DataType::Int16 => abi::TRITONSERVER_TYPE_INT16,
            DataType::Int32 => abi::TRITONSERVER_TYPE_INT32,
            DataType::Int64 => abi::TRITONSERVER_TYPE_INT64,
            DataType::Fp16 => abi::TRITONSERVER_TYPE_FP16,
            DataType::Fp32 => abi::TRITONSERVER_TYPE_FP32,
            DataType::Fp64 => abi::TRITONSERVER_TYPE_FP64,
            DataType::Bytes => abi::TRITONSERVER_TYPE_BYTES,
            DataType::Bf16 => abi::TRITONSERVER_TYPE_BF16,
        }
    }
}

/// Elements in a tensor of this shape: 1 for no dimensions. `None` if a dimension is negative or
/// the product overflows.
pub fn element_count(shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &dimension| {
        count.checked_mul(usize::try_from(dimension).ok()?)
    })
}

/// `[2,3]`, as messages write a shape.
pub fn shape_text(shape: &[i64]) -> String {
    let dimensions: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", dimensions.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_one_number_and_one_name() {
        for (index, data_type) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(
                DataType::from_config_name(data_type.config_name()),
                Some(data_type)
            );
            // The numbers are those of the header, in the order of ALL, from 1.
            assert_eq!(DataType::from_raw(index as u32 + 1), Some(data_type));
        }
        assert_eq!(DataType::from_raw(0), None);
        assert_eq!(DataType::from_config_name("TYPE_INVALID"), None);
    }

    #[test]
    fn counts_elements() {
        for (shape, expected) in [
            (&[][..], Some(1)),
            (&[0, 7], Some(0)),
            (&[2, 3, 4], Some(24)),
            (&[-1, 3], None),
            (&[i64::MAX, 4], None),
        ] {
            assert_eq!(element_count(shape), expected, "{shape:?}");
        }
        for (data_type, shape, expected) in [
            (DataType::Fp32, &[2, 3][..], Some(24)),
            (DataType::Uint8, &[], Some(1)),
            (DataType::Fp64, &[0], Some(0)),
            (DataType::Bytes, &[2], None),
            (DataType::Int16, &[-1], None),
            (DataType::Int64, &[i64::MAX], None),
        ] {
            assert_eq!(
                data_type.byte_count(shape),
                expected,
                "{data_type:?} {shape:?}"
            );
        }
        assert_eq!(shape_text(&[-1, 16]), "[-1,16]");
        assert_eq!(shape_text(&[]), "[]");
    }
}
