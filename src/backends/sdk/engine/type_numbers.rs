//! The numbers that an engine has for types of elements.

use std::ffi::c_int;

use crate::DataType;

/// An engine's number for each type that it shares with Triton.
#[derive(Clone, Copy, Debug)]
pub struct TypeNumbers(pub &'static [(DataType, c_int)]);

impl TypeNumbers {
    /// The number of a type; `None` if the engine has none.
    pub fn number(self, data_type: DataType) -> Option<c_int> {
        let mut known = self.0.iter();
        known
            .find(|(known, _)| *known == data_type)
            .map(|&(_, number)| number)
    }

    /// The type of a number; `None` if Triton has none.
    pub fn data_type(self, number: c_int) -> Option<DataType> {
        let mut known = self.0.iter();
        known
            .find(|(_, known)| *known == number)
            .map(|&(data_type, _)| data_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_map_both_ways() {
        let numbers = TypeNumbers(&[(DataType::Fp32, 1), (DataType::Int8, 4)]);
        for data_type in DataType::ALL {
            let number = numbers.number(data_type);
            let back = number.and_then(|number| numbers.data_type(number));
            assert_eq!(back, number.map(|_| data_type));
        }
        assert_eq!(numbers.number(DataType::Int8), Some(4));
        assert_eq!(numbers.number(DataType::Bytes), None);
        assert_eq!(numbers.data_type(0), None);
    }
}
