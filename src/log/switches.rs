//! The switches of the log: atomics, so that a message that is off costs one load.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crate::format::LogFormat;
use crate::level::LogLevel;

static SHOWS_INFO: AtomicBool = AtomicBool::new(true);
static SHOWS_WARNING: AtomicBool = AtomicBool::new(true);
static SHOWS_ERROR: AtomicBool = AtomicBool::new(true);
static VERBOSE_LEVEL: AtomicU32 = AtomicU32::new(0);
static FORMAT: AtomicU8 = AtomicU8::new(LogFormat::Default as u8);

/// Whether lines of level information, warning and error are shown.
pub(crate) fn shows() -> [bool; 3] {
    [&SHOWS_INFO, &SHOWS_WARNING, &SHOWS_ERROR].map(|switch| switch.load(Ordering::Relaxed))
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

pub(crate) fn verbose_level() -> u32 {
    VERBOSE_LEVEL.load(Ordering::Relaxed)
}

pub(crate) fn set_verbose_level(level: u32) {
    VERBOSE_LEVEL.store(level, Ordering::Relaxed);
}

pub fn set_format(format: LogFormat) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

pub(crate) fn format() -> LogFormat {
    let value = FORMAT.load(Ordering::Relaxed);
    let mut all = LogFormat::ALL.into_iter();
    all.find(|format| *format as u8 == value)
        .unwrap_or_default()
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
