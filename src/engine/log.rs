//! The process-wide logger, in Triton's two line formats.
//!
//! One per process because the C API's `TRITONSERVER_LogMessage` has no handle. A line goes out in one write under a lock, so lines of
//! different threads never mix; a closed or full target loses the line and nothing else. Switches are atomics, so a message that is
//! off costs one load. Use the macros [`info!`](crate::log_info), [`warning!`](crate::log_warning), [`error!`](crate::log_error) and
//! [`verbose!`](crate::log_verbose), re-exported here as `log::info!` and so on.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Code, Error};

pub use crate::{
    log_error as error, log_info as info, log_verbose as verbose, log_warning as warning,
};

/// The severity of a line. Verbose lines are marked `I` like information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
    Error,
    /// Shown when the verbose level is at least this; 1 is the tersest.
    Verbose(u32),
}

/// How a line begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Format {
    /// `I0102 03:04:05.000006 pid file:line] "message"`.
    #[default]
    Default = 0,
    /// `2026-01-02T03:04:05Z I pid file:line] "message"`.
    Iso8601 = 1,
}

impl Format {
    pub const fn name(self) -> &'static str {
        match self {
            Format::Default => "default",
            Format::Iso8601 => "ISO8601",
        }
    }

    /// The format with this exact name.
    pub fn from_name(name: &str) -> Option<Format> {
        [Format::Default, Format::Iso8601]
            .into_iter()
            .find(|format| format.name() == name)
    }
}

/// The logger's switches, as options and the logging extension show them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Empty: the console.
    pub file: String,
    pub shows_info: bool,
    pub shows_warning: bool,
    pub shows_error: bool,
    /// 0: none.
    pub verbose_level: u32,
    pub format: Format,
}

static SHOWS_INFO: AtomicBool = AtomicBool::new(true);
static SHOWS_WARNING: AtomicBool = AtomicBool::new(true);
static SHOWS_ERROR: AtomicBool = AtomicBool::new(true);
static VERBOSE_LEVEL: AtomicU32 = AtomicU32::new(0);
static FORMAT: AtomicU8 = AtomicU8::new(Format::Default as u8);
static TARGET: Mutex<Option<(String, File)>> = Mutex::new(None);
static ESCAPES: OnceLock<bool> = OnceLock::new();

/// Reads all switches.
pub fn settings() -> Settings {
    Settings {
        file: target()
            .as_ref()
            .map(|(path, _)| path.clone())
            .unwrap_or_default(),
        shows_info: SHOWS_INFO.load(Ordering::Relaxed),
        shows_warning: SHOWS_WARNING.load(Ordering::Relaxed),
        shows_error: SHOWS_ERROR.load(Ordering::Relaxed),
        verbose_level: VERBOSE_LEVEL.load(Ordering::Relaxed),
        format: format(),
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
}

pub fn set_format(format: Format) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

/// Appends all further lines to the file at `path`; an empty path is the console again.
///
/// # Errors
/// INTERNAL if the file cannot be opened; lines go where they went before then.
pub fn set_file(path: &str) -> Result<(), Error> {
    let opened = match path {
        "" => None,
        path => {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(Path::new(path));
            let file = file.map_err(|cause| {
                Error::new(
                    Code::Internal,
                    format!("failed to open log file '{path}': {cause}"),
                )
            })?;
            Some((path.to_owned(), file))
        }
    };
    *target() = opened;
    Ok(())
}

/// Whether a message of this level would be shown.
pub fn is_shown(level: Level) -> bool {
    match level {
        Level::Info => SHOWS_INFO.load(Ordering::Relaxed),
        Level::Warning => SHOWS_WARNING.load(Ordering::Relaxed),
        Level::Error => SHOWS_ERROR.load(Ordering::Relaxed),
        Level::Verbose(level) => level <= VERBOSE_LEVEL.load(Ordering::Relaxed),
    }
}

/// Writes one line; escapes and quotes the message unless TRITON_SERVER_ESCAPE_LOG_MESSAGES is 0. `path` is cut to the file's name.
pub fn write(level: Level, path: &str, line: u32, message: fmt::Arguments<'_>) {
    if is_shown(level) {
        let mut text = preamble(level, path, line);
        match message.as_str() {
            Some(message) => push_message(&mut text, message, escapes()),
            None => push_message(&mut text, &message.to_string(), escapes()),
        }
        text.push('\n');
        emit(level, &text);
    }
}

/// Writes a table as it is, below the usual beginning of a line.
pub fn write_table(path: &str, line: u32, table: &str) {
    if is_shown(Level::Info) {
        let mut text = preamble(Level::Info, path, line);
        text.push('\n');
        text.push_str(table);
        text.push('\n');
        emit(Level::Info, &text);
    }
}

/// Logs an information.
#[macro_export]
macro_rules! log_info {
    ($($message:tt)+) => {
        $crate::log::write($crate::log::Level::Info, file!(), line!(), format_args!($($message)+))
    };
}

/// Logs a warning.
#[macro_export]
macro_rules! log_warning {
    ($($message:tt)+) => {
        $crate::log::write($crate::log::Level::Warning, file!(), line!(), format_args!($($message)+))
    };
}

/// Logs an error.
#[macro_export]
macro_rules! log_error {
    ($($message:tt)+) => {
        $crate::log::write($crate::log::Level::Error, file!(), line!(), format_args!($($message)+))
    };
}

/// Logs when the verbose level is at least the first argument.
#[macro_export]
macro_rules! log_verbose {
    ($level:expr, $($message:tt)+) => {
        $crate::log::write($crate::log::Level::Verbose($level), file!(), line!(), format_args!($($message)+))
    };
}

fn target() -> std::sync::MutexGuard<'static, Option<(String, File)>> {
    TARGET.lock().unwrap_or_else(PoisonError::into_inner)
}

