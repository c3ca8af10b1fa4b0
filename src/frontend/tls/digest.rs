//! SHA-256, of which rustls has one anyway.

use rustls::SupportedCipherSuite;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

/// The SHA-256 of `bytes`.
///
/// # Panics
/// If the suite that is named for it has no such hash.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256 else {
        unreachable!("its name says so");
    };
    let hash = suite.common.hash_provider.hash(bytes);
    hash.as_ref()
        .try_into()
        .expect("32 bytes, as its name says")
}
