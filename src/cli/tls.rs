//! The flags of TLS, which several listeners have.

use conch_engine::Error;
use conch_frontend::{TlsConfig, TlsFiles, TlsListener};

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
    pub fn load(&self, listener: TlsListener, is_served: bool) -> Result<Option<TlsConfig>, Error> {
        if !is_served || !self.is_enabled {
            return Ok(None);
        }
        TlsConfig::load(listener, &self.files, self.verifies_clients).map(Some)
    }

    /// Whether files are given of which none is used.
    pub fn has_unused_files(&self) -> bool {
        !self.is_enabled && self.files != TlsFiles::default()
    }
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
                },
            };
            assert_eq!(*place(&flags), expected, "{prefix}");
            let error = place(&flags).load(listener, true).unwrap_err();
            let named = format!("'c.pem' (--{prefix}-server-cert)");
            assert!(error.message.contains(&named), "{error}");
            assert!(matches!(place(&flags).load(listener, false), Ok(None)));
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
