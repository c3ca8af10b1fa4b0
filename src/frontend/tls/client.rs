//! TLS towards a collector of spans, which this server is a client of.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use conch_engine::Error;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Trusts servers that the certificates in the PEM file `roots` vouch for, or else those of the
/// system. Reads them.
///
/// # Errors
/// INVALID_ARGUMENT if there is none of use.
pub(crate) fn client_config(roots: Option<&Path>) -> Result<TlsConfig, Error> {
    let found = match roots {
        Some(file) => certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    if found.is_empty() {
        return Err(Error::invalid(
            "the collector cannot be reached by https: the system has no certificates that would \
             vouch for it; OTEL_EXPORTER_OTLP_CERTIFICATE may name a file with some",
        ));
    }
    let found = found
        .iter()
        .map(|found| Certificate::from_der(found).to_owned());
    let config = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::from(found));
    Ok(config.build())
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let useless = |cause: &dyn fmt::Display| {
        Error::invalid(format!(
            "the collector cannot be reached by https with the certificates of '{}': {cause}",
            file.display()
        ))
    };
    let text = conch_config::files::read(file).map_err(|cause| useless(&cause))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|cause| useless(&cause))?;
    match found.is_empty() {
        true => Err(useless(&"it holds no certificate in PEM")),
        false => Ok(found),
    }
}
