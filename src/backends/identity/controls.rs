//! Parameters by which a request of a test orders what shall happen to it. Only read where the
//! model's configuration allows it: a stranger must not be able to put a server's threads to sleep.

use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::{Code, Error, Parameter, Request};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controls {
    /// `delay_us`: the execution takes at least that long.
    pub delay: Duration,
    /// `error`: answer this request with this message, under the code `error_code` (`internal` if
    /// not given).
    pub error: Option<Error>,
    /// `execute_error`: fail the whole execution with this message, which leaves its requests to
    /// the server.
    pub execute_error: Option<String>,
    /// `panic`: panic while answering this request.
    pub panics: bool,
    /// `response_count`: how many responses a decoupled request gets.
    pub response_count: u64,
    /// `response_delay_us`: time between these.
    pub response_delay: Duration,
}

impl Default for Controls {
    fn default() -> Self {
        Controls {
            delay: Duration::ZERO,
            error: None,
            execute_error: None,
            panics: false,
            response_count: 1,
            response_delay: Duration::ZERO,
        }
    }
}

impl Controls {
    /// # Errors
    /// `InvalidArgument` if a known parameter has a value of the wrong kind. Unknown parameters are
    /// somebody else's.
    pub fn read(request: Request<'_>) -> Result<Self, Error> {
        let mut controls = Controls::default();
        let mut code = Code::Internal;
        let mut message = None;
        for index in 0..request.parameter_count()? {
            let (key, value) = request.parameter(index)?;
            match key.to_bytes() {
                b"delay_us" => controls.delay = microseconds(value)?,
                b"error" => message = Some(text(value)?),
                b"error_code" => code = error_code(&text(value)?)?,
                b"execute_error" => controls.execute_error = Some(text(value)?),
                b"panic" => controls.panics = value == Parameter::Boolean(true),
                b"response_count" => controls.response_count = count(value)?,
                b"response_delay_us" => controls.response_delay = microseconds(value)?,
                _ => {}
            }
        }
        controls.error = message.map(|message| Error::new(code, message));
        Ok(controls)
    }
}

fn count(value: Parameter<'_>) -> Result<u64, Error> {
    match value {
        Parameter::Integer(value) => u64::try_from(value).ok(),
        _ => None,
    }
    .ok_or_else(|| Error::invalid(format!("expected a count, got {value:?}")))
}

fn microseconds(value: Parameter<'_>) -> Result<Duration, Error> {
    count(value).map(Duration::from_micros)
}

fn text(value: Parameter<'_>) -> Result<String, Error> {
    match value {
        Parameter::Text(text) => Ok(text.to_string_lossy().into_owned()),
        _ => Err(Error::invalid(format!("expected text, got {value:?}"))),
    }
}

fn error_code(name: &str) -> Result<Code, Error> {
    Ok(match name {
        "unknown" => Code::Unknown,
        "internal" => Code::Internal,
        "not_found" => Code::NotFound,
        "invalid_argument" => Code::InvalidArgument,
        "unavailable" => Code::Unavailable,
        "unsupported" => Code::Unsupported,
        "already_exists" => Code::AlreadyExists,
        "cancelled" => Code::Cancelled,
        _ => return Err(Error::invalid(format!("unknown error code '{name}'"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_must_be_of_their_kind() {
        for (value, expected) in [
            (Parameter::Integer(5), Some(5)),
            (Parameter::Integer(0), Some(0)),
            (Parameter::Integer(-5), None),
            (Parameter::Text(c"5"), None),
            (Parameter::Boolean(true), None),
            (Parameter::Number(5.0), None),
        ] {
            assert_eq!(count(value).ok(), expected, "{value:?}");
        }
        assert_eq!(text(Parameter::Text(c"x")).ok().as_deref(), Some("x"));
        assert!(text(Parameter::Integer(1)).is_err());
    }

    #[test]
    fn every_code_has_a_name() {
        for (name, code) in [
            ("unknown", Code::Unknown),
            ("internal", Code::Internal),
            ("not_found", Code::NotFound),
            ("invalid_argument", Code::InvalidArgument),
            ("unavailable", Code::Unavailable),
            ("unsupported", Code::Unsupported),
            ("already_exists", Code::AlreadyExists),
            ("cancelled", Code::Cancelled),
        ] {
            assert_eq!(error_code(name), Ok(code));
        }
        assert!(error_code("INTERNAL").is_err());
    }
}
