//! Client certificates of X.509 version 1, which rustls and webpki refuse and upstream accepts.
//!
//! Such a certificate has no extensions, so nothing keeps its holder from signing others. It is
//! taken from a client only if one of the configured roots signed it directly; it never vouches for
//! another certificate. Everything else is left to webpki.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

/// Verifies clients by the roots: certificates of version 1 here, others by `others`.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    pub(super) others: Arc<dyn ClientCertVerifier>,
    pub(super) roots: Arc<RootCertStore>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.others.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match CertificateV1::read(end_entity) {
            Some(certificate) => {
                certificate.check(&self.roots.roots, &self.algorithms, now)?;
                Ok(ClientCertVerified::assertion())
            }
            None => self
                .others
                .verify_client_cert(end_entity, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(certificate) = CertificateV1::read(cert) else {
            return self.others.verify_tls12_signature(message, cert, dss);
        };
        let key = PublicKey::read(certificate.key).ok_or(CertificateError::BadEncoding)?;
        let mapping = self.algorithms.mapping.iter();
        let candidates = mapping.filter(|(scheme, _)| *scheme == dss.scheme);
        let is_signed = candidates
            .flat_map(|(_, candidates)| *candidates)
            .any(|candidate| {
                *candidate.public_key_alg_id() == *key.algorithm
                    && candidate
                        .verify_signature(key.bits, message, dss.signature())
                        .is_ok()
            });
        if is_signed {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match CertificateV1::read(cert) {
            Some(certificate) => {
                let key = SubjectPublicKeyInfoDer::from(certificate.whole_key);
                verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
            }
            None => self.others.verify_tls13_signature(message, cert, dss),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.others.supported_verify_schemes()
    }
}

/// What counts in a certificate of version 1 (RFC 5280, 4.1). Contents come without tag and length
/// unless they are called whole.
#[derive(Debug)]
struct CertificateV1<'c> {
    whole_signed: &'c [u8],
    issuer: &'c [u8],
    not_before: u64,
    not_after: u64,
    key: &'c [u8],
    whole_key: &'c [u8],
    algorithm: &'c [u8],
    signature: &'c [u8],
}

impl<'c> CertificateV1<'c> {
    /// None for anything but a well-formed certificate of version 1. It is told by what is absent:
    /// later versions begin with their number.
    fn read(certificate: &'c [u8]) -> Option<CertificateV1<'c>> {
        let mut outer = DerReader(DerReader(certificate).only(SEQUENCE)?);
        let (whole_signed, signed) = outer.next(SEQUENCE)?;
        let (_, algorithm) = outer.next(SEQUENCE)?;
        let signature = bits(outer.only(BIT_STRING)?)?;

        let mut signed = DerReader(signed);
        let _serial = signed.next(INTEGER)?;
        let (_, signed_algorithm) = signed.next(SEQUENCE)?;
        let (_, issuer) = signed.next(SEQUENCE)?;
        let mut validity = DerReader(signed.next(SEQUENCE)?.1);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let _subject = signed.next(SEQUENCE)?;
        let (whole_key, key) = signed.next(SEQUENCE)?;
        let is_over = validity.0.is_empty() && signed.0.is_empty();
        (is_over && signed_algorithm == algorithm).then_some(CertificateV1 {
            whole_signed,
            issuer,
            not_before,
            not_after,
            key,
            whole_key,
            algorithm,
            signature,
        })
    }

    /// # Errors
    /// None of `roots` signed it, or it is not valid at this time.
    fn check(
        &self,
        roots: &[TrustAnchor<'_>],
        algorithms: &WebPkiSupportedAlgorithms,
        now: UnixTime,
    ) -> Result<(), CertificateError> {
        // Constraints speak of names that this version cannot have.
        let issuers = roots
            .iter()
            .filter(|root| root.subject.as_ref() == self.issuer && root.name_constraints.is_none());
        let mut error = CertificateError::UnknownIssuer;
        for issuer in issuers {
            let Some(key) = PublicKey::read(issuer.subject_public_key_info.as_ref()) else {
                continue;
            };
            let is_signed = algorithms.all.iter().any(|algorithm| {
                *algorithm.signature_alg_id() == *self.algorithm
                    && *algorithm.public_key_alg_id() == *key.algorithm
                    && algorithm
                        .verify_signature(key.bits, self.whole_signed, self.signature)
                        .is_ok()
            });
            if is_signed {
                return match now.as_secs() {
                    now if now < self.not_before => Err(CertificateError::NotValidYet),
                    now if now > self.not_after => Err(CertificateError::Expired),
                    _ => Ok(()),
                };
            }
            error = CertificateError::BadSignature;
        }
        Err(error)
    }
}

/// The contents of a SubjectPublicKeyInfo.
struct PublicKey<'k> {
    algorithm: &'k [u8],
    bits: &'k [u8],
}

impl<'k> PublicKey<'k> {
    fn read(contents: &'k [u8]) -> Option<PublicKey<'k>> {
        let mut reader = DerReader(contents);
        let (_, algorithm) = reader.next(SEQUENCE)?;
        let bits = bits(reader.only(BIT_STRING)?)?;
        Some(PublicKey { algorithm, bits })
    }
}

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;

/// Whole bytes of a BIT STRING.
fn bits(contents: &[u8]) -> Option<&[u8]> {
    contents.strip_prefix(&[0])
}

/// Values in DER, one after the other.
struct DerReader<'d>(&'d [u8]);

impl<'d> DerReader<'d> {
    /// The next value, which has this tag: with tag and length, and without. Longer than 64 KiB
    /// none can be in a handshake.
    fn next(&mut self, tag: u8) -> Option<(&'d [u8], &'d [u8])> {
        let (length, head) = match *self.0 {
            [first, length, ..] if first == tag && length < 0x80 => (usize::from(length), 2),
            [first, 0x81, length, ..] if first == tag && length >= 0x80 => (usize::from(length), 3),
            [first, 0x82, high, low, ..] if first == tag && high > 0 => {
                (usize::from(u16::from_be_bytes([high, low])), 4)
            }
            _ => return None,
        };
        let (whole, rest) = self.0.split_at_checked(head + length)?;
        self.0 = rest;
        Some((whole, whole.get(head..)?))
    }

    /// The contents of the next value, behind which there is nothing.
    fn only(&mut self, tag: u8) -> Option<&'d [u8]> {
        let (_, contents) = self.next(tag)?;
        self.0.is_empty().then_some(contents)
    }

    /// A time, in seconds since 1970.
    fn time(&mut self) -> Option<u64> {
        let (years, text) = match self.next(UTC_TIME) {
            // RFC 5280, 4.1.2.5.1: 50 is 1950.
            Some((_, text)) => {
                let (year, rest) = text.split_at_checked(2)?;
                let year = number(year)?;
                (year + if year < 50 { 2000 } else { 1900 }, rest)
            }
            None => {
                let (_, text) = self.next(GENERALIZED_TIME)?;
                let (year, rest) = text.split_at_checked(4)?;
                (number(year)?, rest)
            }
        };
        let digits: &[u8; 10] = text.strip_suffix(b"Z")?.try_into().ok()?;
        let (fields, _) = digits.as_chunks::<2>();
        let mut fields = fields.iter().map(|field| number(field));
        let mut field = || fields.next().flatten();
        let (month, day) = (field()?, field()?);
        let (hour, minute, second) = (field()?, field()?, field()?);
        let is_time = hour < 24 && minute < 60 && second < 60;
        let days = days_since_1970(years, month, day)?;
        is_time.then_some(days * 86_400 + hour * 3_600 + minute * 60 + second)
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        Some(number * 10 + u64::from(digit))
    })
}

