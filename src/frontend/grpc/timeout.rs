//! The `grpc-timeout` header: how long the client is willing to wait.

/// Nanoseconds of a `grpc-timeout` value: one to eight digits and a unit (H, M, S, m, u or n). None
/// if it is anything else. Values beyond 2^64 ns (the header can say 11,000 years) become
/// `u64::MAX`.
pub(super) fn parse_ns(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let mut amount = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        amount = amount * 10 + u64::from(digit - b'0');
    }
    let unit_ns: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return None,
    };
    Some(amount.saturating_mul(unit_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_unit_and_refuses_the_rest() {
        let table: &[(&str, Option<u64>)] = &[
            ("1n", Some(1)),
            ("20u", Some(20_000)),
            ("100m", Some(100_000_000)),
            ("3S", Some(3_000_000_000)),
            ("2M", Some(120_000_000_000)),
            ("1H", Some(3_600_000_000_000)),
            ("0S", Some(0)),
            ("99999999H", Some(u64::MAX)),
            ("00000001S", Some(1_000_000_000)),
            ("", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("-1S", None),
            ("1.5S", None),
            ("123456789S", None),
            ("99999999999999999999n", None),
        ];
        for (value, expected) in table {
            assert_eq!(parse_ns(value.as_bytes()), *expected, "{value:?}");
        }
    }
}
