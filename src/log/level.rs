//! Severities of lines.

/// The severity of a line. Verbose lines are marked `I` like information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Info,
    Warning,
    Error,
    /// Shown when the verbose level is at least this; 1 is the tersest.
    Verbose(u32),
}
