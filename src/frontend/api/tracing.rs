//! The trace extension: what clients write, as changes of the settings, and what they are shown.

use conch_engine::Error;

use crate::trace::{Change, Levels};

/// The refusal to write traces elsewhere.
pub(crate) fn trace_file_refusal() -> Error {
    Error::unsupported("trace file location can not be updated through network protocol")
}

/// Levels by name. Names that mean nothing are ignored, as upstream; with only such nothing changes.
///
/// # Errors
/// INVALID_ARG for `OFF` beside others.
pub(crate) fn parse_levels(names: &[&str]) -> Result<Change<Levels>, Error> {
    let mut levels = Levels::default();
    let mut change = Change::Keep;
    for name in names {
        match *name {
            "OFF" if names.len() > 1 => {
                return Err(Error::invalid(
                    "Expect only one trace level 'OFF' is specified",
                ));
            }
            "OFF" => {}
            "TIMESTAMPS" => levels.timestamps = true,
            "TENSORS" => levels.tensors = true,
            _ => continue,
        }
        change = Change::Set(levels);
    }
    Ok(change)
}

/// The names of levels, as they are shown.
pub(crate) fn level_names(levels: Levels) -> Vec<&'static str> {
    if levels.is_off() {
        return vec!["OFF"];
    }
    let names = [
        ("TIMESTAMPS", levels.timestamps),
        ("TENSORS", levels.tensors),
    ];
    names
        .into_iter()
        .filter_map(|(name, is_on)| is_on.then_some(name))
        .collect()
}

/// A setting without a sign. It is read as one with a sign, as upstream does, so that a negative one is a large one.
///
/// # Errors
/// INVALID_ARG in upstream's words.
pub(crate) fn parse_unsigned(name: &str, text: &str) -> Result<u32, Error> {
    leading_integer(text)
        .map(i32::cast_unsigned)
        .map_err(|why| why.refuse(name, text, "0, 4294967295"))
}

/// `trace_count`; `gap` stands before the value in one of its refusals.
///
/// # Errors
/// INVALID_ARG in upstream's words.
pub(crate) fn parse_count(text: &str, gap: &str) -> Result<i32, Error> {
    let name = "trace_count";
    let count = leading_integer(text).map_err(|why| why.refuse(name, text, "-1, 2147483647"))?;
    if count < -1 {
        return Err(Error::invalid(format!(
            "Unable to parse '{name}'. Expecting value >= -1, got:{gap}{text}"
        )));
    }
    Ok(count)
}

/// Why a text is no number.
#[derive(Debug, PartialEq, Eq)]
enum NoNumber {
    Malformed,
    OutOfRange,
}

impl NoNumber {
    fn refuse(self, name: &str, text: &str, range: &str) -> Error {
        let range = match self {
            NoNumber::Malformed => String::new(),
            NoNumber::OutOfRange => format!(", value is out of range [ {range} ]"),
        };
        Error::invalid(format!("Unable to parse '{name}'{range}, got: {text}"))
    }
}

/// What C++'s `stoi` reads: blanks before and anything after the number are ignored.
fn leading_integer(text: &str) -> Result<i32, NoNumber> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\u{b}', '\u{c}']);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = digits
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    if end == 0 {
        return Err(NoNumber::Malformed);
    }
    let number = text.get(..text.len() - digits.len() + end).unwrap_or("");
    number.parse().map_err(|_| NoNumber::OutOfRange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_stoi_reads_them() {
        for (text, expected) in [
            ("1", Ok(1)),
            (" +7x", Ok(7)),
            ("-3", Ok(-3)),
            ("2147483647", Ok(i32::MAX)),
            ("-2147483648", Ok(i32::MIN)),
            ("2147483648", Err(NoNumber::OutOfRange)),
            ("-99999999999999999999", Err(NoNumber::OutOfRange)),
            ("", Err(NoNumber::Malformed)),
            ("x1", Err(NoNumber::Malformed)),
            ("+-1", Err(NoNumber::Malformed)),
        ] {
            assert_eq!(leading_integer(text), expected, "{text:?}");
        }
        assert_eq!(parse_unsigned("trace_rate", "-1"), Ok(u32::MAX));
    }

    #[test]
    fn refusals() {
        let unsigned = |text| parse_unsigned("trace_rate", text).unwrap_err().message;
        assert_eq!(unsigned("no"), "Unable to parse 'trace_rate', got: no");
        assert_eq!(
            unsigned("9999999999"),
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 9999999999"
        );
        let count = |text| parse_count(text, "").unwrap_err().message;
        assert_eq!(count("?"), "Unable to parse 'trace_count', got: ?");
        assert_eq!(
            count("9999999999"),
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 9999999999"
        );
        assert_eq!(
            count("-2"),
            "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"
        );
    }

    #[test]
    fn levels() {
        let levels = |timestamps, tensors| {
            Ok(Change::Set(Levels {
                timestamps,
                tensors,
            }))
        };
        let refusal = Err("Expect only one trace level 'OFF' is specified".to_owned());
        for (names, expected) in [
            (&["OFF"][..], levels(false, false)),
            (&["TIMESTAMPS"], levels(true, false)),
            (&["TENSORS", "TIMESTAMPS", "MAX"], levels(true, true)),
            (&["timestamps"], Ok(Change::Keep)),
            (&[], Ok(Change::Keep)),
            (&["TENSORS", "OFF"], refusal),
        ] {
            let parsed = parse_levels(names).map_err(|error| error.message.into_owned());
            assert_eq!(parsed, expected, "{names:?}");
            if let Ok(Change::Set(levels)) = parsed {
                assert_eq!(parse_levels(&level_names(levels)), Ok(Change::Set(levels)));
            }
        }
    }
}
