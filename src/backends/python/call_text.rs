//! Messages that a stub posts, as text, and answers to them.

use conch_backend_sdk as sdk;
use sdk::{Code, Error};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::process::{Reply, StubProcess};

/// One message of a stub's. Fields of other kinds than its own are left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CallText {
    #[serde(rename = "k")]
    kind: String,
    /// The number of what it is about: a request, a metric, a call.
    #[serde(rename = "h")]
    pub(crate) number: u64,
    #[serde(rename = "f")]
    flags: Value,
    /// Of a log line.
    #[serde(rename = "l")]
    pub(crate) level: u32,
    #[serde(rename = "n")]
    pub(crate) line: u64,
    #[serde(rename = "m")]
    pub(crate) text: String,
    #[serde(rename = "v")]
    pub(crate) value: Value,
    #[serde(flatten)]
    pub(crate) others: serde_json::Map<String, Value>,
    #[serde(rename = "i")]
    pub(crate) files: Vec<FileRow>,
}

/// Of a file: path, data type, shape, offset behind the message, bytes.
pub(crate) type FileRow = (String, u32, Vec<i64>, u64, u64);

impl CallText {
    pub(crate) fn kind(&self) -> &str {
        &self.kind
    }

    /// Of the request.
    pub(crate) fn flags(&self) -> &Value {
        &self.flags
    }
}

/// Answers a message with a text, or an error.
pub(crate) fn answer(process: &StubProcess, message: Reply<'_>, outcome: Result<Value, Error>) {
    let text = match outcome {
        Ok(value) => value,
        Err(error) => error_json(&error),
    };
    let reply = process.write(text.to_string().as_bytes(), 0);
    message.answer(reply.map_or(0, |(offset, _)| offset));
}

/// As the stub reads an error.
pub(crate) fn error_json(error: &Error) -> Value {
    json!({ "e": [error_number(error.code()), error.message()] })
}

/// The server's number of an error code.
pub(crate) fn error_number(code: Code) -> u32 {
    match code {
        Code::Unknown => 0,
        Code::Internal => 1,
        Code::NotFound => 2,
        Code::InvalidArgument => 3,
        Code::Unavailable => 4,
        Code::Unsupported => 5,
        Code::AlreadyExists => 6,
        Code::Cancelled => 7,
    }
}
