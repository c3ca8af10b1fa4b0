//! The text of a line: in Triton's two formats, or as a JSON object. Pure: the caller gives the
//! time and the process id.

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::level::LogLevel;

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LogFormat {
    /// `I0102 03:04:05.000006 pid file:line] "message"`.
    #[default]
    Default = 0,
    /// `2026-01-02T03:04:05Z I pid file:line] "message"`.
    Iso8601 = 1,
    /// `{"time":"2026-01-02T03:04:05.000006Z","level":"INFO",...}`: one object per line, whatever
    /// the line tells.
    Json = 2,
}

impl LogFormat {
    pub const ALL: [LogFormat; 3] = [LogFormat::Default, LogFormat::Iso8601, LogFormat::Json];

    pub const fn name(self) -> &'static str {
        match self {
            LogFormat::Default => "default",
            LogFormat::Iso8601 => "ISO8601",
            LogFormat::Json => "json",
        }
    }

    /// The format with this exact name.
    pub fn from_name(name: &str) -> Option<LogFormat> {
        LogFormat::ALL
            .into_iter()
            .find(|format| format.name() == name)
    }
}

/// What a line is about, where that is known: members of the object in JSON. The text formats
/// leave them out.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogFields<'a> {
    /// Empty: none.
    pub request_id: &'a str,
    /// Empty: none.
    pub model: &'a str,
}

/// Where and when a line was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogMetadata<'a> {
    pub(crate) level: LogLevel,
    pub(crate) now: SystemTime,
    pub(crate) process_id: u32,
    /// Shown without its folders.
    pub(crate) path: &'a str,
    pub(crate) line: u32,
}

/// How a text format shows the message of a line. JSON shows all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageStyle {
    /// In quotes and escaped.
    Quoted,
    /// As it is.
    Raw,
    /// As it is, below the head.
    Table,
}

impl MessageStyle {
    /// What is longer is cut. The table of the models of a large repository is shown whole.
    const fn bytes_max(self) -> usize {
        match self {
            MessageStyle::Quoted | MessageStyle::Raw => MESSAGE_BYTES_MAX,
            MessageStyle::Table => TABLE_BYTES_MAX,
        }
    }
}

/// A line with its line break.
pub(crate) fn format_line(
    format: LogFormat,
    metadata: LogMetadata<'_>,
    fields: LogFields<'_>,
    style: MessageStyle,
    message: fmt::Arguments<'_>,
) -> String {
    let mut text = String::with_capacity(256);
    match format {
        LogFormat::Json => {
            push_json_head(&mut text, metadata, fields);
            push_text(&mut text, message, true, style.bytes_max());
            text.push('}');
        }
        LogFormat::Default | LogFormat::Iso8601 => {
            push_preamble(&mut text, format, metadata);
            if style == MessageStyle::Table {
                text.push('\n');
            }
            let escapes = style == MessageStyle::Quoted;
            push_text(&mut text, message, escapes, style.bytes_max());
        }
    }
    text.push('\n');
    text
}

/// An object up to its message.
fn push_json_head(text: &mut String, metadata: LogMetadata<'_>, fields: LogFields<'_>) {
    let level = match metadata.level {
        LogLevel::Info => "INFO",
        LogLevel::Warning => "WARNING",
        LogLevel::Error => "ERROR",
        LogLevel::Verbose(_) => "VERBOSE",
    };
    let UtcTime {
        year,
        month,
        day,
        hour,
        minute,
        second,
        micros,
    } = UtcTime::of(metadata.now);
    let (process_id, line) = (metadata.process_id, metadata.line);
    let written = write!(
        text,
        "{{\"time\":\"{year:04}-{month:02}-{day:02}T\
         {hour:02}:{minute:02}:{second:02}.{micros:06}Z\",\
         \"level\":\"{level}\",\"pid\":{process_id},\"file\":"
    );
    written.expect("writing to a String cannot fail");
    push_member(text, file_name(metadata.path));
    write!(text, ",\"line\":{line}").expect("writing to a String cannot fail");
    for (name, value) in [
        (",\"request_id\":", fields.request_id),
        (",\"model\":", fields.model),
    ] {
        if !value.is_empty() {
            text.push_str(name);
            push_member(text, value);
        }
    }
    text.push_str(",\"message\":");
}

fn push_member(text: &mut String, value: &str) {
    push_text(text, format_args!("{value}"), true, MEMBER_BYTES_MAX);
}

