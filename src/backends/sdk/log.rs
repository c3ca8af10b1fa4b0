//! Lines into the server's log.

use std::ffi::CString;

use conch_abi as abi;

use crate::error::c_string;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
    Error,
    Verbose,
}

impl Level {
    fn to_raw(self) -> abi::TRITONSERVER_LogLevel {
        match self {
            Level::Info => abi::TRITONSERVER_LOG_INFO,
            Level::Warning => abi::TRITONSERVER_LOG_WARN,
            Level::Error => abi::TRITONSERVER_LOG_ERROR,
            Level::Verbose => abi::TRITONSERVER_LOG_VERBOSE,
        }
    }
}

/// Whether the server writes lines of this level at all.
pub fn is_enabled(level: Level) -> bool {
    // SAFETY: takes a number, touches nothing of ours.
    unsafe { abi::TRITONSERVER_LogIsEnabled(level.to_raw()) }
}

/// Writes one line. A server that cannot log is no reason to fail, so there is no result.
pub fn write(level: Level, file: &str, line: u32, message: &str) {
    let file: CString = c_string(file);
    let message = c_string(message);
    // SAFETY: both strings are NUL-terminated and outlive the call, which copies them.
    let raw = unsafe {
        abi::TRITONSERVER_LogMessage(
            level.to_raw(),
            file.as_ptr(),
            i32::try_from(line).unwrap_or(0),
            message.as_ptr(),
        )
    };
    // SAFETY: a returned error is the caller's.
    let _ = unsafe { crate::Error::check(raw) };
}

/// `log!(Level::Info, "format", …)`: formats only if the level is enabled.
#[macro_export]
macro_rules! log {
    ($level:expr, $($format:tt)+) => {{
        let level = $level;
        if $crate::log::is_enabled(level) {
            $crate::log::write(level, file!(), line!(), &format!($($format)+));
        }
    }};
}

#[macro_export]
macro_rules! info {
    ($($format:tt)+) => { $crate::log!($crate::log::Level::Info, $($format)+) };
}

#[macro_export]
macro_rules! warning {
    ($($format:tt)+) => { $crate::log!($crate::log::Level::Warning, $($format)+) };
}

#[macro_export]
macro_rules! error {
    ($($format:tt)+) => { $crate::log!($crate::log::Level::Error, $($format)+) };
}

#[macro_export]
macro_rules! verbose {
    ($($format:tt)+) => { $crate::log!($crate::log::Level::Verbose, $($format)+) };
}
