//! Decimal fractions as doubles: one multiplication by an inverse power of ten, and a proof that
//! what the inverse lacks does not matter.

/// The largest power of five that fits 64 bits is 5^27.
const SCALE_MAX: usize = 27;
/// Powers of ten that are doubles.
const POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];
/// All whole numbers up to this are doubles.
const EXACT_MAX: u64 = 1 << 53;

/// The double that is nearest to `digits / 10^scale`; none if finding it takes more than this.
#[inline]
pub(super) fn nearest(digits: u64, scale: i32) -> Option<f64> {
    if digits <= EXACT_MAX
        && let Some(power) = POWERS_OF_TEN.get(scale.unsigned_abs() as usize)
    {
        // Both are exact, and one operation rounds once.
        return Some(match scale {
            0.. => digits as f64 / power,
            _ => digits as f64 * power,
        });
    }
    if digits == 0 {
        return Some(0.0);
    }
    let inverse = INVERSES.get(usize::try_from(scale).ok()?)?;
    let shift = digits.leading_zeros();
    let digits = u128::from(digits << shift);
    let (high, low) = (inverse.factor >> 64, inverse.factor & u128::from(u64::MAX));
    // The lowest 64 bits are dropped. With them, and with what the inverse lacks, the product is
    // less than 2 larger.
    let product = digits * high + ((digits * low) >> 64);
    let (least, most) = (rounded(product), rounded(product + 2));
    let exponent = 64 - inverse.exponent - shift as i32;
    (least == most).then(|| least * power_of_two(exponent))
}

/// As [`nearest`], in fewer instructions and for no more than fifteen digits: both are doubles, and
/// one division rounds once.
#[inline(always)]
pub(super) fn of_exact(digits: u64, scale: i32) -> Option<f64> {
    /// The last bit of a double of this size is one, and its others are zero.
    const LAST_BIT_IS_ONE: f64 = (1_u64 << 52) as f64;
    const DIGITS_MAX: u64 = 999_999_999_999_999;
    let power = POWERS_OF_TEN.get(usize::try_from(scale).ok()?)?;
    // A conversion takes more instructions.
    let number = f64::from_bits(LAST_BIT_IS_ONE.to_bits() | digits) - LAST_BIT_IS_ONE;
    (digits <= DIGITS_MAX).then(|| number / power)
}

/// About `digits / 10^scale`: rounded twice, so off by at most two units in the last place.
///
/// The conversion is an unsigned one although a signed one is shorter: that keeps the upper half of
/// its register, and so waits for the number before.
#[inline]
pub(super) fn approximate(digits: u64, scale: i32) -> Option<f64> {
    let power = POWERS_OF_TEN.get(usize::try_from(scale).ok()?)?;
    Some(digits as f64 / power)
}

/// `1 / 10^scale` is between `factor` and `factor + 1`, times `2^-exponent`.
struct InversePower {
    /// With its highest bit set.
    factor: u128,
    exponent: i32,
}

/// By scale.
const INVERSES: [InversePower; SCALE_MAX + 1] = {
    let mut inverses = [const {
        InversePower {
            factor: 1 << 127,
            exponent: 127,
        }
    }; SCALE_MAX + 1];
    let mut scale = 1;
    let mut power_of_five = 1;
    while scale <= SCALE_MAX {
        power_of_five *= 5;
        let mut inverse = inverse_of(power_of_five);
        inverse.exponent += scale as i32;
        inverses[scale] = inverse;
        scale += 1;
    }
    inverses
};

/// `1 / divisor` by long division, until the quotient has 128 bits. `divisor` is odd and above 1.
const fn inverse_of(divisor: u64) -> InversePower {
    let divisor = divisor as u128;
    let (mut factor, mut rest, mut exponent) = (0, 1, 0);
    while factor >> 127 == 0 {
        rest <<= 1;
        factor <<= 1;
        exponent += 1;
        if rest >= divisor {
            rest -= divisor;
            factor |= 1;
        }
    }
    InversePower { factor, exponent }
}

/// The double that is nearest to a number with at least 120 bits.
#[inline]
fn rounded(value: u128) -> f64 {
    let (high, low) = ((value >> 64) as u64, value as u64);
    // One bit stands for all that are too low to be kept: it tells a half from more than that.
    (high | u64::from(low != 0)) as f64 * power_of_two(64)
}

/// `2^exponent`, a normal double.
#[inline]
const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}
