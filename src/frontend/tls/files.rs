//! Certificates and keys, from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use conch_engine::Error;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, InconsistentKeys, RootCertStore, ServerConfig};

use super::config::TlsConfig;
use super::version_one::ClientVerifier;

const CERTIFICATE: &str = "--grpc-server-cert";
const KEY: &str = "--grpc-server-key";
const ROOTS: &str = "--grpc-root-cert";
/// What gRPC speaks, by its name in the handshake.
pub(super) const HTTP2: &[u8] = b"h2";

/// Paths of PEM files; empty where none is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's own certificate, then those that vouch for it.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Those that vouch for clients.
    pub roots: PathBuf,
}

impl TlsConfig {
    /// Reads `files`. With `verifies_clients` only clients are served whose certificate the roots
    /// vouch for.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a file that is missing, unreadable or of no use, with its path and
    /// flag.
    pub fn load(files: &TlsFiles, verifies_clients: bool) -> Result<TlsConfig, Error> {
        let provider = Arc::new(ring::default_provider());
        let own = own_certificate(files, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|cause| Error::internal(format!("cannot set up TLS: {cause}")))?;
        let builder = if verifies_clients {
            let roots = Arc::new(roots(&files.roots)?);
            let algorithms = provider.signature_verification_algorithms;
            let others =
                WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider).build();
            let verifier = ClientVerifier {
                others: others.map_err(|cause| useless(&files.roots, ROOTS, &cause.to_string()))?,
                roots,
                algorithms,
            };
            builder.with_client_cert_verifier(Arc::new(verifier))
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        config.alpn_protocols = vec![HTTP2.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsConfig {
            config: Arc::new(ArcSwap::from_pointee(config)),
        })
    }
}

fn own_certificate(files: &TlsFiles, provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let chain = certificates(&files.certificate, CERTIFICATE)?;
    let text = read(&files.key, KEY)?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|cause| match cause {
        pem::Error::NoItemsFound => useless(
            &files.key,
            KEY,
            "it holds no private key in PEM, or only an encrypted one",
        ),
        cause => useless(&files.key, KEY, &cause.to_string()),
    })?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|cause| useless(&files.key, KEY, &cause.to_string()))?;
    let own = CertifiedKey::new(chain, key);
    match own.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            let reason = format!(
                "it is not the key of the certificate in '{}' ({CERTIFICATE})",
                files.certificate.display()
            );
            Err(useless(&files.key, KEY, &reason))
        }
        Err(rustls::Error::InvalidCertificate(cause @ CertificateError::BadEncoding)) => {
            Err(useless(&files.certificate, CERTIFICATE, &cause.to_string()))
        }
        // Certificates of version 1, among others, are beyond this check; whether they will do is
        // for clients to say.
        Ok(()) | Err(_) => Ok(own),
    }
}

fn roots(path: &Path) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path, ROOTS)? {
        store
            .add(certificate)
            .map_err(|cause| useless(path, ROOTS, &cause.to_string()))?;
    }
    Ok(store)
}

fn certificates(path: &Path, flag: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let text = read(path, flag)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|cause| useless(path, flag, &cause.to_string()))?;
    if found.is_empty() {
        return Err(useless(path, flag, "it holds no certificate in PEM"));
    }
    Ok(found)
}

fn read(path: &Path, flag: &str) -> Result<Vec<u8>, Error> {
    if path.as_os_str().is_empty() {
        let reason = format!("gRPC cannot be served over TLS: {flag} is not given");
        return Err(Error::invalid(reason));
    }
    conch_config::files::read(path).map_err(|cause| useless(path, flag, &cause.to_string()))
}

fn useless(path: &Path, flag: &str, reason: &str) -> Error {
    Error::invalid(format!(
        "gRPC cannot be served over TLS with '{}' ({flag}): {reason}",
        path.display()
    ))
}
