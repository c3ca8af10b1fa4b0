//! The text of a line, in Triton's two formats. Pure: the caller gives the time and the process id.

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::level::LogLevel;

/// How a line begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LogFormat {
    /// `I0102 03:04:05.000006 pid file:line] "message"`.
    #[default]
    Default = 0,
    /// `2026-01-02T03:04:05Z I pid file:line] "message"`.
    Iso8601 = 1,
}

impl LogFormat {
    pub const fn name(self) -> &'static str {
        match self {
            LogFormat::Default => "default",
            LogFormat::Iso8601 => "ISO8601",
        }
    }

    /// The format with this exact name.
    pub fn from_name(name: &str) -> Option<LogFormat> {
        [LogFormat::Default, LogFormat::Iso8601]
            .into_iter()
            .find(|format| format.name() == name)
    }
}

pub(crate) fn push_preamble(
    text: &mut String,
    format: LogFormat,
    level: LogLevel,
    now: SystemTime,
    process_id: u32,
    path: &str,
    line: u32,
) {
    let mark = match level {
        LogLevel::Info | LogLevel::Verbose(_) => 'I',
        LogLevel::Warning => 'W',
        LogLevel::Error => 'E',
    };
    let file = path.rsplit('/').next().unwrap_or(path);
    let UtcTime {
        year,
        month,
        day,
        hour,
        minute,
        second,
        micros,
    } = UtcTime::of(now);
    let written = match format {
        LogFormat::Default => write!(
            text,
            "{mark}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {process_id} \
             {file}:{line}] "
        ),
        LogFormat::Iso8601 => write!(
            text,
            "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {mark} {process_id} \
             {file}:{line}] "
        ),
    };
    written.expect("writing to a String cannot fail");
}

/// The longest message that is written whole. Clients size what some of them repeat.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// As a JSON string, so that whatever a client put into a name stays on one line; other control
/// characters than JSON's too. A message that is longer than [`MESSAGE_BYTES_MAX`], or for which
/// there is no memory, is cut.
pub(crate) fn push_message(text: &mut String, message: fmt::Arguments<'_>, escapes: bool) {
    let quote = if escapes { "\"" } else { "" };
    text.push_str(quote);
    let mut body = LineBody {
        bytes_max: text.len() + MESSAGE_BYTES_MAX,
        text: &mut *text,
        escapes,
    };
    if body.write_fmt(message).is_err() {
        text.push_str("...");
    }
    text.push_str(quote);
}

/// The message of a line while it is written; refuses what does not fit.
struct LineBody<'a> {
    text: &'a mut String,
    bytes_max: usize,
    escapes: bool,
}

impl LineBody<'_> {
    fn push(&mut self, piece: &str) -> fmt::Result {
        if self.text.len() + piece.len() > self.bytes_max
            || self.text.try_reserve(piece.len() + TAIL_BYTES_MAX).is_err()
        {
            return Err(fmt::Error);
        }
        self.text.push_str(piece);
        Ok(())
    }

    fn push_escaped(&mut self, control: char) -> fmt::Result {
        let short = match control {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            other => return self.push(&format!("\\u{:04X}", u32::from(other))),
        };
        self.push(short)
    }
}

/// What ends a line: `..."` and the line break.
const TAIL_BYTES_MAX: usize = 8;