fn format() -> Format {
    if FORMAT.load(Ordering::Relaxed) == Format::Iso8601 as u8 {
        Format::Iso8601
    } else {
        Format::Default
    }
}

fn escapes() -> bool {
    *ESCAPES.get_or_init(|| {
        std::env::var_os("TRITON_SERVER_ESCAPE_LOG_MESSAGES").is_none_or(|value| value != "0")
    })
}

fn preamble(level: Level, path: &str, line: u32) -> String {
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

fn emit(level: Level, text: &str) {
    let mut target = target();
    // Nothing useful can be done where a line cannot be written.
    let _ = match (&mut *target, level) {
        (Some((_, file)), _) => file.write_all(text.as_bytes()),
        (None, Level::Info | Level::Verbose(_)) => {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
        (None, Level::Warning | Level::Error) => {
            std::io::stderr().lock().write_all(text.as_bytes())
        }
    };
}

fn push_preamble(
    text: &mut String,
    format: Format,
    level: Level,
    now: SystemTime,
    process_id: u32,
    path: &str,
    line: u32,
) {
    let mark = match level {
        Level::Info | Level::Verbose(_) => 'I',
        Level::Warning => 'W',
        Level::Error => 'E',
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
        Format::Default => write!(
            text,
            "{mark}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {process_id} {file}:{line}] "
        ),
        Format::Iso8601 => write!(
            text,
            "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {mark} {process_id} {file}:{line}] "
        ),
    };
    written.expect("writing to a String cannot fail");
}

/// As a JSON string, so that whatever a client put into a name stays on one line; other control characters than JSON's too.
fn push_message(text: &mut String, message: &str, escapes: bool) {
    if !escapes {
        return text.push_str(message);
    }
    text.push('"');
    for character in message.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            // DEL and the C1 controls (0x9b starts a terminal sequence) are as harmful as ESC.
            control if control.is_control() => {
                write!(text, "\\u{:04X}", u32::from(control))
                    .expect("writing to a String cannot fail");
            }
            other => text.push(other),
        }
    }
    text.push('"');
}

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
        // Days are counted from 1 March of year 0, so that the leap day ends a year, in eras of 400 years.
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
pub(crate) mod tests {
    use super::*;

    /// Held by tests that send the process' log to a file.
    pub(crate) static ONE_FILE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn line(format: Format, level: Level, since_epoch: Duration, message: &str) -> String {
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
        push_message(&mut text, message, true);
        text
    }

    #[test]
    fn lines_look_like_upstreams() {
        let table = [
            (
                Format::Default,
                Level::Info,
                0,
                0,
                r#"I0101 00:00:00.000000 42 lifecycle.rs:7] "m""#,
            ),
            (
                Format::Default,
                Level::Warning,
                951_782_399,
                5,
                r#"W0228 23:59:59.000005 42 lifecycle.rs:7] "m""#,
            ),
            (
                Format::Default,
                Level::Error,
                951_782_400,
                999_999,
                r#"E0229 00:00:00.999999 42 lifecycle.rs:7] "m""#,
            ),
            (
                Format::Default,
                Level::Verbose(1),
                1_709_251_199,
                0,
                r#"I0229 23:59:59.000000 42 lifecycle.rs:7] "m""#,
            ),
            (
                Format::Iso8601,
                Level::Info,
                1_709_251_200,
                0,
                r#"2024-03-01T00:00:00Z I 42 lifecycle.rs:7] "m""#,
            ),
            (
                Format::Iso8601,
                Level::Error,
                4_107_542_399,
                0,
                r#"2100-02-28T23:59:59Z E 42 lifecycle.rs:7] "m""#,
            ),
            (
                Format::Iso8601,
                Level::Error,
                4_107_542_400,
                0,
                r#"2100-03-01T00:00:00Z E 42 lifecycle.rs:7] "m""#,
            ),
            (
                Format::Iso8601,
                Level::Warning,
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
    fn settings_and_files_change_at_run_time() {
        let _alone = ONE_FILE_AT_A_TIME
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let directory = crate::lifecycle::fake::Directory::new();
        let path = directory.path("server.log");
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
            set_file("/nonexistent/directory/log").unwrap_err(),
            Error::internal(
                "failed to open log file '/nonexistent/directory/log': No such file or directory (os error 2)"
            )
        );
        assert_eq!(settings().file, path, "lines go where they went before");
        set_file("").unwrap();
        assert_eq!(settings().file, "");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("before\n"), "appended");
        assert!(
            text.contains(" log.rs:") && text.contains("] \"shown 2\"\n"),
            "{text}"
        );
        assert!(text.contains(" y.rs:5] \n+---+\n| A |\n+---+\n"), "{text}");
        assert!(!text.contains("not shown"));
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
            push_message(&mut text, message, true);
            assert_eq!(text, expected);
            assert_eq!(text.lines().count(), 1);
        }
        let mut text = String::new();
        push_message(&mut text, "as \"it\" is", false);
        assert_eq!(text, "as \"it\" is");
    }
}
