//! The process-wide log, in Triton's two line formats or as JSON.
//!
//! One per process because the C API's `TRITONSERVER_LogMessage` has no handle. Callers never wait
//! for whoever reads the log: a line goes into a bounded queue, which a thread of the log's own
//! writes out; see [`flush`] for the end of the process. Switches are atomics, so a message that is
//! off costs one load. Use the macros [`info!`], [`warning!`], [`error!`] and [`verbose!`]. Any
//! thread; nothing here but [`flush`] and the opening of a file blocks.
#![forbid(unsafe_code)]

mod bridge;
mod format;
mod level;
mod limiter;
mod lines;
mod panics;
mod settings;
mod sink;
mod switches;

pub use format::{LogFields, LogFormat};
pub use level::LogLevel;
pub use limiter::LogLimiter;
pub use lines::{
    EXIT_FLUSH, dropped, flush, pending, print, write, write_table, write_with_fields,
};
pub use panics::tell_panics;
pub use settings::{
    FileError, LogSettings, configure, reopen_file, set_file, set_verbose_level, settings,
};
pub use switches::{is_shown, set_format, show_error, show_info, show_warning};

/// Logs an information.
#[macro_export]
macro_rules! info {
    ($($message:tt)+) => {
        $crate::write($crate::LogLevel::Info, file!(), line!(), format_args!($($message)+))
    };
}

/// [`info!`] with [`LogFields`] as its first argument.
#[macro_export]
macro_rules! info_with_fields {
    ($fields:expr, $($message:tt)+) => {
        $crate::write_with_fields(
            $crate::LogLevel::Info,
            file!(),
            line!(),
            $fields,
            format_args!($($message)+),
        )
    };
}

/// Logs a warning.
#[macro_export]
macro_rules! warning {
    ($($message:tt)+) => {
        $crate::write($crate::LogLevel::Warning, file!(), line!(), format_args!($($message)+))
    };
}

/// [`warning!`] with [`LogFields`] as its first argument.
#[macro_export]
macro_rules! warning_with_fields {
    ($fields:expr, $($message:tt)+) => {
        $crate::write_with_fields(
            $crate::LogLevel::Warning,
            file!(),
            line!(),
            $fields,
            format_args!($($message)+),
        )
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
        $crate::write(
            $crate::LogLevel::Verbose($level),
            file!(),
            line!(),
            format_args!($($message)+),
        )
    };
}

/// [`verbose!`] with [`LogFields`] as its second argument.
#[macro_export]
macro_rules! verbose_with_fields {
    ($level:expr, $fields:expr, $($message:tt)+) => {
        $crate::write_with_fields(
            $crate::LogLevel::Verbose($level),
            file!(),
            line!(),
            $fields,
            format_args!($($message)+),
        )
    };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
            "failed to open log file '/nonexistent/directory/log': No such file or directory (os \
             error 2)"
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