/// None before 1970, and for days that there are not.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let february = if is_leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = usize::try_from(month.checked_sub(1)?).ok()?;
    let length = *months.get(before)?;
    if !(1..=length).contains(&day) {
        return None;
    }
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let years = year.checked_sub(1970)?;
    let whole_years = years * 365 + leap_days(year - 1) - leap_days(1969);
    Some(whole_years + months.iter().take(before).sum::<u64>() + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = u8::try_from(contents.len()).unwrap();
        match length {
            0..0x80 => [&[tag, length], contents].concat(),
            _ => [&[tag, 0x81, length], contents].concat(),
        }
    }

    /// A certificate without a proper signature, `more` at the end of what is signed.
    fn certificate(version: &[u8], more: &[u8]) -> Vec<u8> {
        let algorithm = value(SEQUENCE, b"a");
        let validity = [
            value(UTC_TIME, b"700101000010Z"),
            value(GENERALIZED_TIME, b"20700101000000Z"),
        ];
        let key = [value(SEQUENCE, b"k"), value(BIT_STRING, b"\0bits")].concat();
        let signed = [
            version,
            &value(INTEGER, b"1"),
            &algorithm,
            &value(SEQUENCE, b"issuer"),
            &value(SEQUENCE, &validity.concat()),
            &value(SEQUENCE, b"subject"),
            &value(SEQUENCE, &key),
            more,
        ];
        let signed = value(SEQUENCE, &signed.concat());
        let outer = [&*signed, &algorithm, &value(BIT_STRING, b"\0signature")];
        value(SEQUENCE, &outer.concat())
    }

    #[test]
    fn reads_version_one_and_nothing_else() {
        let bytes = certificate(b"", b"");
        let read = CertificateV1::read(&bytes).unwrap();
        assert_eq!(
            (read.issuer, read.signature),
            (&b"issuer"[..], &b"signature"[..])
        );
        assert_eq!((read.not_before, read.not_after), (10, 3_155_760_000));
        let key = PublicKey::read(read.key).unwrap();
        assert_eq!((key.algorithm, key.bits), (&b"k"[..], &b"bits"[..]));
        // A version number, unique ids or extensions, and bytes behind the end.
        for bytes in [
            certificate(&value(0xa0, &value(INTEGER, b"\x02")), b""),
            certificate(b"", &value(0xa3, b"extensions")),
            [&*bytes, b"x"].concat(),
        ] {
            assert!(CertificateV1::read(&bytes).is_none());
        }
        // No prefix and no single wrong byte makes it read beyond the end; most are refused.
        for end in 0..bytes.len() {
            assert!(CertificateV1::read(&bytes[..end]).is_none());
        }
        for place in 0..bytes.len() {
            for flip in 1..=255_u8 {
                let mut wrong = bytes.clone();
                wrong[place] ^= flip;
                if let Some(read) = CertificateV1::read(&wrong) {
                    assert!(read.whole_signed.len() < wrong.len());
                }
            }
        }
    }

    #[test]
    fn lengths_are_as_short_as_can_be() {
        for (bytes, expected) in [
            (&[SEQUENCE, 1, 7][..], Some(&[7][..])),
            (&[SEQUENCE, 0x81, 1, 7], None),
            (&[SEQUENCE, 0x82, 0, 1, 7], None),
            (&[SEQUENCE, 0x80, 7, 0, 0], None),
            (&[SEQUENCE, 0x84, 0xff, 0xff, 0xff, 0xff], None),
            (&[SEQUENCE, 2, 7], None),
            (&[SEQUENCE], None),
            (&[INTEGER, 1, 7], None),
        ] {
            assert_eq!(DerReader(bytes).only(SEQUENCE), expected, "{bytes:?}");
        }
    }

    #[test]
    fn times_are_seconds() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "000229000000Z", Some(951_782_400)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (GENERALIZED_TIME, "21000228235959Z", Some(4_107_542_399)),
            (GENERALIZED_TIME, "21000229000000Z", None),
            (UTC_TIME, "500101000000Z", None),
            (UTC_TIME, "010229000000Z", None),
            (UTC_TIME, "700001000000Z", None),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "700101240000Z", None),
            (UTC_TIME, "700101000000", None),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "70010100000xZ", None),
            (UTC_TIME, "", None),
        ] {
            let bytes = value(tag, text.as_bytes());
            assert_eq!(DerReader(&bytes).time(), expected, "{text}");
        }
    }
}
