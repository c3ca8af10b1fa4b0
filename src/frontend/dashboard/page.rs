//! The answers about the page.

use crate::http::answer::{ContentType, HttpResponse};

/// Styles and script are within. Names of models come from those who may put models into a
/// repository: the page shows them as text, and what is not its own is kept from running.
static PAGE: &str = include_str!("page.html");

/// What a browser may do on behalf of the page: nothing but what it contains, and its events.
const POLICY: &str = "\r\nContent-Security-Policy: default-src 'none'; \
                      script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\
                      \r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\
                      \r\nCache-Control: no-cache";

pub(crate) fn page() -> HttpResponse {
    HttpResponse {
        more_headers: Some(POLICY.into()),
        ..HttpResponse::new(200, ContentType::Html, PAGE.as_bytes().to_vec())
    }
}

/// The head of the stream of events.
pub(crate) fn events_response() -> HttpResponse {
    HttpResponse {
        more_headers: Some("\r\nCache-Control: no-store".into()),
        ..HttpResponse::new(200, ContentType::Events, Vec::new())
    }
}

/// There are as many clients as may be.
pub(crate) fn events_refused() -> HttpResponse {
    HttpResponse::failure(503, ContentType::Json, "too many clients of the dashboard")
}

/// Nobody asked for a page.
pub(crate) fn page_off() -> HttpResponse {
    let message = "the dashboard is off: --dashboard has it served";
    HttpResponse::failure(404, ContentType::Json, message)
}
