//! Lines of the log, on their way to its writer.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use crate::format::{push_message, push_preamble};
use crate::level::LogLevel;
use crate::sink::{LogSink, StandardStream};
use crate::switches::{format, is_shown};

static ESCAPES: OnceLock<bool> = OnceLock::new();
static SINK: OnceLock<LogSink> = OnceLock::new();

/// Writes one line; escapes and quotes the message unless TRITON_SERVER_ESCAPE_LOG_MESSAGES is 0.
/// `path` is cut to the file's name.
pub fn write(level: LogLevel, path: &str, line: u32, message: fmt::Arguments<'_>) {
    if is_shown(level) {
        let mut text = preamble(level, path, line);
        push_message(&mut text, message, escapes());
        text.push('\n');
        sink().push(level, text);
    }
}

/// Writes a table as it is, below the usual beginning of a line.
pub fn write_table(path: &str, line: u32, table: &str) {
    if is_shown(LogLevel::Info) {
        let mut text = preamble(LogLevel::Info, path, line);
        text.push('\n');
        text.push_str(table);
        text.push('\n');
        sink().push(LogLevel::Info, text);
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
/// wherever the log goes.
pub fn print(stream: StandardStream, text: &str) {
    sink().print(stream, format!("{text}\n"));
}

pub(crate) fn sink() -> &'static LogSink {
    SINK.get_or_init(LogSink::start)
}

fn escapes() -> bool {
    *ESCAPES.get_or_init(|| {
        std::env::var_os("TRITON_SERVER_ESCAPE_LOG_MESSAGES").is_none_or(|value| value != "0")
    })
}

fn preamble(level: LogLevel, path: &str, line: u32) -> String {
    let mut text = String::with_capacity(256);
    push_preamble(
        &mut text,
        format(),
        level,
        SystemTime::now(),
        std::process::id(),
        path,
        line,
    );
    text
}
