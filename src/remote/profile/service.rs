//! Requests to the services that hand out credentials: where they are, and how an answer is waited
//! for.

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::StatusCode;
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest};
use tokio::time::{sleep, timeout};
use url::Url;

use crate::credentials::CloudEnvironment;
use crate::http::Connector;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignedService {
    Sts,
    Sso,
    /// Renews the tokens of single sign-on.
    SsoOidc,
}

impl SignedService {
    /// The base of its URLs, without a slash at the end.
    ///
    /// # Errors
    /// If the region or the variable that stands in its place is none.
    pub(super) fn endpoint(
        self,
        region: &str,
        environment: &CloudEnvironment,
    ) -> Result<String, String> {
        let (variable, host) = match self {
            SignedService::Sts => ("AWS_ENDPOINT_URL_STS", "sts"),
            SignedService::Sso => ("AWS_ENDPOINT_URL_SSO", "portal.sso"),
            SignedService::SsoOidc => ("AWS_ENDPOINT_URL_SSO_OIDC", "oidc"),
        };
        for variable in [variable, "AWS_ENDPOINT_URL"] {
            let Some(text) = environment(variable).filter(|text| !text.is_empty()) else {
                continue;
            };
            let is_good = Url::parse(&text).is_ok_and(|url| {
                matches!(url.scheme(), "http" | "https")
                    && url.has_host()
                    && url.query().is_none()
                    && url.fragment().is_none()
                    && url.username().is_empty()
            });
            if !is_good {
                return Err(format!("{variable} is no URL of a service"));
            }
            return Ok(text.trim_end_matches('/').to_owned());
        }
        let is_region =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if region.is_empty() || !region.bytes().all(is_region) {
            return Err(format!("'{region}' is no region"));
        }
        let domain = match region {
            _ if region.starts_with("cn-") => "amazonaws.com.cn",
            _ if region.starts_with("us-iso-") => "c2s.ic.gov",
            _ if region.starts_with("us-isob-") => "sc2s.sgov.gov",
            _ => "amazonaws.com",
        };
        Ok(format!("https://{host}.{region}.{domain}"))
    }
}

/// The answer to a request, asked for again where that may help.
///
/// # Errors
/// Why there is none.
pub(super) async fn ask(
    connector: &Connector,
    request: &HttpRequest,
) -> Result<(StatusCode, Bytes), String> {
    let is_plain = request.uri().scheme_str() == Some("http");
    let options = ClientOptions::new().with_allow_http(is_plain);
    let client = connector
        .connect(&options)
        .map_err(|error| error.to_string())?;
    let host = request.uri().host().unwrap_or_default().to_owned();
    let asking = async {
        for pause in PAUSES {
            match answer(&client, request.clone()).await {
                Ok((status, body)) if !is_passing(status) => return Ok((status, body)),
                Ok(_) | Err(_) => sleep(pause).await,
            }
        }
        answer(&client, request.clone()).await
    };
    match timeout(ANSWER_TIMEOUT, asking).await {
        Ok(answered) => answered.map_err(|why| format!("{host} cannot be asked: {why}")),
        Err(_) => {
            let seconds = ANSWER_TIMEOUT.as_secs();
            Err(format!("no answer of {host} within {seconds} s"))
        }
    }
}

async fn answer(client: &HttpClient, request: HttpRequest) -> Result<(StatusCode, Bytes), String> {
    let told = |error: HttpError| match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    let (head, body) = client.execute(request).await.map_err(told)?.into_parts();
    let mut contents = Vec::new();
    let mut pieces = body.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(told)?;
        if contents.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(format!("an answer of more than {ANSWER_BYTES_MAX} bytes"));
        }
        contents.extend_from_slice(&piece);
    }
    Ok((head.status, contents.into()))
}

fn is_passing(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// What a service says of an error, as it may stand in a log line.
pub(super) fn excerpt(text: &str) -> String {
    let is_plain = |character: &char| !character.is_control();
    text.chars()
        .filter(is_plain)
        .take(EXCERPT_CHARS_MAX)
        .collect()
}

/// With all attempts; each has the bounds of any other request to a store.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Between the attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// Answers have some 2 KiB, with long session tokens 8.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const EXCERPT_CHARS_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = &'static [(&'static str, &'static str)];

    const ENDPOINTS: [(SignedService, &str, Pairs, Result<&str, &str>); 12] = [
        (
            SignedService::Sts,
            "eu-west-1",
            &[],
            Ok("https://sts.eu-west-1.amazonaws.com"),
        ),
        (
            SignedService::Sso,
            "us-east-1",
            &[],
            Ok("https://portal.sso.us-east-1.amazonaws.com"),
        ),
        (
            SignedService::SsoOidc,
            "us-east-1",
            &[],
            Ok("https://oidc.us-east-1.amazonaws.com"),
        ),
        (
            SignedService::Sts,
            "cn-north-1",
            &[],
            Ok("https://sts.cn-north-1.amazonaws.com.cn"),
        ),
        (
            SignedService::Sts,
            "us-iso-east-1",
            &[],
            Ok("https://sts.us-iso-east-1.c2s.ic.gov"),
        ),
        (
            SignedService::Sts,
            "us-isob-east-1",
            &[],
            Ok("https://sts.us-isob-east-1.sc2s.sgov.gov"),
        ),
        (
            SignedService::Sts,
            "r",
            &[
                ("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1/"),
                ("AWS_ENDPOINT_URL", "http://b"),
            ],
            Ok("http://127.0.0.1:1"),
        ),
        (
            SignedService::Sso,
            "r",
            &[
                ("AWS_ENDPOINT_URL_STS", "http://a"),
                ("AWS_ENDPOINT_URL", "http://b/c"),
            ],
            Ok("http://b/c"),
        ),
        (
            SignedService::Sts,
            "x.evil/",
            &[],
            Err("'x.evil/' is no region"),
        ),
        (SignedService::Sts, "", &[], Err("'' is no region")),
        (
            SignedService::Sts,
            "r",
            &[("AWS_ENDPOINT_URL_STS", "sts")],
            Err("AWS_ENDPOINT_URL_STS is no URL of a service"),
        ),
        (
            SignedService::Sts,
            "r",
            &[("AWS_ENDPOINT_URL", "ftp://a")],
            Err("AWS_ENDPOINT_URL is no URL of a service"),
        ),
    ];

    #[test]
    fn endpoints() {
        for (service, region, variables, expected) in ENDPOINTS {
            let environment = move |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let got = service.endpoint(region, &environment);
            let got = got.as_deref().map_err(String::as_str);
            assert_eq!(got, expected, "{service:?} {region} {variables:?}");
        }
    }

    #[test]
    fn excerpts_are_one_short_line() {
        assert_eq!(excerpt("a\nb\u{7}c"), "abc");
        assert_eq!(excerpt(&"ü".repeat(600)).chars().count(), 500);
    }
}
