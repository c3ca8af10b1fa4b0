//! The timeout that an HTTP client asks for: `--http-timeout-header`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use conch_engine::{Code, Error, clock};

use super::answer::{ContentType, HttpResponse};
use super::head::RequestHead;
use crate::shard::Timer;

/// The deadline, on our clock, that `head` sets in the header called `name`.
///
/// # Errors
/// INVALID_ARG unless the header's value is a whole number of milliseconds.
pub(super) fn deadline_of(
    head: &RequestHead<'_>,
    name: Option<&str>,
) -> Result<Option<u64>, Error> {
    let Some((name, value)) = name.and_then(|name| Some((name, head.find(name)?))) else {
        return Ok(None);
    };
    let timeout_ns = parse_ns(value).ok_or_else(|| {
        Error::invalid(format!(
            "Unable to parse {name}, expecting a whole number of milliseconds, got: {}",
            String::from_utf8_lossy(value)
        ))
    })?;
    Ok(Some(clock::monotonic_ns().saturating_add(timeout_ns)))
}

/// Digits only; what is beyond 2^64 ns (584 years) becomes `u64::MAX`.
fn parse_ns(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value
        .iter()
        .try_fold(0u64, |sum, byte| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            Some(sum.saturating_mul(10).saturating_add(digit))
        })
        .map(|milliseconds| milliseconds.saturating_mul(1_000_000))
}

pub(super) fn is_past(deadline_ns: Option<u64>) -> bool {
    deadline_ns.is_some_and(|deadline_ns| deadline_ns <= clock::monotonic_ns())
}

/// What a request that took too long is told.
pub(super) const EXCEEDED: &str = "Deadline Exceeded";

/// What a request that took too long is answered with.
pub(super) fn exceeded() -> HttpResponse {
    HttpResponse::failure(504, ContentType::Json, EXCEEDED)
}

/// What `future` yields, if it does in time; else it is dropped.
pub(super) async fn within<T>(
    deadline_ns: Option<u64>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let mut timer = deadline_ns.map(Timer::at);
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        match &mut timer {
            Some(timer) => Pin::new(timer).poll(context).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}

/// The answer to `error`, which came of the response: it is the deadline's own if that is why the
/// request was withdrawn.
pub(super) fn answer_of(error: &Error, deadline_ns: Option<u64>) -> HttpResponse {
    if error.code == Code::Cancelled && is_past(deadline_ns) {
        return exceeded();
    }
    HttpResponse::error(error, ContentType::Plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_milliseconds() {
        let table: &[(&str, Option<u64>)] = &[
            ("0", Some(0)),
            ("1", Some(1_000_000)),
            ("00250", Some(250_000_000)),
            ("99999999999999999999999999", Some(u64::MAX)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("1s", None),
            ("0x1", None),
            ("soon", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_ns(text.as_bytes()), *expected, "{text:?}");
        }
    }
}
