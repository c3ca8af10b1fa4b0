//! Documents as JSON text in the layout of upstream's serialiser (rapidjson): compact, members in
//! the order of the fields, control characters as `\u001F`. Tensors are none of them: the front end
//! writes those straight from their bytes. Pure functions.

use std::fmt::Display;
use std::io;

use serde::{Serialize, Serializer};
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};

/// `document` as JSON text. It has no map with keys other than strings and integers.
pub fn to_json(document: &(impl Serialize + ?Sized)) -> String {
    let mut text = Vec::new();
    let mut target = serde_json::Serializer::with_formatter(&mut text, RapidJsonFormatter);
    document
        .serialize(&mut target)
        .expect("memory takes every byte, and every key has a text");
    String::from_utf8(text).expect("made of strings and ASCII")
}

/// serde_json's compact layout, but for the case of hexadecimal digits.
struct RapidJsonFormatter;

impl Formatter for RapidJsonFormatter {
    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        target: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        match escape {
            CharEscape::AsciiControl(byte) => write!(target, "\\u{byte:04X}"),
            escape => CompactFormatter.write_char_escape(target, escape),
        }
    }
}

/// A number that upstream writes as a string.
pub fn as_text<S: Serializer>(value: &impl Display, target: S) -> Result<S::Ok, S::Error> {
    target.collect_str(value)
}

/// As [`as_text`], of one that is left out where there is none.
pub(crate) fn some_as_text<S: Serializer>(
    value: &Option<impl Display>,
    target: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => target.collect_str(value),
        None => target.serialize_none(),
    }
}

/// A list of numbers that upstream writes as strings.
pub(crate) fn as_texts<S: Serializer>(values: &[i64], target: S) -> Result<S::Ok, S::Error> {
    target.collect_seq(values.iter().map(i64::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_look_as_rapidjson_writes_them() {
        for (text, expected) in [
            ("", r#""""#),
            ("a/b'", r#""a/b'""#),
            ("\"\\", r#""\"\\""#),
            ("\u{8}\u{c}\n\r\t", r#""\b\f\n\r\t""#),
            (
                "\0\u{1}\u{b}\u{e}\u{1f}",
                r#""\u0000\u0001\u000B\u000E\u001F""#,
            ),
            (
                "\u{7f}\u{e9}\u{2028}\u{1f600}",
                "\"\u{7f}\u{e9}\u{2028}\u{1f600}\"",
            ),
        ] {
            assert_eq!(to_json(text), expected, "{text:?}");
        }
    }

    #[test]
    fn integers_are_written_whole() {
        for (value, expected) in [
            (i128::from(i64::MIN), "-9223372036854775808"),
            (i128::from(u64::MAX), "18446744073709551615"),
            (0, "0"),
        ] {
            assert_eq!(to_json(&value), expected);
        }
    }
}
