//! gRPC status: codes, the mapping of engine errors, and the trailers that carry them.

use std::borrow::Cow;
use std::fmt::Write as _;

use conch_engine::{Code as EngineCode, Error};
use conch_http2::HeaderField;
use conch_memory::{BudgetExhausted, OutOfMemory};
use smallvec::{SmallVec, smallvec};

use crate::auth::{AccessRefusal, AuthError};

/// gRPC status codes that this server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum GrpcCode {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl GrpcCode {
    pub(super) const fn name(self) -> &'static str {
        match self {
            GrpcCode::Cancelled => "CANCELLED",
            GrpcCode::Unknown => "UNKNOWN",
            GrpcCode::InvalidArgument => "INVALID_ARGUMENT",
            GrpcCode::DeadlineExceeded => "DEADLINE_EXCEEDED",
            GrpcCode::NotFound => "NOT_FOUND",
            GrpcCode::AlreadyExists => "ALREADY_EXISTS",
            GrpcCode::PermissionDenied => "PERMISSION_DENIED",
            GrpcCode::ResourceExhausted => "RESOURCE_EXHAUSTED",
            GrpcCode::Unimplemented => "UNIMPLEMENTED",
            GrpcCode::Internal => "INTERNAL",
            GrpcCode::Unavailable => "UNAVAILABLE",
            GrpcCode::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// Why a call failed, as its trailers tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcStatus {
    pub(super) code: GrpcCode,
    pub(super) message: Cow<'static, str>,
}

impl GrpcStatus {
    pub(super) fn new(code: GrpcCode, message: impl Into<Cow<'static, str>>) -> GrpcStatus {
        GrpcStatus {
            code,
            message: message.into(),
        }
    }

    /// The words of the gRPC library under upstream when a message is no valid protobuf.
    pub(super) fn unparsable() -> GrpcStatus {
        GrpcStatus::new(GrpcCode::Internal, "Unable to parse request")
    }

    pub(super) fn shutting_down() -> GrpcStatus {
        let message = "GRPC server is shutting down and has stopped accepting new requests.";
        GrpcStatus::new(GrpcCode::Unavailable, message)
    }

    pub(super) fn deadline_exceeded() -> GrpcStatus {
        GrpcStatus::new(GrpcCode::DeadlineExceeded, "Deadline Exceeded")
    }
}

impl From<AuthError> for GrpcStatus {
    fn from(error: AuthError) -> GrpcStatus {
        match error {
            AuthError::Unauthenticated(words) => GrpcStatus::new(GrpcCode::Unauthenticated, words),
            AuthError::Forbidden(words) => GrpcStatus::new(GrpcCode::PermissionDenied, words),
        }
    }
}

impl From<AccessRefusal<'_>> for GrpcStatus {
    fn from(refusal: AccessRefusal<'_>) -> GrpcStatus {
        match refusal {
            AccessRefusal::Restricted(restriction) => {
                let message = format!(
                    "This protocol is restricted, expecting header '{}'",
                    restriction.header()
                );
                GrpcStatus::new(GrpcCode::Unavailable, message)
            }
            AccessRefusal::Denied(error) => error.into(),
        }
    }
}

impl From<OutOfMemory> for GrpcStatus {
    fn from(refused: OutOfMemory) -> GrpcStatus {
        GrpcStatus::new(GrpcCode::ResourceExhausted, refused.to_string())
    }
}

impl From<Error> for GrpcStatus {
    fn from(error: Error) -> GrpcStatus {
        let code = match error.code {
            EngineCode::Unknown => GrpcCode::Unknown,
            EngineCode::Internal => GrpcCode::Internal,
            EngineCode::NotFound => GrpcCode::NotFound,
            EngineCode::InvalidArg => GrpcCode::InvalidArgument,
            EngineCode::Unavailable => GrpcCode::Unavailable,
            EngineCode::Unsupported => GrpcCode::Unimplemented,
            EngineCode::AlreadyExists => GrpcCode::AlreadyExists,
            EngineCode::Cancelled => GrpcCode::Cancelled,
            EngineCode::Exhausted | EngineCode::OutOfMemory => GrpcCode::ResourceExhausted,
        };
        GrpcStatus {
            code,
            message: error.message,
        }
    }
}

