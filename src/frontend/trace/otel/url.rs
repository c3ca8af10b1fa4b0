//! The address of a collector: `http://<host>[:<port>][/<path>]`.

use std::fmt;

/// Where spans are posted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl {
    /// A name or an address; of one of version 6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// With a query, if there is one.
    pub(super) path: String,
    text: String,
}

/// Upstream's.
const DEFAULT: &str = "http://localhost:4318/v1/traces";
const PORT_DEFAULT: u16 = 80;

impl CollectorUrl {
    /// Reads a URL. Without a scheme it is taken for `http`, as upstream does.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<CollectorUrl, String> {
        let refusal = |why: &str| Err(format!("invalid url of a collector: {text}: {why}"));
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refusal("it has characters that a URL must not have");
        }
        let rest = match text.split_once("://") {
            None => text,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => {
                return refusal(
                    "conch sends spans in plain text only; name a collector on this machine or in \
                     its network, which can pass them on by https",
                );
            }
            Some(_) => return refusal("its scheme must be http"),
        };
        let rest = rest.split('#').next().unwrap_or("");
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return refusal("it must not have a user");
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, port)) => (host, port),
                None => return refusal("a bracket is not closed"),
            },
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => Some(PORT_DEFAULT),
            None => None,
            Some(digits) => digits.parse().ok().filter(|port| *port != 0),
        };
        let Some(port) = port else {
            return refusal("its port is none");
        };
        if host.is_empty() {
            return refusal("it has no host");
        }
        Ok(CollectorUrl {
            host: host.to_owned(),
            port,
            path: match path.starts_with('/') {
                true => path.to_owned(),
                false => format!("/{path}"),
            },
            text: text.to_owned(),
        })
    }

    /// For the header `Host`.
    pub(super) fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match self.port {
            PORT_DEFAULT => host,
            port => format!("{host}:{port}"),
        }
    }
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
        for (text, host, port, path, authority) in [
            (DEFAULT, "localhost", 4318, "/v1/traces", "localhost:4318"),
            ("http://h", "h", 80, "/", "h"),
            ("HTTP://h:80/", "h", 80, "/", "h"),
            ("h:9/x?a=b", "h", 9, "/x?a=b", "h:9"),
            ("http://h?a=b", "h", 80, "/?a=b", "h"),
            ("http://h/a#b", "h", 80, "/a", "h"),
            ("http://[::1]:65535/a", "::1", 65535, "/a", "[::1]:65535"),
            ("http://[::1]", "::1", 80, "/", "[::1]"),
            ("http://h/a@b:c", "h", 80, "/a@b:c", "h"),
        ] {
            let url = CollectorUrl::parse(text).unwrap();
            let parts = (&*url.host, url.port, &*url.path, &*url.authority());
            assert_eq!(parts, (host, port, path, authority), "{text}");
            assert_eq!(url.to_string(), text);
        }
    }

    #[test]
    fn refusals() {
        for (text, expected) in [
            ("", "no host"),
            ("http://", "no host"),
            ("http:///v1/traces", "no host"),
            ("https://h/v1/traces", "plain text"),
            ("ftp://h", "scheme must be http"),
            ("http://user:secret@h", "must not have a user"),
            ("http://h:", "port"),
            ("http://h:0", "port"),
            ("http://h:65536", "port"),
            ("http://h:x", "port"),
            ("http://[::1", "bracket"),
            ("http://[::1]4318", "port"),
            ("http://h/\r\nX: y", "characters"),
            ("http://h/ ", "characters"),
        ] {
            let refused = CollectorUrl::parse(text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