/// The longest member beside the message. Clients choose the ids of requests.
const MEMBER_BYTES_MAX: usize = 1 << 10;

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn push_preamble(text: &mut String, format: LogFormat, metadata: LogMetadata<'_>) {
    let LogMetadata {
        level,
        now,
        process_id,
        path,
        line,
    } = metadata;
    let mark = match level {
        LogLevel::Info | LogLevel::Verbose(_) => 'I',
        LogLevel::Warning => 'W',
        LogLevel::Error => 'E',
    };
    let file = file_name(path);
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
        LogFormat::Iso8601 => write!(
            text,
            "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {mark} {process_id} \
             {file}:{line}] "
        ),
        LogFormat::Default | LogFormat::Json => write!(
            text,
            "{mark}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {process_id} \
             {file}:{line}] "
        ),
    };
    written.expect("writing to a String cannot fail");
}

/// The longest message that is written whole. Clients size what some of them repeat.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// The same of a table. Half of what may wait for the writer.
const TABLE_BYTES_MAX: usize = 4 << 20;

/// As a JSON string, so that whatever a client put into a name stays on one line; other control
/// characters than JSON's too. A message that is longer than `bytes_max`, or for which there is no
/// memory, is cut.
fn push_text(text: &mut String, message: fmt::Arguments<'_>, escapes: bool, bytes_max: usize) {
    let quote = if escapes { "\"" } else { "" };
    text.push_str(quote);
    let mut body = LineBody {
        bytes_max: text.len() + bytes_max,
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

/// What ends a line: `..."}` and the line break.
const TAIL_BYTES_MAX: usize = 8;

impl fmt::Write for LineBody<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        // DEL and the C1 controls (0x9b starts a terminal sequence) are as harmful as ESC. Some
        // readers end a line at Unicode's separators.
        let escapes = self.escapes;
        let is_special = |character: char| {
            escapes
                && (matches!(character, '"' | '\\' | '\u{2028}' | '\u{2029}')
                    || character.is_control())
        };
        let mut rest = piece;
        while !rest.is_empty() {
            // In parts, so that a long piece is written as far as it fits, and looked at once.
            let (window, _) = rest.split_at(rest.floor_char_boundary(PART_BYTES_MAX));
            let plain = window.find(is_special).unwrap_or(window.len());
            let (part, tail) = rest.split_at(plain);
            self.push(part)?;
            rest = tail;
            if plain < window.len()
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
const PART_BYTES_MAX: usize = 256;

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
        let metadata = metadata(level, since_epoch, "src/engine/lifecycle.rs");
        let message = format_args!("{message}");
        let fields = LogFields::default();
        let mut text = format_line(format, metadata, fields, MessageStyle::Quoted, message);
        assert_eq!(text.pop(), Some('\n'));
        text
    }

    fn metadata(level: LogLevel, since_epoch: Duration, path: &str) -> LogMetadata<'_> {
        LogMetadata {
            level,
            now: UNIX_EPOCH + since_epoch,
            process_id: 42,
            path,
            line: 7,
        }
    }

    /// A message alone.
    fn message(message: &str, escapes: bool) -> String {
        let mut text = String::new();
        push_text(
            &mut text,
            format_args!("{message}"),
            escapes,
            MESSAGE_BYTES_MAX,
        );
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
    fn json_lines_are_objects() {
        let fields = |request_id, model| LogFields { request_id, model };
        let table = [
            (
                (LogLevel::Info, "INFO"),
                Duration::new(1_709_251_200, 6_000),
                fields("", ""),
                "m",
                "2024-03-01T00:00:00.000006Z",
                r#""message":"m""#,
            ),
            (
                (LogLevel::Warning, "WARNING"),
                Duration::new(0, 999_999_999),
                fields("\"},\n{", ""),
                "+---+\n|\u{2028}|\n+---+",
                "1970-01-01T00:00:00.999999Z",
                r#""request_id":"\"},\n{","message":"+---+\n|\u2028|\n+---+""#,
            ),
            (
                (LogLevel::Error, "ERROR"),
                Duration::ZERO,
                fields("1", "größe\\"),
                "\0",
                "1970-01-01T00:00:00.000000Z",
                r#""request_id":"1","model":"größe\\","message":"\u0000""#,
            ),
            (
                (LogLevel::Verbose(2), "VERBOSE"),
                Duration::ZERO,
                fields("", "m"),
                "",
                "1970-01-01T00:00:00.000000Z",
                r#""model":"m","message":"""#,
            ),
        ];
        for ((level, name), since_epoch, fields, message, time, rest) in table {
            let expected = format!(
                "{{\"time\":\"{time}\",\"level\":\"{name}\",\"pid\":42,\"file\":\"a.rs\",\
                 \"line\":7,{rest}}}"
            );
            // The styles are those of the text formats.
            for style in [MessageStyle::Quoted, MessageStyle::Raw, MessageStyle::Table] {
                let metadata = metadata(level, since_epoch, "src/a.rs");
                let message = format_args!("{message}");
                let text = format_line(LogFormat::Json, metadata, fields, style, message);
                assert_eq!(text, format!("{expected}\n"));
            }
        }
    }

    #[test]
    fn long_members_of_json_are_cut() {
        let long = "\n".repeat(MESSAGE_BYTES_MAX);
        let fields = LogFields {
            request_id: &long,
            model: "m",
        };
        let metadata = metadata(LogLevel::Info, Duration::ZERO, "a.rs");
        let style = MessageStyle::Quoted;
        let text = format_line(
            LogFormat::Json,
            metadata,
            fields,
            style,
            format_args!("{long}"),
        );
        assert!(text.len() < MESSAGE_BYTES_MAX + 2 * MEMBER_BYTES_MAX);
        for length in [MEMBER_BYTES_MAX, MEMBER_BYTES_MAX + 1, 5000] {
            let mut text = String::new();
            push_member(&mut text, &"x".repeat(length));
            let end = if length == MEMBER_BYTES_MAX {
                ""
            } else {
                "..."
            };
            assert!(text.ends_with(&format!("x{end}\"")), "{length}: {text}");
            assert!(text.len() > MEMBER_BYTES_MAX - PART_BYTES_MAX, "{length}");
        }
        assert_eq!(text.lines().count(), 1);
        // No escape is torn apart.
        assert!(text.contains(r#"\n...","model":"m","message":"\n"#));
        assert!(text.ends_with("\\n...\"}\n"));
    }

    #[test]
    fn tables_are_cut_later_than_messages() {
        let rows = "| model |\n".repeat(MESSAGE_BYTES_MAX / 4);
        for format in LogFormat::ALL {
            for (length, is_whole) in [
                (2 * MESSAGE_BYTES_MAX, true),
                (TABLE_BYTES_MAX + PART_BYTES_MAX, false),
            ] {
                let table = "x".repeat(length);
                let metadata = metadata(LogLevel::Info, Duration::ZERO, "a.rs");
                let (fields, style) = (LogFields::default(), MessageStyle::Table);
                let text = format_line(format, metadata, fields, style, format_args!("{table}"));
                assert_eq!(!text.contains("..."), is_whole, "{format:?} {length}");
                assert!(text.len() < TABLE_BYTES_MAX + PART_BYTES_MAX);
            }
        }
        let metadata = metadata(LogLevel::Info, Duration::ZERO, "a.rs");
        let (fields, style) = (LogFields::default(), MessageStyle::Table);
        let message = format_args!("{rows}");
        let text = format_line(LogFormat::Default, metadata, fields, style, message);
        assert!(text.ends_with(&format!("a.rs:7] \n{rows}\n")));
    }

    #[test]
    fn formats_have_names() {
        for format in LogFormat::ALL {
            assert_eq!(LogFormat::from_name(format.name()), Some(format));
        }
        for name in ["", "JSON", "iso8601", "json "] {
            assert_eq!(LogFormat::from_name(name), None, "{name}");
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
            ("\u{85}\u{2028}\u{2029}", r#""\u0085\u2028\u2029""#),
        ];
        for (given, expected) in table {
            let text = message(given, true);
            assert_eq!(text, expected);
            assert_eq!(text.lines().count(), 1);
        }
        assert_eq!(message("as \"it\" is", false), "as \"it\" is");
    }

    #[test]
    fn long_messages_are_cut() {
        for (given, bytes) in [
            ("x".repeat(MESSAGE_BYTES_MAX), MESSAGE_BYTES_MAX + 2),
            ("x".repeat(MESSAGE_BYTES_MAX + 1), MESSAGE_BYTES_MAX + 5),
            ("é".repeat(MESSAGE_BYTES_MAX), MESSAGE_BYTES_MAX + 5),
            ("\n".repeat(MESSAGE_BYTES_MAX), MESSAGE_BYTES_MAX + 5),
        ] {
            let text = message(&given, true);
            // A part is written whole or not at all.
            assert!(text.len() <= bytes && text.len() + PART_BYTES_MAX > bytes);
            assert_eq!(text.ends_with("...\""), bytes == MESSAGE_BYTES_MAX + 5);
        }
    }
}
