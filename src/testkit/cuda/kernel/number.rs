//! Arithmetic as the device does it. Floats are IEEE 754: rounded to nearest even unless told,
//! denormals kept, and every NaN that comes out of FP32 arithmetic is 0x7fffffff, of FP16 0x7fff.

use super::instruction::{Rounding, Type};

pub const NAN_F32: u32 = 0x7fff_ffff;
pub const NAN_F16: u16 = 0x7fff;

/// The bits of the result of FP32 arithmetic.
pub fn canonical(value: f32) -> u64 {
    u64::from(if value.is_nan() {
        NAN_F32
    } else {
        value.to_bits()
    })
}

/// The value of FP16 bits; exact.
pub fn from_half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f32::from(bits & 0x3ff);
    match exponent {
        0 => sign * fraction * 2_f32.powi(-24),
        0x1f if fraction == 0.0 => sign * f32::INFINITY,
        0x1f => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2_f32.powi(exponent - 25),
    }
}

/// FP16 bits of a value, rounded.
pub fn to_half(value: f32, rounding: Rounding) -> u16 {
    if value.is_nan() {
        return NAN_F16;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = f64::from(value.abs());
    if magnitude.is_infinite() {
        return sign | 0x7c00;
    }
    // In units of the last place of its binade, or of denormals.
    let exponent = exponent_of(magnitude).max(-14);
    let unit = 2_f64.powi(exponent - 10);
    let steps = whole(magnitude / unit, away(rounding, value.is_sign_negative()));
    let rounded = steps * unit;
    if rounded > 65504.0 {
        // Towards zero there is nothing beyond the largest number.
        let is_cut = matches!(away(rounding, value.is_sign_negative()), Rounding::Zero);
        return sign | if is_cut { 0x7bff } else { 0x7c00 };
    }
    let exponent = exponent_of(rounded);
    let bits = if rounded == 0.0 || exponent < -14 {
        rounded * 2_f64.powi(24)
    } else {
        rounded / 2_f64.powi(exponent - 10) - 1024.0 + f64::from((exponent + 15) * 1024)
    };
    sign | bits as u16
}

/// The largest power of two that is not above a positive value.
fn exponent_of(value: f64) -> i32 {
    if value == 0.0 {
        return i32::MIN;
    }
    (value.to_bits() >> 52) as i32 - 1023
}

/// A mode as it acts on the magnitude of a value.
fn away(rounding: Rounding, is_negative: bool) -> Rounding {
    match (rounding, is_negative) {
        (Rounding::Down, true) | (Rounding::Up, false) => Rounding::Up,
        (Rounding::Down, false) | (Rounding::Up, true) => Rounding::Zero,
        (other, _) => other,
    }
}

/// The integer near a value.
pub fn whole(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// A float as an integer of a type, which takes the nearest that it has; what a NaN becomes differs
/// by width.
pub fn to_integer(value: f32, to: Type, rounding: Rounding) -> u64 {
    if value.is_nan() {
        return if to.bytes() == 8 { 1 << 63 } else { 0 };
    }
    let value = whole(f64::from(value), rounding);
    // The casts of Rust saturate.
    match to {
        Type::Signed(1) => value as i8 as u64,
        Type::Signed(2) => value as i16 as u64,
        Type::Signed(4) => value as i32 as u64,
        Type::Signed(_) => value as i64 as u64,
        Type::Unsigned(1) => u64::from(value as u8),
        Type::Unsigned(2) => u64::from(value as u16),
        Type::Unsigned(4) => u64::from(value as u32),
        _ => value as u64,
    }
}

/// An integer as FP32, rounded to nearest.
pub fn from_integer(value: u64, from: Type) -> f32 {
    match from {
        Type::Signed(_) => extended(value, from) as i64 as f32,
        _ => extended(value, from) as f32,
    }
}

/// The value of an integer type in 64 bits, its sign spread where it has one.
pub fn extended(value: u64, data_type: Type) -> u64 {
    match data_type {
        Type::Signed(1) => value as i8 as u64,
        Type::Signed(2) => value as i16 as u64,
        Type::Signed(4) => value as i32 as u64,
        other => truncated(value, other.bytes()),
    }
}

/// The low bytes of a value.
pub fn truncated(value: u64, bytes: u32) -> u64 {
    match bytes {
        8.. => value,
        bytes => value & ((1 << (8 * bytes)) - 1),
    }
}

/// An integer that is brought into the range of another type.
pub fn saturated(value: u64, from: Type, to: Type) -> u64 {
    let value = match from {
        Type::Signed(_) => i128::from(extended(value, from) as i64),
        _ => i128::from(extended(value, from)),
    };
    let bits = 8 * to.bytes();
    let (least, most) = match to {
        Type::Signed(_) => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
        _ => (0, (1_i128 << bits) - 1),
    };
    value.clamp(least, most) as u64
}
