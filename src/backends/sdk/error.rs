//! Errors between a plug-in and its server.

use std::ffi::{CStr, CString};
use std::fmt;

use conch_abi as abi;

/// What kind of failure an [`Error`] is; the server turns it into an HTTP status or a gRPC code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Unknown,
    Internal,
    NotFound,
    InvalidArgument,
    Unavailable,
    Unsupported,
    AlreadyExists,
    Cancelled,
}

impl Code {
    fn to_raw(self) -> abi::TRITONSERVER_Error_Code {
        match self {
            Code::Unknown => abi::TRITONSERVER_ERROR_UNKNOWN,
            Code::Internal => abi::TRITONSERVER_ERROR_INTERNAL,
            Code::NotFound => abi::TRITONSERVER_ERROR_NOT_FOUND,
            Code::InvalidArgument => abi::TRITONSERVER_ERROR_INVALID_ARG,
            Code::Unavailable => abi::TRITONSERVER_ERROR_UNAVAILABLE,
            Code::Unsupported => abi::TRITONSERVER_ERROR_UNSUPPORTED,
            Code::AlreadyExists => abi::TRITONSERVER_ERROR_ALREADY_EXISTS,
            Code::Cancelled => abi::TRITONSERVER_ERROR_CANCELLED,
        }
    }

    fn from_raw(code: abi::TRITONSERVER_Error_Code) -> Code {
        match code {
            abi::TRITONSERVER_ERROR_INTERNAL => Code::Internal,
            abi::TRITONSERVER_ERROR_NOT_FOUND => Code::NotFound,
            abi::TRITONSERVER_ERROR_INVALID_ARG => Code::InvalidArgument,
            abi::TRITONSERVER_ERROR_UNAVAILABLE => Code::Unavailable,
            abi::TRITONSERVER_ERROR_UNSUPPORTED => Code::Unsupported,
            abi::TRITONSERVER_ERROR_ALREADY_EXISTS => Code::AlreadyExists,
            abi::TRITONSERVER_ERROR_CANCELLED => Code::Cancelled,
            _ => Code::Unknown,
        }
    }
}

/// A failure with the message that the client or the log will show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    message: String,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error {
            code,
            message: message.into(),
        }
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Error::new(Code::Internal, message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(Code::InvalidArgument, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Error::new(Code::Unavailable, message)
    }

    /// The system has no memory for something that a client sizes: the error of one request.
    pub fn out_of_memory(byte_count: usize) -> Self {
        Error::unavailable(format!("failed to allocate {byte_count} bytes"))
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Error::new(Code::Unsupported, message)
    }

    /// The same error with words before its message: `<what>: <message>`.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        Error::new(self.code, format!("{what}: {}", self.message))
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Makes the server's error object; the receiver owns it.
    pub(crate) fn into_raw(self) -> *mut abi::TRITONSERVER_Error {
        let message = c_string(&self.message);
        // SAFETY: the message is NUL-terminated and copied by the callee.
        unsafe { abi::TRITONSERVER_ErrorNew(self.code.to_raw(), message.as_ptr()) }
    }

    /// Takes over an error object that a server function returned; null is success.
    ///
    /// # Safety
    /// `raw` is null or an error that this caller owns.
    pub(crate) unsafe fn check(raw: *mut abi::TRITONSERVER_Error) -> Result<(), Error> {
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: live until deleted below.
        let error = unsafe { Error::copy(raw) };
        // SAFETY: owned by this caller and used by nobody afterwards.
        unsafe { abi::TRITONSERVER_ErrorDelete(raw) };
        Err(error)
    }

    /// What an error object says that stays its owner's.
    ///
    /// # Safety
    /// `raw` is a live error.
    pub(crate) unsafe fn copy(raw: *mut abi::TRITONSERVER_Error) -> Error {
        // SAFETY: live by this function's contract; the message is NUL-terminated and lives as long
        // as the error.
        unsafe {
            let message = abi::TRITONSERVER_ErrorMessage(raw);
            let message = if message.is_null() {
                String::new()
            } else {
                CStr::from_ptr(message).to_string_lossy().into_owned()
            };
            Error::new(Code::from_raw(abi::TRITONSERVER_ErrorCode(raw)), message)
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// A C string of `text`, ending at its first NUL, since C would see no more of it.
pub(crate) fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(text.get(..end).unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_way_to_the_server_and_back() {
        for code in [
            Code::Unknown,
            Code::Internal,
            Code::NotFound,
            Code::InvalidArgument,
            Code::Unavailable,
            Code::Unsupported,
            Code::AlreadyExists,
            Code::Cancelled,
        ] {
            assert_eq!(Code::from_raw(code.to_raw()), code);
        }
        assert_eq!(Code::from_raw(99), Code::Unknown);
    }

    #[test]
    fn context_keeps_the_code() {
        let error = Error::unsupported("no such type").context("input 'X'");
        assert_eq!(error, Error::unsupported("input 'X': no such type"));
    }

    #[test]
    fn c_strings_end_at_the_first_nul() {
        for (text, expected) in [("", ""), ("plain", "plain"), ("a\0b", "a"), ("\0", "")] {
            assert_eq!(c_string(text).to_str(), Ok(expected));
        }
    }
}
