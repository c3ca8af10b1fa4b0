//! The trace extension: what clients write, as changes of the settings, and what they are shown.

use conch_engine::{Error, truncated};

use crate::shard::Shard;
use crate::strtol::{self, ParseNumberError};
use crate::trace::{FieldChange, TraceLevels};

/// `trace_mode` where traces go into a file, and where they go to a collector of spans.
pub(crate) const FILE_MODE: &str = "triton";
pub(crate) const SPAN_MODE: &str = "opentelemetry";

/// Refuses settings of a model that is not there; an empty name stands for the server's own
/// settings.
///
/// # Errors
/// INVALID_ARG in upstream's words, which differ from those of all other calls about a model.
pub(crate) fn check_traced_model(shard: &Shard, model: &str) -> Result<(), Error> {
    if !model.is_empty() && shard.find(model, None).is_err() {
        return Err(Error::invalid(format!(
            "Request for unknown model : {}",
            truncated(model)
        )));
    }
    Ok(())
}

/// The refusal to write traces elsewhere.
pub(crate) fn trace_file_refusal() -> Error {
    Error::unsupported("trace file location can not be updated through network protocol")
}

/// Levels by name. Names that mean nothing are ignored, as upstream; with only such nothing
/// changes.
///
/// # Errors
/// INVALID_ARG for `OFF` beside others.
pub(crate) fn parse_levels(names: &[&str]) -> Result<FieldChange<TraceLevels>, Error> {
    let mut levels = TraceLevels::default();
    let mut change = FieldChange::Keep;
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
        change = FieldChange::Set(levels);
    }
    Ok(change)
}

/// The names of levels, as they are shown.
pub(crate) fn level_names(levels: TraceLevels) -> Vec<&'static str> {
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

/// A setting without a sign. It is read as one with a sign, as upstream does, so that a negative
/// one is a large one.
///
/// # Errors
/// INVALID_ARG in upstream's words.
pub(crate) fn parse_unsigned(name: &str, text: &str) -> Result<u32, Error> {
    strtol::parse(text)
        .map(i32::cast_unsigned)
        .map_err(|why| refusal(why, name, text, "0, 4294967295"))
}

/// `trace_count`; `gap` stands before the value in one of its refusals.
///
/// # Errors
/// INVALID_ARG in upstream's words.
pub(crate) fn parse_count(text: &str, gap: &str) -> Result<i32, Error> {
    let name = "trace_count";
    let count: i32 =
        strtol::parse(text).map_err(|why| refusal(why, name, text, "-1, 2147483647"))?;
    if count < -1 {
        return Err(Error::invalid(format!(
            "Unable to parse '{name}'. Expecting value >= -1, got:{gap}{text}",
            text = truncated(&text)
        )));
    }
    Ok(count)
}

fn refusal(why: ParseNumberError, name: &str, text: &str, range: &str) -> Error {
    let range = match why {
        ParseNumberError::Missing => String::new(),
        ParseNumberError::OutOfRange => format!(", value is out of range [ {range} ]"),
    };
    Error::invalid(format!(
        "Unable to parse '{name}'{range}, got: {text}",
        text = truncated(&text)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_numbers_without_a_sign_are_large() {
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
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: \
             9999999999"
        );
        assert_eq!(
            count("-2"),
            "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"
        );
    }

    #[test]
    fn levels() {
        let levels = |timestamps, tensors| {
            Ok(FieldChange::Set(TraceLevels {
                timestamps,
                tensors,
            }))
        };
        let refusal = Err("Expect only one trace level 'OFF' is specified".to_owned());
        for (names, expected) in [
            (&["OFF"][..], levels(false, false)),
            (&["TIMESTAMPS"], levels(true, false)),
            (&["TENSORS", "TIMESTAMPS", "MAX"], levels(true, true)),
            (&["timestamps"], Ok(FieldChange::Keep)),
            (&[], Ok(FieldChange::Keep)),
            (&["TENSORS", "OFF"], refusal),
        ] {
            let parsed = parse_levels(names).map_err(|error| error.message.into_owned());
            assert_eq!(parsed, expected, "{names:?}");
            if let Ok(FieldChange::Set(levels)) = parsed {
                assert_eq!(
                    parse_levels(&level_names(levels)),
                    Ok(FieldChange::Set(levels))
                );
            }
        }
    }
}
