//! Flags of the log.

use conch_log::LogFormat;

use super::row::served;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Text};
use crate::flag::Setter::{self, Shown, Switch};
use crate::values::{out_of_bound, parse_bool, parse_int};

pub const FLAGS: &[Flag] = &[
    served(
        "log-verbose",
        Text("<level>"),
        "Verbosity: 0 (or false) is off, 1 (or true) logs each request. Default: {}.",
        Shown {
            set: |to, text| {
                to.log.verbose_level = parse_verbosity(text)?;
                Ok(())
            },
            show: |of| of.log.verbose_level.to_string(),
        },
    ),
    served(
        "log-info",
        Bool,
        "Log at level info. Default: {}.",
        Switch(|to| &mut to.log.shows_info),
    ),
    served(
        "log-warning",
        Bool,
        "Log warnings. Default: {}.",
        Switch(|to| &mut to.log.shows_warning),
    ),
    served(
        "log-error",
        Bool,
        "Log errors. Default: {}.",
        Switch(|to| &mut to.log.shows_error),
    ),
    served(
        "log-format",
        Text("default|ISO8601"),
        "Form of a log line's head. Default: {}.",
        Shown {
            set: |to, text| {
                to.log.format = match text {
                    "default" => LogFormat::Default,
                    "ISO8601" => LogFormat::Iso8601,
                    _ => return Err(String::from("invalid argument for --log-format")),
                };
                Ok(())
            },
            show: |of| match of.log.format {
                LogFormat::Default => String::from("default"),
                LogFormat::Iso8601 => String::from("ISO8601"),
            },
        },
    ),
    served(
        "log-file",
        Text("<path>"),
        "Append all log lines to this file instead of the console.",
        Setter::Text(|to| &mut to.log.file),
    ),
];

/// A number, or a word for 0 or 1.
fn parse_verbosity(text: &str) -> Result<u32, String> {
    match parse_bool(text) {
        Ok(is_on) if text.parse::<i64>().is_err() => Ok(u32::from(is_on)),
        _ => u32::try_from(parse_int(text)?.max(0)).map_err(|_| out_of_bound(text)),
    }
}
