//! Values of the protobuf text format, once their token is known.

use super::token::{TextFault, TextToken};

/// Reads an integer token of at most `max`: decimal, hexadecimal or octal.
pub(super) fn integer(token: &TextToken<'_>, max: u64) -> Result<u64, TextFault> {
    let text = token.shown();
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (text.get(2..).unwrap_or_default(), 16),
        [b'0', _, ..] => (text.get(1..).unwrap_or_default(), 8),
        _ => (&*text, 10),
    };
    u64::from_str_radix(digits, radix)
        .ok()
        .filter(|value| *value <= max)
        .ok_or_else(|| TextFault::new(token.at, format!("Integer out of range ({text})")))
}

/// Reads a decimal integer or float token. A number too large becomes infinite.
pub(super) fn float(token: &TextToken<'_>) -> Result<f64, TextFault> {
    let text = token.shown();
    if text.len() > 1
        && text.starts_with('0')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    {
        let is_exponent = text
            .bytes()
            .nth(1)
            .is_some_and(|byte| matches!(byte, b'e' | b'E' | b'f' | b'F'));
        if !is_exponent {
            return Err(TextFault::new(
                token.at,
                format!("Expect a decimal number, got: {text}"),
            ));
        }
    }
    let digits = text.strip_suffix(['f', 'F']).unwrap_or(&text);
    digits
        .parse()
        .map_err(|_| TextFault::new(token.at, format!("Expect a decimal number, got: {text}")))
}

/// Appends what a string token stands for, escapes resolved.
pub(super) fn append_string(token: &TextToken<'_>, value: &mut Vec<u8>) -> Result<(), TextFault> {
    let quoted = token.text;
    let mut rest = quoted
        .get(1..quoted.len().saturating_sub(1))
        .unwrap_or_default();
    let fault = |message: &str| TextFault::new(token.at, message);
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            value.push(*first);
            continue;
        }
        let Some((escape, after)) = rest.split_first() else {
            return Err(fault("Invalid escape sequence in string literal."));
        };
        rest = after;
        let simple = match escape {
            b'a' => 0x07,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0B,
            b'\\' | b'?' | b'\'' | b'"' => *escape,
            b'0'..=b'7' => {
                let mut code = u32::from(*escape - b'0');
                for _ in 0..2 {
                    let Some((digit @ b'0'..=b'7', after)) = rest.split_first() else {
                        break;
                    };
                    code = code * 8 + u32::from(*digit - b'0');
                    rest = after;
                }
                u8::try_from(code)
                    .map_err(|_| fault("Octal escape beyond one byte in string literal."))?
            }
            b'x' | b'X' => {
                let (code, length) = hex(rest, 2);
                if length == 0 {
                    return Err(fault("Expected hex digits for escape sequence."));
                }
                rest = rest.get(length..).unwrap_or_default();
                u8::try_from(code).expect("two hex digits are one byte")
            }
            b'u' | b'U' => {
                let (character, length) = unicode(*escape, rest).ok_or_else(|| {
                    fault("Expected four hex digits for \\u or eight for \\U, of a character.")
                })?;
                value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                rest = rest.get(length..).unwrap_or_default();
                continue;
            }
            _ => return Err(fault("Invalid escape sequence in string literal.")),
        };
        value.push(simple);
    }
    Ok(())
}

/// Reads up to `length_max` hex digits: their value and how many they are.
fn hex(text: &[u8], length_max: usize) -> (u32, usize) {
    let digits = text
        .iter()
        .take(length_max)
        .map_while(|byte| char::from(*byte).to_digit(16));
    digits.fold((0, 0), |(value, length), digit| {
        (value << 4 | digit, length + 1)
    })
}

/// The character of a unicode escape (after its letter) and the length of what was read; two `\u`
/// may be a surrogate pair.
fn unicode(letter: u8, text: &[u8]) -> Option<(char, usize)> {
    let digits = if letter == b'u' { 4 } else { 8 };
    let (code, length) = hex(text, digits);
    if length != digits {
        return None;
    }
    if let (0xD800..=0xDBFF, Some(second)) = (
        code,
        text.get(digits..)
            .and_then(|rest| rest.strip_prefix(b"\\u")),
    ) {
        let (low, length) = hex(second, 4);
        if length == 4 && (0xDC00..=0xDFFF).contains(&low) {
            let code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            return char::from_u32(code).map(|character| (character, digits + 6));
        }
    }
    char::from_u32(code).map(|character| (character, digits))
}

#[cfg(test)]
mod tests {
    use super::super::token::Tokens;
    use super::*;

    #[test]
    fn integers() {
        for (text, expected) in [
            ("0", Some(0)),
            ("00", Some(0)),
            ("010", Some(8)),
            ("0x1f", Some(31)),
            ("0XFF", Some(255)),
            ("256", None),
            ("18446744073709551616", None),
        ] {
            let token = Tokens::new(text.as_bytes()).next().unwrap();
            assert_eq!(integer(&token, 255).ok(), expected, "{text}");
        }
    }

    #[test]
    fn floats() {
        for (text, expected) in [
            ("0", Some(0.0)),
            ("1", Some(1.0)),
            ("1.5f", Some(1.5)),
            ("0f", Some(0.0)),
            ("0e5", Some(0.0)),
            ("0.25", Some(0.25)),
            (".5", Some(0.5)),
            ("3.", Some(3.0)),
            ("1e400", Some(f64::INFINITY)),
            ("99999999999999999999", Some(1e20)),
            ("0x10", None),
            ("010", None),
        ] {
            let token = Tokens::new(text.as_bytes()).next().unwrap();
            assert_eq!(float(&token).ok(), expected, "{text}");
        }
    }

    #[test]
    fn escapes() {
        for (text, expected) in [
            (r#""plain""#, Some("plain".as_bytes())),
            (
                r#""\a\b\f\n\r\t\v\\\?\'\"""#,
                Some(b"\x07\x08\x0C\n\r\t\x0B\\?'\""),
            ),
            (r#""\101\x41\X4a\7z""#, Some(b"AAJ\x07z")),
            (r#""\303\251""#, Some("é".as_bytes())),
            (r#""\u00e9\U0001F600""#, Some("é😀".as_bytes())),
            (r#""\ud83d\ude00""#, Some("😀".as_bytes())),
            (r#""\ud83d""#, None),
            (r#""\u00""#, None),
            (r#""\U00110000""#, None),
            (r#""\xg""#, None),
            (r#""\q""#, None),
            (r#""\777""#, None),
        ] {
            let token = Tokens::new(text.as_bytes()).next().unwrap();
            let mut value = Vec::new();
            let result = append_string(&token, &mut value)
                .ok()
                .map(|()| value.as_slice());
            assert_eq!(result, expected, "{text}");
        }
    }
}
