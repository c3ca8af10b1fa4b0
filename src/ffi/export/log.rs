//! The process's log.

use std::ffi::{c_char, c_int};
use std::sync::Once;

use conch_abi as abi;
use conch_engine::Error;
use conch_log::{self as log, LogLevel};

use super::export;
use crate::boundary::lossy_text;

/// Has the end of the process wait for the last lines of the log: an embedder may end without
/// deleting its server.
pub(super) fn flush_log_at_exit() {
    extern "C" fn flush() {
        log::flush(log::EXIT_FLUSH);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: takes a function that lives as long as this library, which runs its handlers
        // before it goes.
        unsafe { libc::atexit(flush) };
    });
}

fn level_of(level: abi::TRITONSERVER_LogLevel) -> Option<LogLevel> {
    match level {
        abi::TRITONSERVER_LOG_INFO => Some(LogLevel::Info),
        abi::TRITONSERVER_LOG_WARN => Some(LogLevel::Warning),
        abi::TRITONSERVER_LOG_ERROR => Some(LogLevel::Error),
        abi::TRITONSERVER_LOG_VERBOSE => Some(LogLevel::Verbose(1)),
        _ => None,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn TRITONSERVER_LogIsEnabled(level: abi::TRITONSERVER_LogLevel) -> bool {
    level_of(level).is_some_and(log::is_shown)
}

export! {
    fn TRITONSERVER_LogMessage(
        level: abi::TRITONSERVER_LogLevel,
        filename: *const c_char,
        line: c_int,
        msg: *const c_char,
    ) {
        let Some(level) = level_of(level) else {
            return Err(Error::invalid(format!("unknown logging level '{level}'")));
        };
        if log::is_shown(level) {
            let line = u32::try_from(line).unwrap_or(0);
            log::write(
                level,
                &lossy_text(filename),
                line,
                format_args!("{}", lossy_text(msg)),
            );
        }
        Ok(())
    }
}
