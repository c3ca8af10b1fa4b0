//! Certificates and keys, from PEM files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use conch_engine::Error;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, InconsistentKeys, RootCertStore, ServerConfig};

use super::config::TlsConfig;
use super::listener::TlsListener;
use super::resolver::{HostCertificates, HostPattern};
use super::stamp::FileStamps;
use super::version_one::ClientVerifier;

/// What names the certificates of hosts, on all listeners.
const HOST_FLAG: &str = "--tls-host-cert";

/// Paths of PEM files; empty where none is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's own certificate, then those that vouch for it.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Those that vouch for clients.
    pub roots: PathBuf,
    /// Certificates for clients that ask for a host by its name.
    pub hosts: Vec<HostFiles>,
}

/// PEM files of the certificate for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFiles {
    pub host: HostPattern,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl TlsFiles {
    /// How the files are at present.
    pub(super) fn stamps(&self) -> FileStamps {
        let own = [&*self.certificate, &*self.key, &*self.roots];
        let hosts = self.hosts.iter();
        let of_hosts = hosts.flat_map(|files| [&*files.certificate, &*files.key]);
        FileStamps::of(own.into_iter().chain(of_hosts))
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
        let certificates = certificates(listener, files, &provider)?;
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
        let mut config = builder.with_cert_resolver(Arc::new(certificates));
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

/// All that clients may be shown.
fn certificates(
    listener: TlsListener,
    files: &TlsFiles,
    provider: &CryptoProvider,
) -> Result<HostCertificates, Error> {
    let own = certified_key(
        &NamedFile::new(listener, &files.certificate, listener.certificate_flag()),
        &NamedFile::new(listener, &files.key, listener.key_flag()),
        provider,
    )?;
    let mut by_host = HashMap::new();
    for files in &files.hosts {
        let certificate = NamedFile::new(listener, &files.certificate, HOST_FLAG);
        let key = NamedFile::new(listener, &files.key, HOST_FLAG);
        let pair = certified_key(&certificate, &key, provider)?;
        let host = &files.host;
        if !pair
            .cert
            .first()
            .is_some_and(|first| host.is_named_by(first))
        {
            let host = host.as_str();
            return Err(certificate.useless(&format!(
                "its subject alternative names do not include '{host}'"
            )));
        }
        if by_host.insert(host.clone(), Arc::new(pair)).is_some() {
            let host = host.as_str();
            return Err(certificate.useless(&format!("'{host}' has another certificate already")));
        }
    }
    Ok(HostCertificates::new(own, by_host))
}

/// The key of `key_file`, which is that of the first certificate.
fn certified_key(
    certificate: &NamedFile<'_>,
    key_file: &NamedFile<'_>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Error> {
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
