//! Tokens of JSON text, with rapidjson's ideas of what is wrong where.

use std::fmt;

use super::digits;

/// Why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonFault {
    DocumentEmpty,
    RootNotSingular,
    ValueInvalid,
    MissingName,
    MissingColon,
    MissingCommaOrBrace,
    MissingCommaOrBracket,
    HexInvalid,
    SurrogateInvalid,
    EscapeInvalid,
    MissingQuote,
    EncodingInvalid,
    NumberTooBig,
    MissingFraction,
    MissingExponent,
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JsonFault::DocumentEmpty => "The document is empty.",
            JsonFault::RootNotSingular => "The document root must not be followed by other values.",
            JsonFault::ValueInvalid => "Invalid value.",
            JsonFault::MissingName => "Missing a name for object member.",
            JsonFault::MissingColon => "Missing a colon after a name of object member.",
            JsonFault::MissingCommaOrBrace => "Missing a comma or '}' after an object member.",
            JsonFault::MissingCommaOrBracket => "Missing a comma or ']' after an array element.",
            JsonFault::HexInvalid => "Incorrect hex digit after \\u escape in string.",
            JsonFault::SurrogateInvalid => "The surrogate pair in string is invalid.",
            JsonFault::EscapeInvalid => "Invalid escape character in string.",
            JsonFault::MissingQuote => "Missing a closing quotation mark in string.",
            JsonFault::EncodingInvalid => "Invalid encoding in string.",
            JsonFault::NumberTooBig => "Number too big to be stored in double.",
            JsonFault::MissingFraction => "Miss fraction part in number.",
            JsonFault::MissingExponent => "Miss exponent in number.",
        })
    }
}

/// A fault and where it was noticed.
pub(crate) type JsonRefused = (JsonFault, usize);

/// Offset of the first byte at or after `at` that is not white space.
#[inline]
pub(crate) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = text.get(at) {
        at += 1;
    }
    at
}

/// Checks `literal` at `at` and returns the offset behind it.
pub(crate) fn literal(text: &[u8], at: usize, literal: &[u8]) -> Result<usize, JsonRefused> {
    for (index, byte) in literal.iter().enumerate() {
        if text.get(at + index) != Some(byte) {
            return Err((JsonFault::ValueInvalid, at + index));
        }
    }
    Ok(at + literal.len())
}

/// A number with no more digits than these in front of its point and in its exponent is below
/// 10^(200 + 99), and a double reaches 10^308: whether it fits need not be looked at.
const INTEGER_DIGITS_SAFE: usize = 200;
const EXPONENT_DIGITS_SAFE: usize = 2;

/// Checks the number at `at` and returns the offset behind it. `NaN`, `Inf` and `Infinity` count as
/// numbers.
#[inline]
pub(crate) fn number(text: &[u8], start: usize) -> Result<usize, JsonRefused> {
    let mut at = start;
    if text.get(at) == Some(&b'-') {
        at += 1;
    }
    if let Some(number) = digits::short_decimal(text, at)
        && (number.whole_count == 1 || text.get(at) != Some(&b'0'))
    {
        return Ok(at + number.length());
    }
    let integer_start = at;
    match text.get(at) {
        Some(b'0') => at += 1,
        Some(b'1'..=b'9') => at = digits::skip(text, at),
        Some(b'N') => return literal(text, at, b"NaN"),
        Some(b'I') => {
            at = literal(text, at, b"Inf")?;
            return if text.get(at) == Some(&b'i') {
                literal(text, at, b"inity")
            } else {
                Ok(at)
            };
        }
        _ => return Err((JsonFault::ValueInvalid, at)),
    }
    let mut may_be_huge = at - integer_start > INTEGER_DIGITS_SAFE;
    if text.get(at) == Some(&b'.') {
        let digits = digits::skip(text, at + 1);
        if digits == at + 1 {
            return Err((JsonFault::MissingFraction, digits));
        }
        at = digits;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = text.get(at) {
            at += 1;
        }
        let digits = digits::skip(text, at);
        if digits == at {
            return Err((JsonFault::MissingExponent, digits));
        }
        may_be_huge |= digits - at > EXPONENT_DIGITS_SAFE;
        at = digits;
    }
    if may_be_huge {
        let is_finite = text
            .get(start..at)
            .and_then(|token| fast_float2::parse::<f64, _>(token).ok())
            .is_some_and(f64::is_finite);
        if !is_finite {
            return Err((JsonFault::NumberTooBig, start));
        }
    }
    Ok(at)
}

/// A checked string: where its content lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JsonText {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) has_escapes: bool,
}

