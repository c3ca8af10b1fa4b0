//! Settings of the log, as options and the logging extension have them.

use std::fmt;
use std::io;

use crate::bridge;
use crate::format::LogFormat;
use crate::lines::sink;
use crate::sink::LogFile;
use crate::switches;

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
    let [shows_info, shows_warning, shows_error] = switches::shows();
    LogSettings {
        file: sink().path().unwrap_or_default(),
        shows_info,
        shows_warning,
        shows_error,
        verbose_level: switches::verbose_level(),
        format: switches::format(),
    }
}

/// Sets all switches as `settings` has them; the file last.
///
/// # Errors
/// As of [`set_file`]; the other switches are set then.
pub fn configure(settings: &LogSettings) -> Result<(), FileError> {
    switches::show_info(settings.shows_info);
    switches::show_warning(settings.shows_warning);
    switches::show_error(settings.shows_error);
    set_verbose_level(settings.verbose_level);
    switches::set_format(settings.format);
    match settings.file.as_str() {
        "" => Ok(()),
        path => set_file(path),
    }
}

pub fn set_verbose_level(level: u32) {
    switches::set_verbose_level(level);
    bridge::set_verbose_level(level);
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
