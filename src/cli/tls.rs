//! The flags of TLS, which several listeners have.

use conch_engine::Error;
use conch_frontend::{HostFiles, HostPattern, TlsConfig, TlsFiles, TlsListener};

/// Whether a listener has TLS, and with which files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsFlags {
    pub is_enabled: bool,
    pub verifies_clients: bool,
    pub files: TlsFiles,
}

impl TlsFlags {
    /// Reads the files that TLS takes, if `listener` is served and over TLS.
    ///
    /// # Errors
    /// What is wrong with one of them, and which flag named it.
    pub fn load(
        &self,
        listener: TlsListener,
        hosts: &[HostFiles],
        is_served: bool,
    ) -> Result<Option<TlsConfig>, Error> {
        if !is_served || !self.is_enabled {
            return Ok(None);
        }
        let files = self.files_with(hosts);
        TlsConfig::load(listener, &files, self.verifies_clients).map(Some)
    }

    /// The files of the listener, and those of hosts, which all have.
    pub fn files_with(&self, hosts: &[HostFiles]) -> TlsFiles {
        TlsFiles {
            hosts: hosts.to_vec(),
            ..self.files.clone()
        }
    }

    /// Whether files are given of which none is used.
    pub fn has_unused_files(&self) -> bool {
        !self.is_enabled && self.files != TlsFiles::default()
    }
}

/// Reads `<host>:<certificate>:<key>`.
///
/// # Errors
/// What it is instead.
pub fn parse_host(text: &str) -> Result<HostFiles, String> {
    let mut parts = text.split(':');
    let (Some(host), Some(certificate), Some(key), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(format!(
            "option format is '<host>:<certificate>:<key>'. Got {text}"
        ));
    };
    if certificate.is_empty() || key.is_empty() {
        return Err(format!("a path is missing in {text}"));
    }
    Ok(HostFiles {
        host: HostPattern::new(host)
            .ok_or_else(|| format!("'{host}' is neither a host name nor '*.' and one"))?,
        certificate: certificate.into(),
        key: key.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arguments, lookup};

    fn set(words: &[(&str, &str)]) -> Arguments {
        let mut flags = Arguments::default();
        for (name, value) in words {
            let flag = lookup::find(name)
                .map_err(|_| lookup::unknown(name))
                .unwrap();
            flag.apply(&mut flags, value).unwrap();
        }
        flags
    }

    type Place = fn(&Arguments) -> &TlsFlags;

    #[test]
    fn each_flag_sets_its_own() {
        let places: [(&str, TlsListener, Place); 3] = [
            ("grpc", TlsListener::Grpc, |of| &of.grpc_tls),
            ("http", TlsListener::Http, |of| &of.http_tls),
            ("metrics", TlsListener::Metrics, |of| &of.metrics_tls),
        ];
        for (prefix, listener, place) in places {
            let name = |rest: &str| format!("{prefix}-{rest}");
            let flags = set(&[
                (&name("use-ssl-mutual"), "true"),
                (&name("server-cert"), "c.pem"),
                (&name("server-key"), "k.pem"),
                (&name("root-cert"), "r.pem"),
            ]);
            let expected = TlsFlags {
                is_enabled: true,
                verifies_clients: true,
                files: TlsFiles {
                    certificate: "c.pem".into(),
                    key: "k.pem".into(),
                    roots: "r.pem".into(),
                    hosts: Vec::new(),
                },
            };
            assert_eq!(*place(&flags), expected, "{prefix}");
            let error = place(&flags).load(listener, &[], true).unwrap_err();
            let named = format!("'c.pem' (--{prefix}-server-cert)");
            assert!(error.message.contains(&named), "{error}");
            assert!(matches!(place(&flags).load(listener, &[], false), Ok(None)));
            for (_, _, other) in places.iter().filter(|row| row.0 != prefix) {
                assert_eq!(*other(&flags), TlsFlags::default(), "{prefix}");
            }
        }
    }

    #[test]
    fn tls_and_its_verification_of_clients_are_separate() {
        for (words, expected) in [
            (&[("grpc-use-ssl", "true")][..], (true, false)),
            (&[("grpc-use-ssl", "false")], (false, false)),
            // As upstream, whatever the value.
            (&[("grpc-use-ssl-mutual", "false")], (true, false)),
        ] {
            let tls = set(words).grpc_tls;
            assert_eq!((tls.is_enabled, tls.verifies_clients), expected);
        }
        for (value, expected) in [("true", (true, true)), ("false", (false, false))] {
            let tls = set(&[("http-use-ssl-mutual", value)]).http_tls;
            assert_eq!((tls.is_enabled, tls.verifies_clients), expected);
            let tls = set(&[("metrics-use-ssl-mutual", value)]).metrics_tls;
            assert_eq!((tls.is_enabled, tls.verifies_clients), expected);
        }
    }

    #[test]
    fn certificates_of_hosts() {
        let host = |name: &str| HostFiles {
            host: HostPattern::new(name).unwrap(),
            certificate: "c.pem".into(),
            key: "k.pem".into(),
        };
        for (text, expected) in [
            ("A.example:c.pem:k.pem", Ok("a.example")),
            ("*.a.example:c.pem:k.pem", Ok("*.a.example")),
            ("a.example:c.pem", Err("option format is")),
            ("a.example:c.pem:k.pem:more", Err("option format is")),
            ("a.example::k.pem", Err("a path is missing")),
            ("a.example:c.pem:", Err("a path is missing")),
            ("a b:c.pem:k.pem", Err("'a b' is neither a host name nor")),
        ] {
            match (parse_host(text), expected) {
                (Ok(found), Ok(name)) => assert_eq!(found, host(name), "{text}"),
                (Err(reason), Err(words)) => assert!(reason.contains(words), "{text}: {reason}"),
                (found, expected) => panic!("{text}: {found:?}, {expected:?}"),
            }
        }
        let flags = set(&[
            ("tls-host-cert", "a.example:c.pem:k.pem"),
            ("tls-host-cert", "b.example:c.pem:k.pem"),
        ]);
        let files = flags.grpc_tls.files_with(&flags.tls_hosts);
        assert_eq!(files.hosts, [host("a.example"), host("b.example")]);
    }

    #[test]
    fn files_without_use_are_known() {
        for (words, expected) in [
            (&[][..], false),
            (&[("http-server-cert", "c")], true),
            (
                &[("http-server-cert", "c"), ("http-use-ssl", "true")],
                false,
            ),
        ] {
            assert_eq!(set(words).http_tls.has_unused_files(), expected);
        }
    }
}