impl JsonText {
    /// The offset behind the closing quotation mark.
    pub(crate) fn behind(self) -> usize {
        self.end + 1
    }
}

/// Checks the string whose opening quotation mark is at `quote`.
pub(crate) fn string(text: &[u8], quote: usize) -> Result<JsonText, JsonRefused> {
    let start = quote + 1;
    let mut at = start;
    let mut has_escapes = false;
    loop {
        at = skip_plain(text, at);
        match text.get(at) {
            Some(b'"') => {
                return Ok(JsonText {
                    start,
                    end: at,
                    has_escapes,
                });
            }
            Some(b'\\') => {
                has_escapes = true;
                at = escape(text, at)?.1;
            }
            Some(0) | None => return Err((JsonFault::MissingQuote, at)),
            Some(_) => return Err((JsonFault::EncodingInvalid, at)),
        }
    }
}

/// Offset of the first byte at or after `at` that strings hold only as an escape: a quotation mark,
/// a backslash, a control character.
#[inline]
pub(super) fn skip_plain(text: &[u8], mut at: usize) -> usize {
    while let Some(bytes) = text.get(at..).and_then(|rest| rest.first_chunk()) {
        match plain_count(*bytes) {
            8 => at += 8,
            count => return at + count,
        }
    }
    while let Some(0x20..) = text.get(at).filter(|byte| !matches!(byte, b'"' | b'\\')) {
        at += 1;
    }
    at
}

/// How many of `bytes` [`skip_plain`] passes over.
#[inline]
fn plain_count(bytes: [u8; 8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
    let text = u64::from_le_bytes(bytes);
    // Behind a byte that is below the limit others may count as below, so the first alone counts.
    let below = |text: u64, limit: u64| text.wrapping_sub(ONES * limit) & !text & HIGH_BITS;
    let is_byte = |byte: u8| below(text ^ (ONES * u64::from(byte)), 1);
    let stops = is_byte(b'"') | is_byte(b'\\') | below(text, 0x20);
    stops.trailing_zeros() as usize / 8
}

/// The character that the escape at `backslash` stands for, and the offset behind it.
fn escape(text: &[u8], backslash: usize) -> Result<(char, usize), JsonRefused> {
    let plain = match text.get(backslash + 1) {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => {
            let first = hex4(text, backslash + 2).ok_or((JsonFault::HexInvalid, backslash))?;
            if !(0xd800..0xe000).contains(&first) {
                let character =
                    char::from_u32(first).ok_or((JsonFault::SurrogateInvalid, backslash))?;
                return Ok((character, backslash + 6));
            }
            let is_pair = first < 0xdc00 && text.get(backslash + 6..backslash + 8) == Some(b"\\u");
            if !is_pair {
                return Err((JsonFault::SurrogateInvalid, backslash));
            }
            let second = hex4(text, backslash + 8).ok_or((JsonFault::HexInvalid, backslash))?;
            if !(0xdc00..0xe000).contains(&second) {
                return Err((JsonFault::SurrogateInvalid, backslash));
            }
            let combined = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            let character =
                char::from_u32(combined).ok_or((JsonFault::SurrogateInvalid, backslash))?;
            return Ok((character, backslash + 12));
        }
        _ => return Err((JsonFault::EscapeInvalid, backslash)),
    };
    Ok((plain, backslash + 2))
}

fn hex4(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..at + 4)?.iter().try_fold(0, |value, byte| {
        Some(value << 4 | char::from(*byte).to_digit(16)?)
    })
}

/// Hands `take` the content of a checked string piece by piece, with its escapes resolved. That is
/// never longer than the text.
pub(crate) fn unescape(text: &[u8], string: JsonText, mut take: impl FnMut(&[u8])) {
    let mut at = string.start;
    while at < string.end {
        let plain_end = skip_plain(text, at);
        take(text.get(at..plain_end).unwrap_or(&[]));
        if plain_end >= string.end {
            return;
        }
        let Ok((character, behind)) = escape(text, plain_end) else {
            return;
        };
        take(character.encode_utf8(&mut [0; 4]).as_bytes());
        at = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_bytes_end_where_they_do() {
        for byte in 0..=u8::MAX {
            let is_plain = byte >= 0x20 && byte != b'"' && byte != b'\\';
            for place in 0..20 {
                let mut text = [b' ', 0xff, 0x7f, b'#', b'!', b'[', b']', 0x80].repeat(3);
                text[place] = byte;
                let expected = if is_plain { text.len() } else { place };
                assert_eq!(skip_plain(&text, 0), expected, "{byte} at {place}");
                assert_eq!(
                    skip_plain(&text[..=place], place.min(3)),
                    expected.min(place + 1)
                );
            }
        }
    }
}
