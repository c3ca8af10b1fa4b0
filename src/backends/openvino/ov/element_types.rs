//! OpenVINO's element types.

use std::ffi::c_int;

use conch_backend_sdk::{DataType, Error};

/// Element types that there could be; a library has some 25.
const COUNT_MAX: c_int = 64;

/// The numbers of the element types. They differ from version to version, since types were added
/// and taken away in between, so they are found by the sizes of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementTypes {
    /// Boolean, then bf16, f16, f32, f64, i4, i8, i16, i32, i64, u1.
    boolean: c_int,
    /// u8, then u16, u32, u64. Types of fewer than 8 bits lie before it.
    u8: c_int,
}

impl ElementTypes {
    /// Finds the numbers. `byte_count` says how many bytes 8 elements of a type have, `None` where
    /// there is no tensor of it.
    ///
    /// # Errors
    /// `Unsupported` if the types do not come in the order that is known.
    pub fn find(byte_count: impl Fn(c_int) -> Option<usize>) -> Result<Self, Error> {
        let runs = |first: c_int, sizes: &[usize]| {
            (first..)
                .zip(sizes)
                .all(|(element, &size)| byte_count(element) == Some(size))
        };
        let boolean =
            (0..COUNT_MAX).find(|&first| runs(first, &[8, 16, 16, 32, 64, 4, 8, 16, 32, 64, 1]));
        let found = boolean.and_then(|boolean| {
            let u8 = (boolean + 11..COUNT_MAX).find(|&first| runs(first, &[8, 16, 32, 64]))?;
            Some(ElementTypes { boolean, u8 })
        });
        found.ok_or_else(|| Error::unsupported("its element types are not those that are known"))
    }

    /// The number of a data type; `None` for BYTES.
    pub fn number(self, data_type: DataType) -> Option<c_int> {
        Some(match data_type {
            DataType::Bool => self.boolean,
            DataType::Bf16 => self.boolean + 1,
            DataType::Fp16 => self.boolean + 2,
            DataType::Fp32 => self.boolean + 3,
            DataType::Fp64 => self.boolean + 4,
            DataType::Int8 => self.boolean + 6,
            DataType::Int16 => self.boolean + 7,
            DataType::Int32 => self.boolean + 8,
            DataType::Int64 => self.boolean + 9,
            DataType::Uint8 => self.u8,
            DataType::Uint16 => self.u8 + 1,
            DataType::Uint32 => self.u8 + 2,
            DataType::Uint64 => self.u8 + 3,
            DataType::Bytes => return None,
        })
    }

    /// The data type of a number; `None` if Triton has none, or it is text.
    pub fn data_type(self, number: c_int) -> Option<DataType> {
        DataType::ALL
            .into_iter()
            .find(|&data_type| self.number(data_type) == Some(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_numbers_of_several_versions() {
        let known = [8, 16, 16, 32, 64, 4, 8, 16, 32, 64, 1];
        let unsigned = [8, 16, 32, 64, 4, 8, 8];
        for (before, between) in [
            // undefined and dynamic; u4.
            (&[0, 0][..], &[4][..]),
            // undefined and dynamic; u2, u3, u4, u6.
            (&[0, 0], &[2, 3, 4, 6]),
            // dynamic.
            (&[0], &[2, 3, 4, 6]),
        ] {
            let sizes = [before, &known, between, &unsigned].concat();
            let byte_count = |element: c_int| sizes.get(usize::try_from(element).ok()?).copied();
            let types = ElementTypes::find(byte_count).unwrap();
            let boolean = c_int::try_from(before.len()).unwrap();
            let u8 = boolean + 11 + c_int::try_from(between.len()).unwrap();
            assert_eq!(types, ElementTypes { boolean, u8 });
            for data_type in DataType::ALL {
                let Some(number) = types.number(data_type) else {
                    assert_eq!(data_type, DataType::Bytes);
                    continue;
                };
                assert_eq!(types.data_type(number), Some(data_type));
                assert_eq!(
                    byte_count(number),
                    data_type.element_bytes().map(|size| 8 * size)
                );
            }
            // Text, i4.
            assert_eq!(types.data_type(boolean + 5), None);
            assert_eq!(types.data_type(0), None);
        }
    }

    #[test]
    fn refuses_types_in_an_order_that_is_not_known() {
        assert!(ElementTypes::find(|_| None).is_err());
        assert!(ElementTypes::find(|_| Some(8)).is_err());
    }
}
