//! Panics as lines of the log.

use crate::level::LogLevel;
use crate::lines::write;

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
