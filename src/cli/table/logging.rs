//! Flags of the log.

use std::num::NonZeroU32;
use std::time::Duration;

use conch_log::LogFormat;

use super::row::served;
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{self, Other, Shown, Switch};
use crate::values::{out_of_bound, parse_bool, parse_int, parse_unsigned};

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
        Text("default|ISO8601|json"),
        "Form of log lines; json: one object per line. Default: {}.",
        Shown {
            set: |to, text| {
                let format = LogFormat::from_name(text);
                to.log.format = format.ok_or("invalid argument for --log-format")?;
                Ok(())
            },
            show: |of| of.log.format.name().to_owned(),
        },
    ),
    served(
        "log-file",
        Text("<path>"),
        "Append all log lines to this file instead of the console.",
        Setter::Text(|to| &mut to.log.file),
    ),
    served(
        "access-log-rate",
        Int,
        "Log one in so many HTTP requests and gRPC calls. Default: none is logged.",
        Other(|to, text| {
            let rate = u32::try_from(parse_unsigned(text)?);
            to.frontend.access_log_rate = NonZeroU32::new(rate.map_err(|_| out_of_bound(text))?);
            Ok(())
        }),
    ),
    served(
        "slow-request-us",
        Int,
        "Log each inference that takes so many microseconds or longer, with the time that its \
         stages took. Default: none is logged.",
        Other(|to, text| {
            let limit_us = parse_unsigned(text)?;
            to.frontend.slow_request = (limit_us > 0).then(|| Duration::from_micros(limit_us));
            Ok(())
        }),
    ),
];

/// A number, or a word for 0 or 1.
fn parse_verbosity(text: &str) -> Result<u32, String> {
    match parse_bool(text) {
        Ok(is_on) if text.parse::<i64>().is_err() => Ok(u32::from(is_on)),
        _ => u32::try_from(parse_int(text)?.max(0)).map_err(|_| out_of_bound(text)),
    }
}
