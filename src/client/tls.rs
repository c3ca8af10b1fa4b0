//! TLS towards a server; the only door to rustls.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::error::ClientError;

/// Trusts servers that the certificates in the PEM file `roots` vouch for, or else those of the
/// system. Reads them.
///
/// # Errors
/// There is none of use.
pub(crate) fn config(roots: Option<&Path>) -> Result<TlsConfig, ClientError> {
    let found = match roots {
        Some(file) => certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    if found.is_empty() {
        return Err(ClientError::Failed(String::from(
            "the system has no certificates that would vouch for a server; --ca-certificate names \
             a file with some",
        )));
    }
    let found = found
        .iter()
        .map(|found| Certificate::from_der(found).to_owned());
    let config = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::from(found));
    Ok(config.build())
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let failed = |cause: &dyn std::fmt::Display| {
        ClientError::Failed(format!("'{}': {cause}", file.display()))
    };
    let text = std::fs::read(file).map_err(|cause| failed(&cause))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|cause| failed(&cause))?;
    match found.is_empty() {
        true => Err(failed(&"it holds no certificate in PEM")),
        false => Ok(found),
    }
}
