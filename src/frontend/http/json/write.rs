//! JSON text as upstream's serialiser writes it: compact.

use super::lexer;
use super::number_text::{self, NumberRoom};

/// Appends `text` in quotation marks.
pub(crate) fn string(target: &mut Vec<u8>, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    target.push(b'"');
    let (mut plain_from, mut at) = (0, 0);
    loop {
        at = lexer::skip_plain(text, at);
        target.extend_from_slice(text.get(plain_from..at).unwrap_or(&[]));
        let Some(byte) = text.get(at).copied() else {
            break;
        };
        at += 1;
        plain_from = at;
        let short = match byte {
            b'"' => b'"',
            b'\\' => b'\\',
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            _ => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                target.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
                continue;
            }
        };
        target.extend_from_slice(&[b'\\', short]);
    }
    target.push(b'"');
}

/// Appends a whole number.
pub(crate) fn unsigned(target: &mut Vec<u8>, value: u64) {
    match value {
        // Many sizes and dimensions.
        0..10 => target.push(b'0' + value as u8),
        _ => number(target, |room| number_text::unsigned(room, value)),
    }
}

/// Appends a whole number with its sign.
pub(crate) fn signed(target: &mut Vec<u8>, value: i64) {
    match u64::try_from(value) {
        Ok(value) => unsigned(target, value),
        Err(_) => number(target, |room| number_text::signed(room, value)),
    }
}

/// Appends a double, see [`number_text::double`].
pub(crate) fn double(target: &mut Vec<u8>, value: f64) {
    number(target, |room| number_text::double(room, value));
}

#[inline]
fn number(target: &mut Vec<u8>, write: impl FnOnce(&mut NumberRoom) -> usize) {
    let mut room = [0; size_of::<NumberRoom>()];
    let length = write(&mut room);
    target.extend_from_slice(room.get(..length).unwrap_or(&[]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut target = Vec::new();
        write(&mut target);
        String::from_utf8(target).unwrap()
    }

    #[test]
    fn integers_and_strings() {
        assert_eq!(
            written(|target| unsigned(target, u64::MAX)),
            "18446744073709551615"
        );
        assert_eq!(
            written(|target| signed(target, i64::MIN)),
            "-9223372036854775808"
        );
        assert_eq!(written(|target| signed(target, 0)), "0");
        for length in 0..20 {
            let plain = "abcdefghi jklmnopqrst"[..length].to_owned();
            for (byte, escape) in [
                ("\"", "\\\""),
                ("\\", "\\\\"),
                ("\n", "\\n"),
                ("\u{1}", "\\u0001"),
                ("\u{1f}", "\\u001F"),
                ("\u{7f}", "\u{7f}"),
                ("/", "/"),
            ] {
                let text = format!("{plain}{byte}{plain}{byte}");
                let expected = format!("\"{plain}{escape}{plain}{escape}\"");
                assert_eq!(written(|target| string(target, text.as_bytes())), expected);
            }
        }
        assert_eq!(
            written(|target| string(target, b"a\"\\\n\x01\x1f/\xc3\xa9")),
            "\"a\\\"\\\\\\n\\u0001\\u001F/\u{e9}\""
        );
    }
}
