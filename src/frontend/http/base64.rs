//! Base64 as upstream reads it: whatever is no character of the alphabet is skipped.

use conch_memory::{OutOfMemory, try_reserve};

/// The bytes that `text` stands for.
///
/// # Errors
/// Without memory for them.
pub(crate) fn decode(text: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
    let mut out = Vec::new();
    try_reserve(&mut out, text.len() / 4 * 3 + 3)?;
    let mut bits = 0_u32;
    let mut bit_count = 0_u32;
    for digit in text.iter().filter_map(|character| digit(*character)) {
        bits = (bits << 6) | u32::from(digit);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            out.push(((bits >> bit_count) & 0xff) as u8);
        }
    }
    Ok(out)
}

fn digit(character: u8) -> Option<u8> {
    Some(match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, expected) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYg", b"foob"),
            ("Zm9v\r\nYmFy", b"foobar"),
            ("Z m-9_v*", b"foo"),
            ("/+8A", &[0xff, 0xef, 0x00]),
            ("====", b""),
            ("Z", b""),
        ] {
            assert_eq!(decode(text.as_bytes()).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn every_byte_survives() {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bytes: Vec<u8> = (0..=255).chain((0..=255).rev()).chain([1]).collect();
        let mut text = Vec::new();
        for chunk in bytes.chunks(3) {
            let word = chunk
                .iter()
                .chain(&[0, 0])
                .take(3)
                .fold(0_usize, |word, byte| word << 8 | usize::from(*byte));
            for index in 0..=chunk.len() {
                text.push(ALPHABET[word >> (18 - 6 * index) & 63]);
            }
        }
        assert_eq!(decode(&text).unwrap(), bytes);
    }
}
