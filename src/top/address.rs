//! Where the server's metrics port is.

use std::fmt;
use std::path::PathBuf;

/// What is asked without an address.
const DEFAULT_HOST: &str = "localhost";
const DEFAULT_PORT: u16 = 8002;

/// A metrics listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopAddress {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Default for TopAddress {
    fn default() -> TopAddress {
        TopAddress::Tcp {
            host: DEFAULT_HOST.into(),
            port: DEFAULT_PORT,
        }
    }
}

impl TopAddress {
    /// Of `[http://]host[:port][/dashboard]` or `unix:<path>`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<TopAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err(format!("no path in '{text}'")),
                false => Ok(TopAddress::Unix(path.into())),
            };
        }
        let rest = match text.split_once("://") {
            None => text,
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(format!(
                    "'{scheme}' is not supported, http and unix: are: '{text}'"
                ));
            }
        };
        let authority = match rest.split_once('/') {
            None => rest,
            Some((authority, "" | "dashboard" | "dashboard/")) => authority,
            Some(_) => return Err(format!("the page of a server is at /dashboard: '{text}'")),
        };
        // An IPv6 address has colons of its own, in brackets.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (host, port.ok_or_else(|| format!("no port in '{text}'"))?)
            }
            _ => (authority, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_name = |character: char| !character.is_control() && !character.is_whitespace();
        if host.is_empty() || !host.chars().all(is_name) {
            return Err(format!("no host in '{text}'"));
        }
        Ok(TopAddress::Tcp {
            host: host.into(),
            port,
        })
    }

    /// The value of the header of that name.
    pub(crate) fn host_header(&self) -> String {
        match self {
            TopAddress::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            TopAddress::Tcp { host, port } => format!("{host}:{port}"),
            TopAddress::Unix(_) => DEFAULT_HOST.into(),
        }
    }
}

impl fmt::Display for TopAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopAddress::Tcp { .. } => write!(f, "http://{}", self.host_header()),
            TopAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port_or_a_path() {
        for (text, expected) in [
            ("localhost", Ok("http://localhost:8002")),
            ("10.0.0.7:9002", Ok("http://10.0.0.7:9002")),
            ("http://host", Ok("http://host:8002")),
            ("http://host:1/", Ok("http://host:1")),
            ("http://host:1/dashboard", Ok("http://host:1")),
            ("[::1]", Ok("http://[::1]:8002")),
            ("http://[::1]:5/dashboard/", Ok("http://[::1]:5")),
            ("unix:/tmp/a b", Ok("unix:/tmp/a b")),
            ("unix:", Err("no path in")),
            ("", Err("no host in")),
            ("a b", Err("no host in")),
            (":8002", Err("no host in")),
            ("host:port", Err("no port in")),
            ("host:0", Err("no port in")),
            ("host:65536", Err("no port in")),
            ("https://host", Err("'https' is not supported")),
            ("host/metrics", Err("at /dashboard")),
        ] {
            match (TopAddress::parse(text), expected) {
                (Ok(address), Ok(expected)) => assert_eq!(address.to_string(), expected),
                (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{reason}"),
                (outcome, _) => panic!("{text}: {outcome:?}"),
            }
        }
        assert_eq!(TopAddress::default().to_string(), "http://localhost:8002");
    }
}
