//! Reasons to refuse a configuration.

use std::fmt;

/// The kind of a refusal; names follow the codes of the C API that they become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigErrorCode {
    Internal,
    NotFound,
    InvalidArg,
    Unsupported,
}

/// A refusal in the words that clients see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub code: ConfigErrorCode,
    pub message: String,
    /// Where in its file, if it could not even be read. `message` tells the same in words.
    pub place: Option<Box<FaultPlace>>,
}

/// A place in a configuration file, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlace {
    /// Both counted from 1. Columns count bytes.
    pub line: usize,
    pub column: usize,
    pub what: String,
}

impl ConfigError {
    fn new(code: ConfigErrorCode, message: impl Into<String>) -> ConfigError {
        ConfigError {
            code,
            message: message.into(),
            place: None,
        }
    }

    pub(crate) fn at(mut self, line: usize, column: usize, what: String) -> ConfigError {
        self.place = Some(Box::new(FaultPlace { line, column, what }));
        self
    }

    pub fn internal(message: impl Into<String>) -> ConfigError {
        ConfigError::new(ConfigErrorCode::Internal, message)
    }

    pub fn not_found(message: impl Into<String>) -> ConfigError {
        ConfigError::new(ConfigErrorCode::NotFound, message)
    }

    pub fn invalid(message: impl Into<String>) -> ConfigError {
        ConfigError::new(ConfigErrorCode::InvalidArg, message)
    }

    pub fn unsupported(message: impl Into<String>) -> ConfigError {
        ConfigError::new(ConfigErrorCode::Unsupported, message)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}
