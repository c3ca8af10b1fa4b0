//! Numbers of every data type, and the rules by which one becomes another. The kernels follow the
//! same rules, bit for bit:
//!
//! - floats are IEEE 754, rounded to nearest even, denormals kept;
//! - a NaN that is computed or converted is the quiet NaN with all bits of the fraction set;
//! - a float becomes the nearest integer, to even between two; beyond the range the end of the
//!   range, and zero for a NaN;
//! - an integer becomes an integer of a narrower range by taking the nearest that it has;
//! - FP16 and BF16 are computed in FP32 and rounded once; integers become floats by way of FP32.

use conch_backend_sdk as sdk;
use half::{bf16, f16};
use sdk::{DataType, TensorBytes};

pub const NAN_FP32: u32 = 0x7fff_ffff;
pub const NAN_HALF: u16 = 0x7fff;

/// The data types that are computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberType {
    Fp32,
    Fp16,
    Bf16,
    Int32,
    Int8,
    Uint8,
}

impl NumberType {
    pub const ALL: [NumberType; 6] = [
        NumberType::Fp32,
        NumberType::Fp16,
        NumberType::Bf16,
        NumberType::Int32,
        NumberType::Int8,
        NumberType::Uint8,
    ];

    pub fn of(data_type: DataType) -> Option<NumberType> {
        Some(match data_type {
            DataType::Fp32 => NumberType::Fp32,
            DataType::Fp16 => NumberType::Fp16,
            DataType::Bf16 => NumberType::Bf16,
            DataType::Int32 => NumberType::Int32,
            DataType::Int8 => NumberType::Int8,
            DataType::Uint8 => NumberType::Uint8,
            _ => return None,
        })
    }

    pub fn data_type(self) -> DataType {
        match self {
            NumberType::Fp32 => DataType::Fp32,
            NumberType::Fp16 => DataType::Fp16,
            NumberType::Bf16 => DataType::Bf16,
            NumberType::Int32 => DataType::Int32,
            NumberType::Int8 => DataType::Int8,
            NumberType::Uint8 => DataType::Uint8,
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            NumberType::Fp32 | NumberType::Int32 => 4,
            NumberType::Fp16 | NumberType::Bf16 => 2,
            NumberType::Int8 | NumberType::Uint8 => 1,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, NumberType::Fp32 | NumberType::Fp16 | NumberType::Bf16)
    }

    /// The least and the greatest integer.
    pub fn range(self) -> (i64, i64) {
        match self {
            NumberType::Int8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
            NumberType::Uint8 => (0, i64::from(u8::MAX)),
            _ => (i64::from(i32::MIN), i64::from(i32::MAX)),
        }
    }
}

/// A number of one type.
pub trait Number: Copy {
    const IS_FLOAT: bool;
    const BYTES: usize;

