//! The process-wide log, in Triton's two line formats.
//!
//! One per process because the C API's `TRITONSERVER_LogMessage` has no handle. Callers never wait
//! for whoever reads the log: a line goes into a bounded queue, which a thread of the log's own
//! writes out; see [`flush`] for the end of the process. Switches are atomics, so a message that is
//! off costs one load. Use the macros [`info!`], [`warning!`], [`error!`] and [`verbose!`]. Any
//! thread; nothing here but [`flush`] and the opening of a file blocks.
#![forbid(unsafe_code)]

mod bridge;
mod format;
mod limiter;
mod sink;

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

pub use format::LogFormat;
use format::{push_message, push_preamble};
pub use limiter::LogLimiter;
pub use sink::StandardStream;
use sink::{LogFile, LogSink};

/// The severity of a line. Verbose lines are marked `I` like information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Info,
    Warning,
    Error,
    /// Shown when the verbose level is at least this; 1 is the tersest.
    Verbose(u32),
}

/// The logger's switches, as options and the logging extension show them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Empty: the console.
    pub file: String,
    pub shows_info: bool,
    pub shows_warning: bool,
    pub shows_error: bool,
    /// 0: none.
    pub verbose_level: u32,
    pub format: LogFormat,
}

static SHOWS_INFO: AtomicBool = AtomicBool::new(true);
static SHOWS_WARNING: AtomicBool = AtomicBool::new(true);
static SHOWS_ERROR: AtomicBool = AtomicBool::new(true);
static VERBOSE_LEVEL: AtomicU32 = AtomicU32::new(0);
static FORMAT: AtomicU8 = AtomicU8::new(LogFormat::Default as u8);
static ESCAPES: OnceLock<bool> = OnceLock::new();
static SINK: OnceLock<LogSink> = OnceLock::new();

/// Why the log cannot go to a file.
#[derive(Debug)]
pub struct FileError {
    path: String,
    cause: io::Error,
}

impl fmt::Display for FileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileError { path, cause } = self;
        write!(out, "failed to open log file '{path}': {cause}")
    }
}

impl std::error::Error for FileError {}

/// Reads all switches.
pub fn settings() -> LogSettings {
    LogSettings {
        file: sink().path().unwrap_or_default(),
        shows_info: SHOWS_INFO.load(Ordering::Relaxed),
        shows_warning: SHOWS_WARNING.load(Ordering::Relaxed),
        shows_error: SHOWS_ERROR.load(Ordering::Relaxed),
        verbose_level: VERBOSE_LEVEL.load(Ordering::Relaxed),
        format: format(),
    }
}

/// Sets all switches as `settings` has them; the file last.
///
/// # Errors
/// As of [`set_file`]; the other switches are set then.
pub fn configure(settings: &LogSettings) -> Result<(), FileError> {
    show_info(settings.shows_info);
    show_warning(settings.shows_warning);
    show_error(settings.shows_error);
    set_verbose_level(settings.verbose_level);
    set_format(settings.format);
    match settings.file.as_str() {
        "" => Ok(()),
        path => set_file(path),
    }
}

pub fn show_info(shows: bool) {
    SHOWS_INFO.store(shows, Ordering::Relaxed);
}

pub fn show_warning(shows: bool) {
    SHOWS_WARNING.store(shows, Ordering::Relaxed);
}

pub fn show_error(shows: bool) {
    SHOWS_ERROR.store(shows, Ordering::Relaxed);
}

pub fn set_verbose_level(level: u32) {
    VERBOSE_LEVEL.store(level, Ordering::Relaxed);
    bridge::set_verbose_level(level);
}

pub fn set_format(format: LogFormat) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

/// Appends all further lines to the file at `path`; an empty path is the console again.
///
/// # Errors
/// If the file cannot be opened, or is a FIFO that nobody reads; lines go where they went before
/// then.
pub fn set_file(path: &str) -> Result<(), FileError> {
    let file = match path {
        "" => None,
        path => {
            let opened = LogFile::open(path);
            let file = opened.map_err(|cause| FileError {
                path: path.to_owned(),
                cause,
            });
            Some(file?)
        }
    };
    sink().set_file(file);
    Ok(())
}

