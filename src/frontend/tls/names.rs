//! The names in the certificate that a client has shown.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// More are not looked at: each is compared for each request.
const NAMES_MAX: usize = 16;

/// The DNS names and URIs for which the certificate speaks, its subject alternative names, in its
/// order. The common name is none of them: what it means is not defined.
pub(super) fn of_certificate(certificate: &CertificateDer<'_>) -> Box<[Box<str>]> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else {
        return Box::default();
    };
    let dns = certificate.valid_dns_names();
    let names = dns.chain(certificate.valid_uri_names());
    names.take(NAMES_MAX).map(Box::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_has_no_names() {
        for bytes in [&b""[..], b"nonsense", &[0x30, 0x82, 0xff, 0xff]] {
            let found = of_certificate(&CertificateDer::from(bytes));
            assert!(found.is_empty(), "{bytes:?}");
        }
    }
}
