//! Which certificate a client is shown, by the host name that it asks for (SNI).

use std::collections::HashMap;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use webpki::EndEntityCert;

/// The label that stands for any.
const WILDCARD: &str = "*.";

/// A host name, or all one label below one (`*.example.com`), in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPattern(Box<str>);

/// The certificates of a listener.
#[derive(Debug)]
pub(super) struct HostCertificates {
    /// For clients that ask for no name, or for one that has none of its own.
    default: Arc<CertifiedKey>,
    by_host: HashMap<HostPattern, Arc<CertifiedKey>>,
}

impl HostPattern {
    /// None for what is no host name.
    pub fn new(text: &str) -> Option<HostPattern> {
        let text = text.to_ascii_lowercase();
        let host = text.strip_prefix(WILDCARD).unwrap_or(&text);
        DnsName::try_from(host).ok()?;
        Some(HostPattern(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the certificate speaks for the host.
    pub(super) fn is_named_by(&self, certificate: &CertificateDer<'_>) -> bool {
        let host = match self.0.strip_prefix(WILDCARD) {
            Some(rest) => format!("any.{rest}"),
            None => self.0.to_string(),
        };
        let (Ok(name), Ok(certificate)) = (
            ServerName::try_from(host.as_str()),
            EndEntityCert::try_from(certificate),
        ) else {
            return false;
        };
        certificate.verify_is_valid_for_subject_name(&name).is_ok()
    }
}

impl HostCertificates {
    pub(super) fn new(
        default: CertifiedKey,
        by_host: HashMap<HostPattern, Arc<CertifiedKey>>,
    ) -> HostCertificates {
        HostCertificates {
            default: Arc::new(default),
            by_host,
        }
    }

    fn of(&self, host: &str) -> &Arc<CertifiedKey> {
        let host = host.to_ascii_lowercase();
        let exact = self.by_host.get(&HostPattern(host.as_str().into()));
        let found = exact.or_else(|| {
            let (_, rest) = host.split_once('.')?;
            let pattern = HostPattern(format!("{WILDCARD}{rest}").into());
            self.by_host.get(&pattern)
        });
        found.unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for HostCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(match hello.server_name() {
            Some(host) if !self.by_host.is_empty() => self.of(host),
            _ => &self.default,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, expected) in [
            ("example.com", Some("example.com")),
            ("Example.COM", Some("example.com")),
            ("*.example.com", Some("*.example.com")),
            ("localhost", Some("localhost")),
            ("", None),
            ("*", None),
            ("*.", None),
            ("a.*.b", None),
            ("a b", None),
            ("a..b", None),
        ] {
            let pattern = HostPattern::new(text);
            assert_eq!(
                pattern.as_ref().map(HostPattern::as_str),
                expected,
                "{text}"
            );
        }
    }
}
