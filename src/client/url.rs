//! Where a server is.

use std::path::PathBuf;

use http::Uri;

/// Where a server is: `http://host:port`, `https://host:port`, `host:port` or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// What paths are appended to; no slash at its end.
    origin: String,
    socket: Option<PathBuf>,
    is_encrypted: bool,
    authority: String,
}

impl ServerUrl {
    /// # Errors
    /// What is wrong with `text`.
    pub fn parse(text: &str) -> Result<ServerUrl, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(format!("'{text}' is not unix:/PATH"));
            }
            return Ok(ServerUrl {
                origin: String::from("http://localhost"),
                socket: Some(PathBuf::from(path)),
                is_encrypted: false,
                authority: String::from("localhost"),
            });
        }
        let full = match text.contains("://") {
            true => String::from(text),
            false => format!("http://{text}"),
        };
        let bad = || format!("'{text}' is not http://HOST:PORT, https://HOST:PORT or unix:/PATH");
        let uri: Uri = full.parse().map_err(|_| bad())?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?.as_str();
        // A name and a password would be shown in errors; headers carry them.
        if authority.contains('@') || uri.query().is_some() || uri.host().is_none_or(str::is_empty)
        {
            return Err(bad());
        }
        Ok(ServerUrl {
            authority: String::from(authority),
            origin: String::from(full.trim_end_matches('/')),
            socket: None,
            is_encrypted,
        })
    }

    /// [`ServerUrl::parse`], with `port` where the text has none.
    ///
    /// # Errors
    /// What is wrong with `text`.
    pub fn parse_with_port(text: &str, port: u16) -> Result<ServerUrl, String> {
        let mut url = ServerUrl::parse(text)?;
        if url.socket.is_none() && !url.has_port() {
            let place = url.origin.find("://").map_or(0, |scheme| scheme + 3);
            url.origin
                .insert_str(place + url.authority.len(), &format!(":{port}"));
            url.authority = format!("{}:{port}", url.authority);
        }
        Ok(url)
    }

    /// Whether the address names a port, which follows the last colon, unless that is within an
    /// address of IPv6.
    pub(crate) fn has_port(&self) -> bool {
        let port = self.authority.rsplit_once(':').map(|(_, port)| port);
        port.is_some_and(|port| !port.contains(']'))
    }

    pub fn origin(&self) -> &str {
        &self.origin
    }

    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// The Unix socket in place of an address.
    pub fn socket(&self) -> Option<&PathBuf> {
        self.socket.as_ref()
    }

    /// Host and port, as a `Host` header has them.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// As it may be given on a command line.
    pub fn shown(&self) -> String {
        match &self.socket {
            Some(path) => format!("unix:{}", path.display()),
            None => self.origin.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers() {
        for (text, origin, is_encrypted, authority) in [
            ("http://h:8000", "http://h:8000", false, "h:8000"),
            ("h:8000", "http://h:8000", false, "h:8000"),
            ("https://h/", "https://h", true, "h"),
            ("http://[::1]:80/a/", "http://[::1]:80/a", false, "[::1]:80"),
        ] {
            let url = ServerUrl::parse(text).unwrap();
            assert_eq!(
                (url.origin(), url.is_encrypted(), url.authority()),
                (origin, is_encrypted, authority),
                "{text}"
            );
            assert_eq!(url.shown(), origin);
        }
        for (text, expected) in [
            ("h", "http://h:8002"),
            ("http://http/a", "http://http:8002/a"),
            ("https://h", "https://h:8002"),
            ("[::1]", "http://[::1]:8002"),
            ("h:1", "http://h:1"),
            ("unix:/run/s", "unix:/run/s"),
        ] {
            let url = ServerUrl::parse_with_port(text, 8002).unwrap();
            assert_eq!(url.shown(), expected);
            assert!(url.socket().is_some() || url.has_port());
        }
        let url = ServerUrl::parse("unix:/run/s").unwrap();
        assert_eq!(url.socket(), Some(&PathBuf::from("/run/s")));
        assert_eq!(url.shown(), "unix:/run/s");
        for text in [
            "",
            "unix:",
            "unix:run",
            "ftp://h",
            "http://",
            "http://u:p@h",
            "http://h?q",
            "a b",
        ] {
            assert!(ServerUrl::parse(text).is_err(), "{text}");
        }
    }
}