    /// The element at `index`; zero if it does not lie inside.
    fn read(bytes: &TensorBytes<'_>, index: usize) -> Self;
    /// Appends the element.
    fn put(self, target: &mut Vec<u8>);
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;
    /// Of an integer.
    fn to_i64(self) -> i64;
    /// An integer.
    fn from_i64(value: i64) -> Self;
}

/// By way of FP32 where one of both is a float.
pub fn converted<A: Number, B: Number>(value: A) -> B {
    if A::IS_FLOAT || B::IS_FLOAT {
        B::from_f32(value.to_f32())
    } else {
        B::from_i64(value.to_i64())
    }
}

#[derive(Clone, Copy)]
pub struct Fp32(u32);
#[derive(Clone, Copy)]
pub struct Fp16(u16);
#[derive(Clone, Copy)]
pub struct Bf16(u16);

macro_rules! floats {
    ($($name:ident $bits:ident $bytes:literal $to:expr, $from:expr;)*) => {$(
        impl Number for $name {
            const IS_FLOAT: bool = true;
            const BYTES: usize = $bytes;

            fn read(bytes: &TensorBytes<'_>, index: usize) -> Self {
                let element = bytes.read::<$bytes>(index * $bytes).unwrap_or_default();
                $name($bits::from_le_bytes(element))
            }

            fn put(self, target: &mut Vec<u8>) {
                target.extend_from_slice(&self.0.to_le_bytes());
            }

            fn to_f32(self) -> f32 {
                $to(self.0)
            }

            fn from_f32(value: f32) -> Self {
                $name($from(value))
            }

            fn to_i64(self) -> i64 {
                self.to_f32() as i64
            }

            fn from_i64(value: i64) -> Self {
                $name::from_f32(value as f32)
            }
        }
    )*};
}

floats! {
    Fp32 u32 4 f32::from_bits, |value: f32| if value.is_nan() { NAN_FP32 } else { value.to_bits() };
    Fp16 u16 2 |bits| f16::from_bits(bits).to_f32(), |value: f32| {
        if value.is_nan() { NAN_HALF } else { f16::from_f32(value).to_bits() }
    };
    Bf16 u16 2 |bits| bf16::from_bits(bits).to_f32(), |value: f32| {
        if value.is_nan() { NAN_HALF } else { bf16::from_f32(value).to_bits() }
    };
}

macro_rules! integers {
    ($($name:ident $bytes:literal)*) => {$(
        impl Number for $name {
            const IS_FLOAT: bool = false;
            const BYTES: usize = $bytes;

            fn read(bytes: &TensorBytes<'_>, index: usize) -> Self {
                let element = bytes.read::<$bytes>(index * $bytes).unwrap_or_default();
                $name::from_le_bytes(element)
            }

            fn put(self, target: &mut Vec<u8>) {
                target.extend_from_slice(&self.to_le_bytes());
            }

            fn to_f32(self) -> f32 {
                self as f32
            }

            fn from_f32(value: f32) -> Self {
                // The cast takes the nearest that there is, and zero for a NaN.
                value.round_ties_even() as $name
            }

            fn to_i64(self) -> i64 {
                i64::from(self)
            }

            fn from_i64(value: i64) -> Self {
                value.clamp(i64::from($name::MIN), i64::from($name::MAX)) as $name
            }
        }
    )*};
}

integers!(i32 4 i8 1 u8 1);

/// Runs code for the type that a [`NumberType`] names.
macro_rules! with_type {
    ($number_type:expr, $name:ident, $body:expr) => {
        match $number_type {
            $crate::element::NumberType::Fp32 => {
                type $name = $crate::element::Fp32;
                $body
            }
            $crate::element::NumberType::Fp16 => {
                type $name = $crate::element::Fp16;
                $body
            }
            $crate::element::NumberType::Bf16 => {
                type $name = $crate::element::Bf16;
                $body
            }
            $crate::element::NumberType::Int32 => {
                type $name = i32;
                $body
            }
            $crate::element::NumberType::Int8 => {
                type $name = i8;
                $body
            }
            $crate::element::NumberType::Uint8 => {
                type $name = u8;
                $body
            }
        }
    };
}
pub(crate) use with_type;

#[cfg(test)]
mod tests {
    use super::*;

    fn bits<T: Number>(value: f32) -> u32 {
        let mut bytes = Vec::new();
        T::from_f32(value).put(&mut bytes);
        bytes.resize(4, 0);
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    #[test]
    fn floats_become_other_types() {
        for (value, fp16, bf16, int32, int8, uint8) in [
            (0.5, 0x3800, 0x3f00, 0, 0, 0),
            (1.5, 0x3e00, 0x3fc0, 2, 2, 2),
            (2.5, 0x4100, 0x4020, 2, 2, 2),
            (-2.5, 0xc100, 0xc020, -2_i32 as u32, 0xfe, 0),
            (300.0, 0x5cb0, 0x4396, 300, 127, 255),
            (65519.9, 0x7bff, 0x4780, 65520, 127, 255),
            (65520.0, 0x7c00, 0x4780, 65520, 127, 255),
            (3e9, 0x7c00, 0x4f33, i32::MAX as u32, 127, 255),
            (f32::NEG_INFINITY, 0xfc00, 0xff80, i32::MIN as u32, 0x80, 0),
            (f32::MAX, 0x7c00, 0x7f80, i32::MAX as u32, 127, 255),
            (f32::from_bits(1), 0, 0, 0, 0, 0),
            (-0.0, 0x8000, 0x8000, 0, 0, 0),
            (f32::NAN, 0x7fff, 0x7fff, 0, 0, 0),
        ] {
            let found = (
                bits::<Fp16>(value),
                bits::<Bf16>(value),
                bits::<i32>(value),
                bits::<i8>(value),
                bits::<u8>(value),
            );
            assert_eq!(found, (fp16, bf16, int32, int8, uint8), "{value}");
        }
        assert_eq!(bits::<Fp32>(f32::from_bits(0xffc0_0001)), NAN_FP32);
        assert_eq!(bits::<Fp32>(f32::from_bits(1)), 1);
    }

    #[test]
    fn integers_saturate() {
        assert_eq!(converted::<i32, i8>(-1000), -128);
        assert_eq!(converted::<i32, u8>(-1), 0);
        assert_eq!(converted::<i32, u8>(256), 255);
        assert_eq!(converted::<u8, i8>(200), 127);
        assert_eq!(converted::<i8, u8>(-1), 0);
        assert_eq!(converted::<i32, Fp32>(16_777_217).to_f32(), 16_777_216.0);
        assert_eq!(converted::<i32, Fp16>(i32::MAX).to_f32(), f32::INFINITY);
    }
}
