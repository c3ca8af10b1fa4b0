//! The address of a collector: `http://<host>[:<port>][/<path>]`, or `https`.

use std::fmt;

use http::Uri;
use http::uri::{Authority, Scheme};

/// Where spans are posted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl {
    pub(super) uri: Uri,
    text: String,
}

/// Upstream's.
const DEFAULT: &str = "http://localhost:4318/v1/traces";

impl CollectorUrl {
    /// Reads a URL. Without a scheme it is taken for `http`, as upstream does.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<CollectorUrl, String> {
        let absolute = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        let address = absolute.split('#').next().unwrap_or_default();
        let has_user = |authority: &Authority| authority.as_str().contains('@');
        let refusal = |why: &str| Err(format!("invalid url of a collector: {text}: {why}"));
        match address.parse::<Uri>() {
            Err(cause) => refusal(&cause.to_string()),
            Ok(uri) if !is_known(uri.scheme()) => refusal("its scheme must be http or https"),
            // Not repeated: it holds a password.
            Ok(uri) if uri.authority().is_some_and(has_user) => Err(String::from(
                "invalid url of a collector: it must not have a user; headers go into \
                 OTEL_EXPORTER_OTLP_HEADERS",
            )),
            Ok(uri) if uri.host().is_none_or(str::is_empty) => refusal("it has no host"),
            Ok(uri) if !has_valid_port(&uri) => refusal("its port is none"),
            Ok(uri) => Ok(CollectorUrl {
                uri,
                text: text.to_owned(),
            }),
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }
}

fn is_known(scheme: Option<&Scheme>) -> bool {
    [Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&scheme)
}

/// Whether there is no port, or one that can be connected to.
fn has_valid_port(uri: &Uri) -> bool {
    let (Some(authority), Some(host)) = (uri.authority(), uri.host()) else {
        return false;
    };
    let rest = authority.as_str().strip_prefix(host);
    rest == Some("") || uri.port_u16().is_some_and(|port| port != 0)
}

impl Default for CollectorUrl {
    fn default() -> CollectorUrl {
        CollectorUrl::parse(DEFAULT).expect("the default is a URL")
    }
}

/// As it was given.
impl fmt::Display for CollectorUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (text, expected) in [
            (DEFAULT, "http://localhost:4318/v1/traces"),
            ("http://h", "http://h/"),
            ("HTTP://h:80/", "http://h:80/"),
            ("https://h:4318/v1/traces", "https://h:4318/v1/traces"),
            ("h:9/x?a=b", "http://h:9/x?a=b"),
            ("http://h?a=b", "http://h/?a=b"),
            ("http://h/a#b", "http://h/a"),
            ("http://[::1]:65535/a", "http://[::1]:65535/a"),
            ("http://[::1]", "http://[::1]/"),
            ("http://h/a@b:c", "http://h/a@b:c"),
        ] {
            let url = CollectorUrl::parse(text).unwrap();
            assert_eq!(url.uri.to_string(), expected, "{text}");
            assert_eq!(url.to_string(), text);
            assert_eq!(url.is_encrypted(), text.starts_with("https"), "{text}");
        }
    }

    #[test]
    fn refusals() {
        for text in [
            "",
            "http://",
            "http:///v1/traces",
            "ftp://h",
            "http://h:",
            "http://h:0",
            "http://h:65536",
            "http://h:x",
            "http://[::1",
            "http://[::1]4318",
            "http://h/\r\nX: y",
            "http://h/ ",
        ] {
            let refused = CollectorUrl::parse(text).unwrap_err();
            let head = format!("invalid url of a collector: {text}: ");
            assert!(refused.starts_with(&head), "{text}: {refused}");
        }
        let refused = CollectorUrl::parse("http://user:secret@h").unwrap_err();
        assert!(
            refused.contains("must not have a user") && !refused.contains("secret"),
            "{refused}"
        );
    }
}
