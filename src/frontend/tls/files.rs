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
use super::listener::TlsListener;
use super::stamp::FileStamps;
use super::version_one::ClientVerifier;

/// Paths of PEM files; empty where none is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's own certificate, then those that vouch for it.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Those that vouch for clients.
    pub roots: PathBuf,
}

impl TlsFiles {
    /// How the files are at present.
    pub(super) fn stamps(&self) -> FileStamps {
        FileStamps::of([&self.certificate, &self.key, &self.roots])
    }
}

impl TlsConfig {
    /// Reads `files` for `listener`. With `verifies_clients` only clients are served whose
    /// certificate the roots vouch for.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a file that is missing, unreadable or of no use, with its path and
    /// flag.
    pub fn load(
        listener: TlsListener,
        files: &TlsFiles,
        verifies_clients: bool,
    ) -> Result<TlsConfig, Error> {
        let stamps = files.stamps();
        let provider = Arc::new(ring::default_provider());
        let own = own_certificate(listener, files, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|cause| Error::internal(format!("cannot set up TLS: {cause}")))?;
        let builder = if verifies_clients {
            let named = NamedFile::new(listener, &files.roots, listener.roots_flag());
            let roots = Arc::new(roots(&named)?);
            let algorithms = provider.signature_verification_algorithms;
            let others =
                WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider).build();
            let verifier = ClientVerifier {
                others: others.map_err(|cause| named.useless(&cause.to_string()))?,
                roots,
                algorithms,
            };
            builder.with_client_cert_verifier(Arc::new(verifier))
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        let protocols = listener.protocols().iter();
        config.alpn_protocols = protocols.map(|protocol| protocol.to_vec()).collect();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsConfig {
            listener,
            stamps,
            config: Arc::new(ArcSwap::from_pointee(config)),
        })
    }
}

/// A file, and what messages say of it.
struct NamedFile<'a> {
    service: &'static str,
    path: &'a Path,
    flag: &'static str,
}

impl<'a> NamedFile<'a> {
    fn new(listener: TlsListener, path: &'a Path, flag: &'static str) -> NamedFile<'a> {
        NamedFile {
            service: listener.service(),
            path,
            flag,
        }
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        if self.path.as_os_str().is_empty() {
            let (service, flag) = (self.service, self.flag);
            let reason = format!("{service} cannot be served over TLS: {flag} is not given");
            return Err(Error::invalid(reason));
        }
        conch_config::files::read(self.path).map_err(|cause| self.useless(&cause.to_string()))
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let text = self.read()?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let found = found.map_err(|cause| self.useless(&cause.to_string()))?;
        if found.is_empty() {
            return Err(self.useless("it holds no certificate in PEM"));
        }
        Ok(found)
    }

    fn useless(&self, reason: &str) -> Error {
        let NamedFile {
            service,
            path,
            flag,
        } = self;
        let path = path.display();
        Error::invalid(format!(
            "{service} cannot be served over TLS with '{path}' ({flag}): {reason}"
        ))
    }
}

fn own_certificate(
    listener: TlsListener,
    files: &TlsFiles,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Error> {
    let certificate = NamedFile::new(listener, &files.certificate, listener.certificate_flag());
    let key_file = NamedFile::new(listener, &files.key, listener.key_flag());
    let chain = certificate.certificates()?;
    let text = key_file.read()?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|cause| match cause {
        pem::Error::NoItemsFound => {
            key_file.useless("it holds no private key in PEM, or only an encrypted one")
        }
        cause => key_file.useless(&cause.to_string()),
    })?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|cause| key_file.useless(&cause.to_string()))?;
    let own = CertifiedKey::new(chain, key);
    match own.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(key_file
            .useless(&format!(
                "it is not the key of the certificate in '{}' ({})",
                certificate.path.display(),
                certificate.flag
            ))),
        Err(rustls::Error::InvalidCertificate(cause @ CertificateError::BadEncoding)) => {
            Err(certificate.useless(&cause.to_string()))
        }
        // Certificates of version 1, among others, are beyond this check; whether they will do is
        // for clients to say.
        Ok(()) | Err(_) => Ok(own),
    }
}

fn roots(file: &NamedFile<'_>) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for certificate in file.certificates()? {
        store
            .add(certificate)
            .map_err(|cause| file.useless(&cause.to_string()))?;
    }
    Ok(store)
}
