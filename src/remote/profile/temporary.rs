//! Credentials that end: how they are checked, and how long they are used before others are asked
//! for.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Utc};
use object_store::aws::AwsCredential;

use crate::credentials::is_sendable;
use crate::no_credentials::NoCredentials;

/// Credentials as a service, a program or a file gave them.
#[derive(Debug)]
pub(super) struct TemporaryCredential {
    pub(super) credential: AwsCredential,
    /// None if they do not say.
    pub(super) expires: Option<SystemTime>,
}

impl TemporaryCredential {
    /// # Errors
    /// What is wrong with them, without the values.
    pub(super) fn new(
        credential: AwsCredential,
        expires: Option<SystemTime>,
    ) -> Result<TemporaryCredential, String> {
        let token = credential.token.as_deref().unwrap_or_default();
        if credential.key_id.is_empty() || credential.secret_key.is_empty() {
            return Err("there is no access key in the answer".to_owned());
        }
        if !is_sendable(&credential.key_id) || !is_sendable(token) {
            return Err(
                "the access key or the session token has characters that cannot be sent".to_owned(),
            );
        }
        Ok(TemporaryCredential {
            credential,
            expires,
        })
    }
}

/// A time in RFC 3339, also with `UTC` at its end as older tools write it.
///
/// # Errors
/// If it is none.
pub(super) fn parse_time(text: &str) -> Result<SystemTime, String> {
    let plain = match text.strip_suffix("UTC") {
        Some(rest) => format!("{rest}Z"),
        None => text.to_owned(),
    };
    DateTime::parse_from_rfc3339(&plain)
        .map(SystemTime::from)
        .map_err(|_| "a time of expiry is none".to_owned())
}

