//! Requests to one server, one at a time.

mod unix;

use std::io::{self, Read};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use ureq::Agent;
use ureq::unversioned::resolver::DefaultResolver;

use crate::error::ClientError;
use crate::options::ConnectionOptions;
use crate::printable::printable;
use crate::tls;
use unix::UnixConnector;

/// Sends requests to a server.
pub(crate) struct ServerClient {
    agent: Agent,
    origin: String,
    /// As it was given.
    shown: String,
    headers: HeaderMap,
    timeout: Duration,
}

/// An answer whose body goes on for as long as the server sends.
pub struct StreamingResponse {
    pub status: http::StatusCode,
    /// Empty without one.
    pub content_type: String,
    pub body: Box<dyn Read + Send>,
}

/// Asks for `path`. The timeout of `options` is for the connection, for the head of the answer and
/// for each silence of its body, which is an error of kind `TimedOut` then.
///
/// # Errors
/// The network's, and OTHER for headers or certificates that are of no use.
pub fn open_stream(options: &ConnectionOptions, path: &str) -> io::Result<StreamingResponse> {
    let agent = agent(options).map_err(io::Error::other)?;
    let mut request = agent.get(format!("{}{path}", options.url.origin()));
    for (name, value) in &headers(&options.headers).map_err(io::Error::other)? {
        request = request.header(name, value);
    }
    let request = request
        .config()
        .timeout_connect(Some(options.timeout))
        .timeout_recv_response(Some(options.timeout))
        .timeout_per_read(Some(options.timeout))
        .build();
    let answer = request.call().map_err(|cause| match cause {
        ureq::Error::Timeout(_) => io::ErrorKind::TimedOut.into(),
        cause => cause.into_io(),
    })?;
    let content_type = answer.headers().get(http::header::CONTENT_TYPE);
    Ok(StreamingResponse {
        status: answer.status(),
        content_type: content_type
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
        body: Box::new(answer.into_body().into_reader()),
    })
}

fn agent(options: &ConnectionOptions) -> Result<Agent, ClientError> {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .user_agent(concat!("conch/", env!("CARGO_PKG_VERSION")));
    if options.url.is_encrypted() {
        config = config.tls_config(tls::config(options.ca_certificate.as_deref())?);
    }
    Ok(match options.url.socket() {
        Some(path) => {
            let connector = UnixConnector::new(path.clone());
            // A proxy of the environment cannot reach a socket of this machine.
            let config = config.proxy(None).build();
            Agent::with_parts(config, connector, DefaultResolver::default())
        }
        None => config.build().new_agent(),
    })
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct ServerAnswer {
    pub(crate) status: http::StatusCode,
    /// Length of the JSON in front of binary tensors, where there are any.
    pub(crate) json_bytes: Option<usize>,
    pub(crate) body: Vec<u8>,
}

impl ServerClient {
    /// # Errors
    /// Headers or certificates that are of no use.
    pub(crate) fn new(options: &ConnectionOptions) -> Result<ServerClient, ClientError> {
        Ok(ServerClient {
            agent: agent(options)?,
            origin: String::from(options.url.origin()),
            shown: options.url.shown(),
            headers: headers(&options.headers)?,
            timeout: options.timeout,
        })
    }

    /// # Errors
    /// The network's, with the address.
    pub(crate) fn get(&self, path: &str) -> Result<ServerAnswer, ClientError> {
        let mut request = self.agent.get(self.url(path));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.config().timeout_global(Some(self.timeout)).build();
        self.read(request.call())
    }

    /// Sends `body`, whose first `json_bytes` are JSON if tensors follow.
    ///
    /// # Errors
    /// As [`ServerClient::get`].
    pub(crate) fn post(
        &self,
        path: &str,
        json_bytes: Option<usize>,
        body: &[u8],
    ) -> Result<ServerAnswer, ClientError> {
        let mut request = self.agent.post(self.url(path));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request = match json_bytes {
            Some(count) => request
                .header(JSON_LENGTH, count.to_string())
                .header("content-type", "application/octet-stream"),
            None => request.header("content-type", "application/json"),
        };
        let request = request.config().timeout_global(Some(self.timeout)).build();
        self.read(request.send(body))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    fn read(
        &self,
        answer: Result<http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<ServerAnswer, ClientError> {
        let failed = |cause: ureq::Error| {
            let cause = match cause {
                ureq::Error::Timeout(_) => {
                    format!("no answer within {} s", self.timeout.as_secs_f64())
                }
                cause => cause.to_string(),
            };
            ClientError::Failed(format!("cannot ask {}: {cause}", self.shown))
        };
        let mut answer = answer.map_err(failed)?;
        let json_bytes = answer
            .headers()
            .get(JSON_LENGTH)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let body = answer.body_mut().with_config().limit(BODY_BYTES_MAX);
        Ok(ServerAnswer {
            json_bytes,
            body: body.read_to_vec().map_err(failed)?,
            status: answer.status(),
        })
    }
}

impl ServerAnswer {
    /// The answer, if it is a good one.
    ///
    /// # Errors
    /// The status and what the server says to it.
    pub(crate) fn good(self) -> Result<ServerAnswer, ClientError> {
        match self.status.is_success() {
            true => Ok(self),
            false => Err(ClientError::Failed(self.refusal())),
        }
    }

    /// The status, and what the server says to it.
    fn refusal(&self) -> String {
        let document: Option<Value> = serde_json::from_slice(&self.body).ok();
        let said = match document.as_ref().and_then(|document| document.get("error")) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::from_utf8_lossy(&self.body).into_owned(),
        };
        let mut said = said.trim().chars();
        let text: String = said.by_ref().take(REFUSAL_CHARACTERS_MAX).collect();
        let more = if said.next().is_some() { "..." } else { "" };
        let text = printable(&text);
        match text.is_empty() {
            true => format!("the server answered {}", self.status),
            false => format!("the server answered {}: {text}{more}", self.status),
        }
    }
}

fn headers(given: &[(String, String)]) -> Result<HeaderMap, ClientError> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let parsed = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
        let (Ok(name), Ok(mut value)) = parsed else {
            // Its value may be a password.
            return Err(ClientError::Usage(format!(
                "'{name}' cannot be a header, or not with its value"
            )));
        };
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

const JSON_LENGTH: &str = "inference-header-content-length";
/// An answer is held whole, and so may be no larger than what a machine can be expected to have.
const BODY_BYTES_MAX: u64 = 4 << 30;
/// A proxy may answer with a page.
const REFUSAL_CHARACTERS_MAX: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_the_server_says() {
        for (body, expected) in [
            (r#"{"error":"no such model"}"#, ": no such model"),
            (r#"{"error":{"code":3}}"#, r#": {"code":3}"#),
            ("<html>\u{1b}[31m", r": <html>\u{1b}[31m"),
            ("", ""),
        ] {
            let answer = ServerAnswer {
                status: http::StatusCode::NOT_FOUND,
                json_bytes: None,
                body: body.as_bytes().to_vec(),
            };
            let expected = format!("the server answered 404 Not Found{expected}");
            assert_eq!(answer.good().unwrap_err(), ClientError::Failed(expected));
        }
    }

    #[test]
    fn headers_that_cannot_be_sent_are_refused_without_their_values() {
        let error = headers(&[(String::from("x y"), String::from("secret"))]).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
