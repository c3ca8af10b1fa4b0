//! The logging extension: the switches of the process' log, read and set at run time.
//!
//! They are atomics that every thread looks at for each line, so a change counts at once and
//! everywhere. A request is checked as a whole before anything is set. The file cannot be changed
//! over the network: that would let a client write where the server may.

use conch_engine::Error;
use conch_engine::request::messages::RequestIdPrefix;
use conch_log::{self as log, LogFields, LogFormat, LogSettings};

/// Says that an inference was refused, if the log shows as much. The id is empty where it is not
/// known, or not known yet.
pub(crate) fn note_refusal(id: &str, message: &str) {
    let fields = LogFields {
        request_id: id,
        model: "",
    };
    log::verbose_with_fields!(1, fields, "{}Infer failed: {message}", RequestIdPrefix(id));
}

/// What a request sets; the rest stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogChanges {
    pub(crate) shows_info: Option<bool>,
    pub(crate) shows_warning: Option<bool>,
    pub(crate) shows_error: Option<bool>,
    pub(crate) verbose_level: Option<u32>,
    pub(crate) format: Option<LogFormat>,
}

impl LogChanges {
    /// Sets what is to be set, and returns what is in force then.
    pub(crate) fn apply(self) -> LogSettings {
        let LogChanges {
            shows_info,
            shows_warning,
            shows_error,
            verbose_level,
            format,
        } = self;
        if let Some(shows) = shows_info {
            log::show_info(shows);
        }
        if let Some(shows) = shows_warning {
            log::show_warning(shows);
        }
        if let Some(shows) = shows_error {
            log::show_error(shows);
        }
        if let Some(level) = verbose_level {
            log::set_verbose_level(level);
        }
        if let Some(format) = format {
            log::set_format(format);
        }
        log::settings()
    }
}

/// The refusal to write the log elsewhere.
pub(crate) fn log_file_refusal() -> Error {
    Error::unsupported("log file location can not be updated through network protocol")
}
