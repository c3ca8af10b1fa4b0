//! Numbers as keys: unsigned integers in the numbers' order.
//!
//! A node compares keys instead of numbers. Rows wait for each comparison before they take the next
//! step, and a processor has that of two integers in a third of the time.

/// NaN's: less than that of any number, so that no comparison `value >= threshold` holds for it.
pub const NAN: u32 = 0;

/// The key of a value or a threshold.
pub fn key_of(value: f32) -> u32 {
    if value.is_nan() {
        NAN
    } else {
        key_of_number(value)
    }
}

/// The same where NaN's is of no interest.
#[inline(always)]
pub fn key_of_number(value: f32) -> u32 {
    // Minus zero is zero.
    let bits = (value + 0.0).to_bits();
    // Bits of negative numbers grow with their magnitude, and are above those of the others.
    bits ^ ((bits.cast_signed() >> 31).cast_unsigned() | SIGN)
}

/// The value of a key; zero for that of minus zero.
#[inline(always)]
pub fn value_of(key: u32) -> f32 {
    f32::from_bits(key ^ ((!key.cast_signed() >> 31).cast_unsigned() | SIGN))
}

/// That of a leaf with this value, which is no comparison's. Never [`NAN`], which leaves are
/// compared with and must be less.
pub fn key_of_leaf(value: f32) -> u32 {
    // Minus zero adds as little.
    if value == 0.0 { SIGN } else { value.to_bits() }
}

/// That of a leaf with the vector of this number. Never [`NAN`] either.
pub fn key_of_vector(number: u32) -> Option<u32> {
    number.checked_add(1)
}

/// The number of the vector of a leaf's key.
#[inline(always)]
pub fn vector_of(key: u32) -> usize {
    (key as usize).wrapping_sub(1)
}

/// The value of a leaf's key.
#[inline(always)]
pub fn value_of_leaf(key: u32) -> f32 {
    f32::from_bits(key)
}

const SIGN: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_numbers() {
        let ascending = [
            f32::NEG_INFINITY,
            f32::MIN,
            -2.5,
            -1.0,
            -f32::MIN_POSITIVE,
            -1e-45,
            0.0,
            1e-45,
            1.0,
            f32::MAX,
            f32::INFINITY,
        ];
        for (at, &one) in ascending.iter().enumerate() {
            assert_eq!(value_of(key_of(one)).to_bits(), one.to_bits());
            assert!(key_of(one) > NAN);
            assert!(key_of_leaf(one) > NAN);
            assert_eq!(value_of_leaf(key_of_leaf(one)), one);
            for &other in &ascending[at + 1..] {
                assert!(key_of(one) < key_of(other), "{one} {other}");
            }
        }
        assert_eq!(key_of(-0.0), key_of(0.0));
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(u32::MAX)] {
            assert_eq!(key_of(nan), NAN);
            assert!(key_of_leaf(nan) > NAN);
            assert!(value_of_leaf(key_of_leaf(nan)).is_nan());
        }
        assert!(value_of(NAN).is_nan());
        assert_eq!(key_of_vector(7).map(vector_of), Some(7));
        assert_eq!(key_of_vector(u32::MAX), None);
    }
}
