//! Credentials by place: from the file of `TRITON_CLOUD_CREDENTIAL_PATH`, else from the
//! environment, as upstream.
//!
//! ```json
//! { "s3": { "": { "key_id": "…", "secret_key": "…", "region": "…", "session_token": "…",
//! "profile": "…" },
//!           "s3://bucket-0": { … } },
//!   "gs": { "": "/path/to/credentials.json" },
//!   "as": { "": { "account_str": "…", "account_key": "…", "auth_type": "…", "client_id": "…" } } }
//! ```
//! An entry is for all URIs that begin with its name; the longest wins.

use std::fmt;
use std::path::PathBuf;

use conch_engine::Error;
use conch_log as log;
use serde_json::{Map, Value};

use crate::uri::UriKind;

/// What an environment variable is set to.
pub(crate) type CloudEnvironment = dyn Fn(&str) -> Option<String> + Send + Sync;

/// One entry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum CloudCredential {
    S3(S3Credential),
    /// Path of a file of Google's; none for what the machine has.
    Gs(Option<PathBuf>),
    As(AsCredential),
}

/// Empty where nothing is said.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct S3Credential {
    pub(crate) key_id: String,
    pub(crate) secret_key: String,
    pub(crate) session_token: String,
    pub(crate) region: String,
    pub(crate) profile: String,
}

/// Empty where nothing is said.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct AsCredential {
    pub(crate) account: String,
    pub(crate) key: String,
    pub(crate) auth_type: String,
    pub(crate) client_id: String,
}

impl fmt::Debug for CloudCredential {
    /// Says nothing of the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CloudCredential::S3(_) => "S3",
            CloudCredential::Gs(_) => "Gs",
            CloudCredential::As(_) => "As",
        })
    }
}

/// All entries, by kind: those of longer names first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    s3: CredentialEntries,
    gs: CredentialEntries,
    az: CredentialEntries,
}

/// Names and what they stand for.
type CredentialEntries = Vec<(String, CloudCredential)>;
type CredentialReader<'r> = dyn Fn(&Value) -> Result<CloudCredential, String> + 'r;

impl Credentials {
    /// The entries of the environment: one of each kind, for all places.
    pub(crate) fn from_environment(environment: &CloudEnvironment) -> Credentials {
        let text = |name: &str| environment(name).unwrap_or_default();
        let s3 = S3Credential {
            key_id: text("AWS_ACCESS_KEY_ID"),
            secret_key: text("AWS_SECRET_ACCESS_KEY"),
            session_token: text("AWS_SESSION_TOKEN"),
            region: text("AWS_DEFAULT_REGION"),
            profile: text("AWS_PROFILE"),
        };
        let gs = Some(text("GOOGLE_APPLICATION_CREDENTIALS")).filter(|path| !path.is_empty());
        let az = AsCredential {
            account: text("AZURE_STORAGE_ACCOUNT"),
            key: text("AZURE_STORAGE_KEY"),
            auth_type: text("AZURE_STORAGE_AUTH_TYPE"),
            client_id: text("AZURE_STORAGE_CLIENT_ID"),
        };
        let everywhere = |credential| vec![(String::new(), credential)];
        Credentials {
            s3: everywhere(CloudCredential::S3(s3)),
            gs: everywhere(CloudCredential::Gs(gs.map(PathBuf::from))),
            az: everywhere(CloudCredential::As(az)),
        }
    }