/// Opens the log file anew by its path, so that it may have been renamed; nothing where the log
/// goes to the console.
///
/// # Errors
/// As [`set_file`].
pub fn reopen_file() -> Result<(), FileError> {
    match sink().path() {
        Some(path) => set_file(&path),
        None => Ok(()),
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

/// Has panics told by a line of the log. The standard library's way, a blocking write under a lock,
/// would stop every thread that panics while nobody reads stderr.
pub fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let cause = panic.payload_as_str().unwrap_or("Box<dyn Any>");
        let (path, line) = panic
            .location()
            .map_or(("", 0), |location| (location.file(), location.line()));
        let trace = std::backtrace::Backtrace::capture();
        match trace.status() {
            std::backtrace::BacktraceStatus::Captured => write(
                LogLevel::Error,
                path,
                line,
                format_args!("thread '{name}' panicked: {cause}\n{trace}"),
            ),
            _ => write(
                LogLevel::Error,
                path,
                line,
                format_args!("thread '{name}' panicked: {cause}"),
            ),
        }
    }));
}

/// Whether a message of this level would be shown.
pub fn is_shown(level: LogLevel) -> bool {
    match level {
        LogLevel::Info => SHOWS_INFO.load(Ordering::Relaxed),
        LogLevel::Warning => SHOWS_WARNING.load(Ordering::Relaxed),
        LogLevel::Error => SHOWS_ERROR.load(Ordering::Relaxed),
        LogLevel::Verbose(level) => level <= VERBOSE_LEVEL.load(Ordering::Relaxed),
    }
}

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

/// Logs an information.
#[macro_export]
macro_rules! info {
    ($($message:tt)+) => {
        $crate::write($crate::LogLevel::Info, file!(), line!(), format_args!($($message)+))
    };
}

/// Logs a warning.
#[macro_export]
macro_rules! warning {
    ($($message:tt)+) => {
        $crate::write($crate::LogLevel::Warning, file!(), line!(), format_args!($($message)+))
    };
}

/// Logs an error.
#[macro_export]
macro_rules! error {
    ($($message:tt)+) => {
        $crate::write($crate::LogLevel::Error, file!(), line!(), format_args!($($message)+))
    };
}

/// Logs when the verbose level is at least the first argument.
#[macro_export]
macro_rules! verbose {
    ($level:expr, $($message:tt)+) => {
        $crate::write($crate::LogLevel::Verbose($level), file!(), line!(), format_args!($($message)+))
    };
}

fn sink() -> &'static LogSink {
    SINK.get_or_init(LogSink::start)
}

fn format() -> LogFormat {
    if FORMAT.load(Ordering::Relaxed) == LogFormat::Iso8601 as u8 {
        LogFormat::Iso8601
    } else {
        LogFormat::Default
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_files_change_at_run_time() {
        let directory = std::env::temp_dir().join(format!("conch-log-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("server.log");
        let path = path.to_str().unwrap();
        std::fs::write(path, "before\n").unwrap();
        set_file(path).unwrap();
        assert_eq!(settings().file, path);
        verbose!(1, "not shown {}", 1);
        set_verbose_level(2);
        verbose!(2, "shown {}", 2);
        verbose!(3, "not shown {}", 3);
        set_verbose_level(0);
        write_table("x/y.rs", 5, "+---+\n| A |\n+---+");
        assert_eq!(
            set_file("/nonexistent/directory/log")
                .unwrap_err()
                .to_string(),
            "failed to open log file '/nonexistent/directory/log': No such file or directory (os error 2)"
        );
        assert_eq!(settings().file, path, "lines go where they went before");
        let renamed = directory.join("server.log.1");
        std::fs::rename(path, &renamed).unwrap();
        info!("to the old file");
        reopen_file().unwrap();
        info!("to the new file");
        set_file("").unwrap();
        assert_eq!(settings().file, "");
        assert!(flush(Duration::from_secs(60)));
        let fresh = std::fs::read_to_string(path).unwrap();
        assert!(
            fresh.contains("to the new file") && fresh.lines().count() == 1,
            "{fresh}"
        );
        let text = std::fs::read_to_string(&renamed).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(text.contains("to the old file"), "{text}");
        assert!(text.starts_with("before\n"), "appended");
        assert!(
            text.contains(" lib.rs:") && text.contains("] \"shown 2\"\n"),
            "{text}"
        );
        assert!(text.contains(" y.rs:5] \n+---+\n| A |\n+---+\n"), "{text}");
        assert!(!text.contains("not shown"));
    }
}
