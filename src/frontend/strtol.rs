//! Whole numbers as upstream reads them from texts of clients: by C's `strtol` and its kin, which
//! care for the start of a text only.

use std::num::ParseIntError;
use std::str::FromStr;

/// Why there is no number at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParseNumberError {
    Missing,
    OutOfRange,
}

/// The number at the start of `text`; blanks before and anything after it are ignored.
///
/// # Errors
/// There is none, or it does not fit `T`.
pub(crate) fn parse<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, ParseNumberError> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\u{b}', '\u{c}']);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digit_count = digits
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    if digit_count == 0 {
        return Err(ParseNumberError::Missing);
    }
    let end = text.len() - digits.len() + digit_count;
    text.get(..end)
        .unwrap_or("")
        .parse()
        .map_err(|_| ParseNumberError::OutOfRange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_start_counts() {
        for (text, expected) in [
            ("1", Ok(1)),
            (" +7x", Ok(7)),
            ("\t\u{b}-3 4", Ok(-3)),
            ("007\u{e9}", Ok(7)),
            ("2147483647", Ok(i32::MAX)),
            ("-2147483648", Ok(i32::MIN)),
            ("2147483648", Err(ParseNumberError::OutOfRange)),
            ("-99999999999999999999", Err(ParseNumberError::OutOfRange)),
            ("", Err(ParseNumberError::Missing)),
            ("x1", Err(ParseNumberError::Missing)),
            ("+", Err(ParseNumberError::Missing)),
            ("+-1", Err(ParseNumberError::Missing)),
            // No blank to C.
            ("\u{a0}1", Err(ParseNumberError::Missing)),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
        assert_eq!(parse("2147483648"), Ok(2_147_483_648i64));
    }
}