    /// The entries of a credential file.
    ///
    /// # Errors
    /// INVALID_ARG if it is no such JSON.
    pub(crate) fn from_json(contents: &[u8]) -> Result<Credentials, Error> {
        let bad = |why: String| Error::invalid(format!("failed to read cloud credentials: {why}"));
        let root: Value =
            serde_json::from_slice(contents).map_err(|error| bad(error.to_string()))?;
        let root = root
            .as_object()
            .ok_or_else(|| bad("the file is no JSON object".to_owned()))?;
        for name in root.keys() {
            if !matches!(name.as_str(), "s3" | "gs" | "as") {
                log::warning!("cloud credentials: '{name}' is no kind of store and is ignored");
            }
        }
        let entries = |kind: &str, read: &CredentialReader| -> Result<CredentialEntries, Error> {
            let Some(value) = root.get(kind) else {
                return Ok(Vec::new());
            };
            let object = value
                .as_object()
                .ok_or_else(|| bad(format!("'{kind}' is no object")))?;
            let mut found = Vec::with_capacity(object.len());
            for (name, value) in object {
                let credential =
                    read(value).map_err(|why| bad(format!("'{kind}', entry '{name}': {why}")))?;
                found.push((name.clone(), credential));
            }
            found.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
            Ok(found)
        };
        Ok(Credentials {
            s3: entries("s3", &|value| {
                let fields = fields(value)?;
                Ok(CloudCredential::S3(S3Credential {
                    key_id: text(fields, "key_id")?,
                    secret_key: text(fields, "secret_key")?,
                    session_token: text(fields, "session_token")?,
                    region: text(fields, "region")?,
                    profile: text(fields, "profile")?,
                }))
            })?,
            gs: entries("gs", &|value| {
                let path = value.as_str().ok_or("it is no path")?;
                let path = Some(path).filter(|path| !path.is_empty());
                Ok(CloudCredential::Gs(path.map(PathBuf::from)))
            })?,
            az: entries("as", &|value| {
                let fields = fields(value)?;
                Ok(CloudCredential::As(AsCredential {
                    account: text(fields, "account_str")?,
                    key: text(fields, "account_key")?,
                    auth_type: text(fields, "auth_type")?,
                    client_id: text(fields, "client_id")?,
                }))
            })?,
        })
    }

    /// The entry for a URI: its name, and what it says.
    ///
    /// # Errors
    /// NOT_FOUND, in upstream's words.
    pub(crate) fn find(&self, kind: UriKind, uri: &str) -> Result<(&str, &CloudCredential), Error> {
        let entries = match kind {
            UriKind::S3 => &self.s3,
            UriKind::Gs => &self.gs,
            UriKind::As => &self.az,
        };
        entries
            .iter()
            .find(|(name, _)| uri.starts_with(name.as_str()))
            .map(|(name, credential)| (name.as_str(), credential))
            .ok_or_else(|| Error::not_found(format!("Cannot match credential for path  {uri}")))
    }
}