impl fmt::Write for LineBody<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        // DEL and the C1 controls (0x9b starts a terminal sequence) are as harmful as ESC.
        let escapes = self.escapes;
        let is_special = |character: char| {
            escapes && (matches!(character, '"' | '\\') || character.is_control())
        };
        let mut rest = piece;
        while !rest.is_empty() {
            let plain = rest.find(is_special).unwrap_or(rest.len());
            // In parts, so that a long piece is written as far as it fits.
            let end = rest.floor_char_boundary(plain.min(PART_BYTES_MAX));
            let (part, tail) = rest.split_at(end);
            self.push(part)?;
            rest = tail;
            if end == plain
                && let Some(special) = rest.chars().next()
            {
                self.push_escaped(special)?;
                rest = rest.get(special.len_utf8()..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

/// How much of a piece is written at a time.
const PART_BYTES_MAX: usize = 4096;

/// A moment in UTC, by the proleptic Gregorian calendar.
struct UtcTime {
    year: i64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
    micros: u32,
}

impl UtcTime {
    fn of(time: SystemTime) -> UtcTime {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let seconds = since.as_secs();
        let second_of_day = seconds % 86_400;
        // Days are counted from 1 March of year 0, so that the leap day ends a year, in eras of 400
        // years.
        let days = seconds / 86_400 + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 {
            shifted_month + 3
        } else {
            shifted_month - 9
        };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        UtcTime {
            year: i64::try_from(year).unwrap_or(i64::MAX),
            month,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            micros: since.subsec_micros(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(format: LogFormat, level: LogLevel, since_epoch: Duration, message: &str) -> String {
        let mut text = String::new();
        push_preamble(
            &mut text,
            format,
            level,
            UNIX_EPOCH + since_epoch,
            42,
            "src/engine/lifecycle.rs",
            7,
        );
        push_message(&mut text, format_args!("{message}"), true);
        text
    }

    #[test]
    fn lines_look_like_upstreams() {
        let table = [
            (
                LogFormat::Default,
                LogLevel::Info,
                0,
                0,
                r#"I0101 00:00:00.000000 42 lifecycle.rs:7] "m""#,
            ),
            (
                LogFormat::Default,
                LogLevel::Warning,
                951_782_399,
                5,
                r#"W0228 23:59:59.000005 42 lifecycle.rs:7] "m""#,
            ),
            (
                LogFormat::Default,
                LogLevel::Error,
                951_782_400,
                999_999,
                r#"E0229 00:00:00.999999 42 lifecycle.rs:7] "m""#,
            ),
            (
                LogFormat::Default,
                LogLevel::Verbose(1),
                1_709_251_199,
                0,
                r#"I0229 23:59:59.000000 42 lifecycle.rs:7] "m""#,
            ),
            (
                LogFormat::Iso8601,
                LogLevel::Info,
                1_709_251_200,
                0,
                r#"2024-03-01T00:00:00Z I 42 lifecycle.rs:7] "m""#,
            ),
            (
                LogFormat::Iso8601,
                LogLevel::Error,
                4_107_542_399,
                0,
                r#"2100-02-28T23:59:59Z E 42 lifecycle.rs:7] "m""#,
            ),
            (
                LogFormat::Iso8601,
                LogLevel::Error,
                4_107_542_400,
                0,
                r#"2100-03-01T00:00:00Z E 42 lifecycle.rs:7] "m""#,
            ),
            (
                LogFormat::Iso8601,
                LogLevel::Warning,
                1_735_689_599,
                0,
                r#"2024-12-31T23:59:59Z W 42 lifecycle.rs:7] "m""#,
            ),
        ];
        for (format, level, seconds, micros, expected) in table {
            assert_eq!(
                line(format, level, Duration::new(seconds, micros * 1_000), "m"),
                expected
            );
        }
    }

    #[test]
    fn hostile_messages_stay_on_one_line() {
        let table = [
            ("plain", r#""plain""#),
            ("a\r\nI0101 fake", r#""a\r\nI0101 fake""#),
            (
                "\u{1b}[31m\u{9b}\u{7f}\0",
                r#""\u001B[31m\u009B\u007F\u0000""#,
            ),
            ("\"\\\t", r#""\"\\\t""#),
            ("größe 模型", "\"größe 模型\""),
        ];
        for (message, expected) in table {
            let mut text = String::new();
            push_message(&mut text, format_args!("{message}"), true);
            assert_eq!(text, expected);
            assert_eq!(text.lines().count(), 1);
        }
        let mut text = String::new();
        push_message(&mut text, format_args!("as \"it\" is"), false);
        assert_eq!(text, "as \"it\" is");
    }

    #[test]
    fn long_messages_are_cut() {
        for (message, bytes) in [
            ("x".repeat(MESSAGE_BYTES_MAX), MESSAGE_BYTES_MAX + 2),
            ("x".repeat(MESSAGE_BYTES_MAX + 1), MESSAGE_BYTES_MAX + 5),
            ("é".repeat(MESSAGE_BYTES_MAX), MESSAGE_BYTES_MAX + 5),
            ("\n".repeat(MESSAGE_BYTES_MAX), MESSAGE_BYTES_MAX + 5),
        ] {
            let mut text = String::new();
            push_message(&mut text, format_args!("{message}"), true);
            // A part is written whole or not at all.
            assert!(text.len() <= bytes && text.len() + PART_BYTES_MAX > bytes);
            assert_eq!(text.ends_with("...\""), bytes == MESSAGE_BYTES_MAX + 5);
        }
    }
}