pub(super) fn show_time(time: SystemTime) -> String {
    let time = DateTime::<Utc>::from(time);
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

/// The credentials in use, and the last attempt to get others if it failed.
#[derive(Debug, Default)]
pub(super) struct CredentialCache {
    kept: Option<CachedCredential>,
    failure: Option<(NoCredentials, Instant)>,
}

#[derive(Debug)]
struct CachedCredential {
    credential: Arc<AwsCredential>,
    expires: Option<SystemTime>,
    /// The time of the next request for others.
    renew_at: Option<SystemTime>,
}

impl CredentialCache {
    /// Credentials that need no request.
    pub(super) fn current(&self, now: SystemTime) -> Option<Arc<AwsCredential>> {
        let kept = self.kept.as_ref()?;
        let is_current = kept.renew_at.is_none_or(|time| now < time);
        is_current.then(|| Arc::clone(&kept.credential))
    }

    /// A failure that is too new for another attempt.
    pub(super) fn failure(&self, now: Instant) -> Option<NoCredentials> {
        let (failure, until) = self.failure.as_ref()?;
        (now < *until).then(|| failure.clone())
    }

    /// # Errors
    /// If they have ended already.
    pub(super) fn store(
        &mut self,
        temporary: TemporaryCredential,
        now: SystemTime,
    ) -> Result<Arc<AwsCredential>, String> {
        let TemporaryCredential {
            credential,
            expires,
        } = temporary;
        let renew_at = match expires {
            None => None,
            Some(expires) => {
                let left = expires.duration_since(now).unwrap_or_default();
                if left.is_zero() {
                    let time = show_time(expires);
                    return Err(format!(
                        "the credentials in the answer expired at {time}: renew them, or set the \
                         clock"
                    ));
                }
                Some(now + left.saturating_sub(RENEWAL).max(left / 4 * 3))
            }
        };
        let credential = Arc::new(credential);
        self.failure = None;
        self.kept = Some(CachedCredential {
            credential: Arc::clone(&credential),
            expires,
            renew_at,
        });
        Ok(credential)
    }

    /// After a failure to get others: those in use as long as they are valid.
    ///
    /// # Errors
    /// The failure, which then also answers all who ask within as much time as it took: a service
    /// that does not answer must not hold up each of a thousand requests.
    pub(super) fn fall_back(
        &mut self,
        failure: NoCredentials,
        now: SystemTime,
        took: Duration,
    ) -> Result<Arc<AwsCredential>, NoCredentials> {
        if let Some(kept) = &mut self.kept
            && let Some(expires) = kept.expires
            && now < expires
        {
            kept.renew_at = Some(expires.min(now + RETRY));
            return Ok(Arc::clone(&kept.credential));
        }
        self.failure = Some((failure.clone(), Instant::now() + took));
        Err(failure)
    }
}

/// Longer than a request may take with all its attempts, and than clocks differ; of an hour, the
/// usual lifetime, a twelfth.
const RENEWAL: Duration = Duration::from_secs(300);
/// Ten attempts within that time.
const RETRY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(key: &str, expires: Option<SystemTime>) -> TemporaryCredential {
        let credential = AwsCredential {
            key_id: key.to_owned(),
            secret_key: "secret".to_owned(),
            token: Some("token".to_owned()),
        };
        TemporaryCredential::new(credential, expires).unwrap()
    }

    const START: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(secs: u64) -> SystemTime {
        START + Duration::from_secs(secs)
    }

    #[test]
    fn credentials_are_renewed_before_they_end() {
        // Lifetime, and when others are asked for.
        for (lifetime, renewal) in [
            (Some(3600), Some(3300)),
            (Some(43_200), Some(42_900)),
            (Some(900), Some(675)),
            (Some(400), Some(300)),
            (Some(4), Some(3)),
            (None, None),
        ] {
            let mut cache = CredentialCache::default();
            assert!(cache.current(START).is_none());
            cache
                .store(temporary("a", lifetime.map(at)), START)
                .unwrap();
            let last = renewal.unwrap_or(1_000_000);
            assert_eq!(cache.current(at(last - 1)).unwrap().key_id, "a");
            assert_eq!(cache.current(at(last)).is_none(), renewal.is_some());
        }
        let mut cache = CredentialCache::default();
        let error = cache.store(temporary("a", Some(at(5))), at(5)).unwrap_err();
        assert!(error.contains("expired at 1970-01-01T00:00:05Z"), "{error}");
        assert!(cache.current(at(5)).is_none());
    }

    #[test]
    fn what_is_valid_is_used_when_no_others_are_to_be_had() {
        let failure = || NoCredentials::new("p", "no answer");
        let mut cache = CredentialCache::default();
        cache.store(temporary("a", Some(at(3600))), START).unwrap();
        assert!(cache.current(at(3300)).is_none());
        let second = Duration::from_secs(1);
        let used = cache.fall_back(failure(), at(3300), second).unwrap();
        assert_eq!(used.key_id, "a");
        // Not asked again for a while, but before the end.
        assert!(cache.current(at(3329)).is_some() && cache.current(at(3330)).is_none());
        cache.fall_back(failure(), at(3590), second).unwrap();
        assert!(cache.current(at(3599)).is_some() && cache.current(at(3600)).is_none());
        cache.fall_back(failure(), at(3600), second).unwrap_err();
        // Others take their place, and the failure is forgotten.
        cache.store(temporary("b", None), at(3601)).unwrap();
        assert_eq!(cache.current(at(3601)).unwrap().key_id, "b");
        assert!(cache.failure(Instant::now()).is_none());
    }

    #[test]
    fn a_failure_answers_for_as_long_as_it_took() {
        let mut cache = CredentialCache::default();
        let now = Instant::now();
        let took = Duration::from_secs(1000);
        let failure = NoCredentials::new("p", "no answer");
        cache.fall_back(failure, START, took).unwrap_err();
        assert!(cache.failure(now + Duration::from_secs(999)).is_some());
        assert!(cache.failure(now + Duration::from_secs(2000)).is_none());
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        for (key, secret, token, part) in [
            ("", "s", None, "no access key"),
            ("k", "", None, "no access key"),
            ("k\n", "s", None, "cannot be sent"),
            ("k", "s", Some("t\0"), "cannot be sent"),
        ] {
            let credential = AwsCredential {
                key_id: key.to_owned(),
                secret_key: secret.to_owned(),
                token: token.map(str::to_owned),
            };
            let error = TemporaryCredential::new(credential, None).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn times() {
        for text in [
            "1970-01-01T01:00:00Z",
            "1970-01-01T01:00:00UTC",
            "1970-01-01T02:00:00.000+01:00",
        ] {
            assert_eq!(parse_time(text), Ok(at(3600)), "{text}");
        }
        for text in ["", "UTC", "1970-01-01", "soon", "1970-13-01T00:00:00Z"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(show_time(at(3600)), "1970-01-01T01:00:00Z");
    }
}