/// Whether a key or token may stand in a header; what signs requests panics at others.
pub(crate) fn is_sendable(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn fields(value: &Value) -> Result<&Map<String, Value>, String> {
    value
        .as_object()
        .ok_or_else(|| "it is no object".to_owned())
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<String, String> {
    match fields.get(name) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("'{name}' is no string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{
        "s3": {
            "": { "key_id": "everywhere", "secret_key": "s" },
            "s3://bucket": {
                "key_id": "bucket", "secret_key": "s", "region": "r", "session_token": "t"
            },
            "s3://bucket/deep/er": { "profile": "p" },
            "s3://https://host:1/b": { "key_id": "host", "secret_key": "s" }
        },
        "gs": { "gs://mine": "/mine.json", "gs://machine": "" },
        "as": { "as://one": { "account_str": "one", "account_key": "k" },
                "": { "auth_type": "managed_identity", "client_id": "c" } }
    }"#;

    #[test]
    fn the_longest_name_wins() {
        let credentials = Credentials::from_json(FILE.as_bytes()).unwrap();
        let table: [(UriKind, &str, Option<&str>); 12] = [
            (UriKind::S3, "s3://other/models", Some("")),
            (UriKind::S3, "s3://bucket", Some("s3://bucket")),
            (UriKind::S3, "s3://bucket/deep", Some("s3://bucket")),
            (
                UriKind::S3,
                "s3://bucket/deep/er/m",
                Some("s3://bucket/deep/er"),
            ),
            // By text, as upstream.
            (UriKind::S3, "s3://bucket-two", Some("s3://bucket")),
            (
                UriKind::S3,
                "s3://https://host:1/b/m",
                Some("s3://https://host:1/b"),
            ),
            (UriKind::Gs, "gs://mine/m", Some("gs://mine")),
            (UriKind::Gs, "gs://machine", Some("gs://machine")),
            (UriKind::Gs, "gs://theirs", None),
            (UriKind::As, "as://one/c", Some("as://one")),
            (UriKind::As, "as://two/c", Some("")),
            (UriKind::As, "as://", Some("")),
        ];
        for (kind, uri, expected) in table {
            let found = credentials.find(kind, uri);
            assert_eq!(found.ok().map(|(name, _)| name), expected, "{uri}");
        }
        let error = credentials.find(UriKind::Gs, "gs://theirs").unwrap_err();
        assert_eq!(
            error.message,
            "Cannot match credential for path  gs://theirs"
        );
        let (_, found) = credentials.find(UriKind::S3, "s3://bucket").unwrap();
        let expected = S3Credential {
            key_id: "bucket".to_owned(),
            secret_key: "s".to_owned(),
            session_token: "t".to_owned(),
            region: "r".to_owned(),
            profile: String::new(),
        };
        assert!(*found == CloudCredential::S3(expected));
        let (_, found) = credentials.find(UriKind::Gs, "gs://machine").unwrap();
        assert!(*found == CloudCredential::Gs(None));
    }

    #[test]
    fn files_that_are_none() {
        for (text, part) in [
            ("", "EOF"),
            ("[]", "the file is no JSON object"),
            (r#"{"s3": []}"#, "'s3' is no object"),
            (r#"{"s3": {"x": "y"}}"#, "'s3', entry 'x': it is no object"),
            (
                r#"{"s3": {"x": {"key_id": 1}}}"#,
                "'s3', entry 'x': 'key_id' is no string",
            ),
            (r#"{"gs": {"": {}}}"#, "'gs', entry '': it is no path"),
            (
                r#"{"as": {"": {"account_key": null}}}"#,
                "'as', entry '': 'account_key' is no string",
            ),
        ] {
            let error = Credentials::from_json(text.as_bytes()).unwrap_err();
            assert!(error.message.contains(part), "{text}: {error}");
        }
        // What is not there at all is no mistake until it is needed.
        let none = Credentials::from_json(b"{}").unwrap();
        assert!(none.find(UriKind::S3, "s3://b").is_err());
    }

    #[test]
    fn the_environment_is_for_all_places() {
        let environment = |name: &str| Some(format!("<{name}>"));
        let credentials = Credentials::from_environment(&environment);
        let value = |name: &str| format!("<{name}>");
        let (_, s3) = credentials.find(UriKind::S3, "s3://any").unwrap();
        assert!(
            *s3 == CloudCredential::S3(S3Credential {
                key_id: value("AWS_ACCESS_KEY_ID"),
                secret_key: value("AWS_SECRET_ACCESS_KEY"),
                session_token: value("AWS_SESSION_TOKEN"),
                region: value("AWS_DEFAULT_REGION"),
                profile: value("AWS_PROFILE"),
            })
        );
        let (_, gs) = credentials.find(UriKind::Gs, "gs://any").unwrap();
        let path = PathBuf::from("<GOOGLE_APPLICATION_CREDENTIALS>");
        assert!(*gs == CloudCredential::Gs(Some(path)));
        let (_, az) = credentials.find(UriKind::As, "as://any/c").unwrap();
        assert!(
            *az == CloudCredential::As(AsCredential {
                account: value("AZURE_STORAGE_ACCOUNT"),
                key: value("AZURE_STORAGE_KEY"),
                auth_type: value("AZURE_STORAGE_AUTH_TYPE"),
                client_id: value("AZURE_STORAGE_CLIENT_ID"),
            })
        );
        let none = Credentials::from_environment(&|_| None);
        assert!(*none.find(UriKind::Gs, "gs://b").unwrap().1 == CloudCredential::Gs(None));
    }
}
