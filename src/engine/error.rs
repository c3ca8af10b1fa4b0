//! The one error type that crosses crate edges: a code and a message for the client.

use std::borrow::Cow;
use std::fmt;

/// Error codes, numbered as in Triton's C API as far as that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Code {
    Unknown = 0,
    Internal = 1,
    NotFound = 2,
    InvalidArg = 3,
    Unavailable = 4,
    Unsupported = 5,
    AlreadyExists = 6,
    Cancelled = 7,
    /// Too much is going on for now, whoever asks may ask again. Not one of the C API's, where it
    /// is [`Code::Unavailable`].
    Exhausted = 8,
    /// The system has no memory for what was asked; later it may. Not one of the C API's, either.
    OutOfMemory = 9,
}

impl Code {
    /// The words of Triton's `TRITONSERVER_ErrorCodeString`.
    pub const fn name(self) -> &'static str {
        match self {
            Code::Unknown => "Unknown",
            Code::Internal => "Internal",
            Code::NotFound => "Not found",
            Code::InvalidArg => "Invalid argument",
            Code::Unavailable => "Unavailable",
            Code::Unsupported => "Unsupported",
            Code::AlreadyExists => "Already exists",
            Code::Cancelled => "Cancelled",
            Code::Exhausted => "Resource exhausted",
            Code::OutOfMemory => "Out of memory",
        }
    }
}

/// What went wrong, in the words the client sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub code: Code,
    pub message: Cow<'static, str>,
}

impl Error {
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Error {
        Error {
            code,
            message: message.into(),
        }
    }

    pub fn internal(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Code::Internal, message)
    }

    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Code::InvalidArg, message)
    }

    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Code::NotFound, message)
    }

    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Code::Unavailable, message)
    }

    pub fn exhausted(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Code::Exhausted, message)
    }

    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Code::Unsupported, message)
    }
}

impl From<conch_log::FileError> for Error {
    fn from(error: conch_log::FileError) -> Error {
        Error::internal(error.to_string())
    }
}

impl From<conch_memory::BudgetExhausted> for Error {
    fn from(exhausted: conch_memory::BudgetExhausted) -> Error {
        Error::unavailable(exhausted.to_string())
    }
}

impl From<conch_memory::OutOfMemory> for Error {
    fn from(refused: conch_memory::OutOfMemory) -> Error {
        Error::new(Code::OutOfMemory, refused.to_string())
    }
}

/// Bytes of a name, or of another text from a client, that an error repeats.
const NAME_BYTES_MAX: usize = 256;

/// A name as errors show it: whoever sends a long one is not sent it back.
pub fn truncated<T: AsRef<str> + ?Sized>(name: &T) -> Truncated<'_> {
    Truncated(name.as_ref())
}

/// See [`truncated`].
#[derive(Clone, Copy, Debug)]
pub struct Truncated<'a>(&'a str);

impl fmt::Display for Truncated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() <= NAME_BYTES_MAX {
            return f.write_str(self.0);
        }
        let end = self.0.floor_char_boundary(NAME_BYTES_MAX);
        f.write_str(self.0.get(..end).unwrap_or(""))?;
        f.write_str("...")
    }
}

impl From<conch_config::ConfigError> for Error {
    fn from(error: conch_config::ConfigError) -> Error {
        let code = match error.code {
            conch_config::ConfigErrorCode::Internal => Code::Internal,
            conch_config::ConfigErrorCode::NotFound => Code::NotFound,
            conch_config::ConfigErrorCode::InvalidArg => Code::InvalidArg,
            conch_config::ConfigErrorCode::Unsupported => Code::Unsupported,
        };
        Error::new(code, cut(error.message))
    }
}

/// What is wrong with a configuration repeats its names, which may come from a client.
fn cut(mut message: String) -> String {
    if message.len() > CONFIG_MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(CONFIG_MESSAGE_BYTES_MAX));
        message.push_str("...");
    }
    message
}

const CONFIG_MESSAGE_BYTES_MAX: usize = 4096;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_characters() {
        for (name, expected) in [
            (String::new(), String::new()),
            ("a".repeat(256), "a".repeat(256)),
            ("a".repeat(257), "a".repeat(256) + "..."),
            ("a".repeat(255) + "\u{20ac}", "a".repeat(255) + "..."),
        ] {
            assert_eq!(truncated(&name).to_string(), expected);
        }
    }
}