/// A message longer than this is cut in the trailers: peers bound their header lists, commonly at 8
/// or 16 KiB.
const MESSAGE_BYTES_MAX: usize = 6 << 10;

/// The fields of an answer's head, or of its trailers.
pub(super) type StatusFields<'a> = SmallVec<[HeaderField<'a>; 4]>;

/// A status as its fields have it.
pub(super) struct StatusTexts {
    code: String,
    message: String,
}

impl StatusTexts {
    pub(super) fn of(status: &GrpcStatus) -> StatusTexts {
        StatusTexts {
            code: (status.code as u8).to_string(),
            message: percent_encode(&status.message),
        }
    }

    pub(super) fn fields(&self) -> StatusFields<'_> {
        let mut fields = smallvec![HeaderField::new("grpc-status", self.code.as_bytes())];
        if !self.message.is_empty() {
            fields.push(HeaderField::new("grpc-message", self.message.as_bytes()));
        }
        fields
    }
}

/// Encodes a message for `grpc-message`: printable ASCII except `%` stays, every other byte becomes
/// `%XX`.
fn percent_encode(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len().min(MESSAGE_BYTES_MAX));
    for character in message.chars() {
        match character {
            ' '..='~' if character != '%' => encoded.push(character),
            _ => {
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
                }
            }
        }
        // The longest encoded character takes 12 bytes; whole characters only, so that what is left
        // decodes.
        if encoded.len() + 12 > MESSAGE_BYTES_MAX {
            break;
        }
    }
    encoded
}

/// The refusal when the process holds as many request bytes as it may.
pub(super) fn exhausted(exhausted: BudgetExhausted) -> GrpcStatus {
    let BudgetExhausted { limit_bytes, .. } = exhausted;
    GrpcStatus::new(
        GrpcCode::ResourceExhausted,
        format!(
            "the server's limit of {limit_bytes} bytes for requests is reached \
             (--memory-limit-bytes)"
        ),
    )
}

pub(super) fn invalid(message: String) -> GrpcStatus {
    GrpcStatus::new(GrpcCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_codes_map_as_upstream() {
        let table = [
            (EngineCode::Unknown, 2),
            (EngineCode::Internal, 13),
            (EngineCode::NotFound, 5),
            (EngineCode::InvalidArg, 3),
            (EngineCode::Unavailable, 14),
            (EngineCode::Unsupported, 12),
            (EngineCode::AlreadyExists, 6),
            (EngineCode::Cancelled, 1),
            (EngineCode::Exhausted, 8),
            (EngineCode::OutOfMemory, 8),
        ];
        for (code, expected) in table {
            let status = GrpcStatus::from(Error::new(code, "why"));
            assert_eq!(status.code as u8, expected);
            assert_eq!(status.message, "why");
        }
    }

    #[test]
    fn messages_are_percent_encoded_and_cut() {
        let table = [
            ("plain text, [1,2] '<n>'", "plain text, [1,2] '<n>'"),
            ("100%", "100%25"),
            ("line\r\nbreak\u{7f}", "line%0D%0Abreak%7F"),
            ("grün", "gr%C3%BCn"),
        ];
        for (message, expected) in table {
            assert_eq!(percent_encode(message), expected);
        }
        let long = "é".repeat(100_000);
        let encoded = percent_encode(&long);
        assert!(encoded.len() <= MESSAGE_BYTES_MAX && encoded.len().is_multiple_of(6));
    }

    #[test]
    fn a_status_is_its_code_and_its_message() {
        let texts = StatusTexts::of(&GrpcStatus::new(GrpcCode::NotFound, "gone"));
        assert_eq!((&*texts.code, &*texts.message), ("5", "gone"));
        assert_eq!(texts.fields().len(), 2);
        let silent = StatusTexts::of(&GrpcStatus::new(GrpcCode::Cancelled, ""));
        assert_eq!(silent.fields().len(), 1);
    }
}
