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
}

impl ConfigError {
    pub fn internal(message: impl Into<String>) -> ConfigError {
        ConfigError {
            code: ConfigErrorCode::Internal,
            message: message.into(),
        }
    }

    pub fn not_found(message: impl Into<String>) -> ConfigError {
        ConfigError {
            code: ConfigErrorCode::NotFound,
            message: message.into(),
        }
    }

    pub fn invalid(message: impl Into<String>) -> ConfigError {
        ConfigError {
            code: ConfigErrorCode::InvalidArg,
            message: message.into(),
        }
    }

    pub fn unsupported(message: impl Into<String>) -> ConfigError {
        ConfigError {
            code: ConfigErrorCode::Unsupported,
            message: message.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}
