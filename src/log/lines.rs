//! Lines of the log, on their way to its writer.

use std::fmt;
use std::panic::Location;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use crate::format::{LogFields, LogFormat, LogMetadata, MessageStyle, format_line};
use crate::level::LogLevel;
use crate::sink::{LogSink, StandardStream};
use crate::switches::{format, is_shown};

static ESCAPES: OnceLock<bool> = OnceLock::new();
static SINK: OnceLock<LogSink> = OnceLock::new();

/// Writes one line; escapes and quotes the message unless TRITON_SERVER_ESCAPE_LOG_MESSAGES is 0.
/// `path` is cut to the file's name.
pub fn write(level: LogLevel, path: &str, line: u32, message: fmt::Arguments<'_>) {
    write_with_fields(level, path, line, LogFields::default(), message);
}

/// [`write`] of a line about a request or a model.
pub fn write_with_fields(
    level: LogLevel,
    path: &str,
    line: u32,
    fields: LogFields<'_>,
    message: fmt::Arguments<'_>,
) {
    if is_shown(level) {
        let style = match escapes() {
            true => MessageStyle::Quoted,
            false => MessageStyle::Raw,
        };
        let metadata = metadata(level, path, line);
        sink().push(
            level,
            format_line(format(), metadata, fields, style, message),
        );
    }
}

/// Writes a table as it is, below the usual beginning of a line; in JSON it is the message of one
/// line.
pub fn write_table(path: &str, line: u32, table: &str) {
    let level = LogLevel::Info;
    if is_shown(level) {
        let (metadata, fields) = (metadata(level, path, line), LogFields::default());
        let style = MessageStyle::Table;
        let text = format_line(format(), metadata, fields, style, format_args!("{table}"));
        sink().push(level, text);
    }
}

/// Waits until all lines so far are written, `timeout` at most; whether they are. For the end of
/// the process.
pub fn flush(timeout: Duration) -> bool {
    SINK.get().is_none_or(|sink| sink.flush(timeout))
}

/// How long the end of the process waits for its last lines: ample for a reader that is slow, not
/// for ever for one that stopped.
pub const EXIT_FLUSH: Duration = Duration::from_secs(1);

/// Lines that are not written yet. Loads two words: safe in a signal handler.
pub fn pending() -> usize {
    SINK.get().map_or(0, LogSink::pending)
}

/// Lines dropped since the process began, because the queue was full or the write failed.
pub fn dropped() -> u64 {
    SINK.get().map_or(0, LogSink::dropped)
}

/// Prints `text` and a line break on the console as they are, behind the lines that are queued,
/// wherever the log goes. Where lines are JSON, so is this one.
#[track_caller]
pub fn print(level: LogLevel, text: &str) {
    let line = match format() {
        LogFormat::Json => {
            let place = Location::caller();
            let metadata = metadata(level, place.file(), place.line());
            let (fields, style) = (LogFields::default(), MessageStyle::Quoted);
            format_line(
                LogFormat::Json,
                metadata,
                fields,
                style,
                format_args!("{text}"),
            )
        }
        LogFormat::Default | LogFormat::Iso8601 => format!("{text}\n"),
    };
    sink().print(StandardStream::of(level), line);
}

pub(crate) fn sink() -> &'static LogSink {
    SINK.get_or_init(LogSink::start)
}

fn escapes() -> bool {
    *ESCAPES.get_or_init(|| {
        std::env::var_os("TRITON_SERVER_ESCAPE_LOG_MESSAGES").is_none_or(|value| value != "0")
    })
}

fn metadata(level: LogLevel, path: &str, line: u32) -> LogMetadata<'_> {
    LogMetadata {
        level,
        now: SystemTime::now(),
        process_id: std::process::id(),
        path,
        line,
    }
}
