//! Failures of a store, in upstream's words.

use std::fmt;

use conch_engine::Error;
use object_store::Error as StoreError;

use crate::no_credentials::NoCredentials;
use crate::uri::UriKind;

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum RemoteFailure {
    /// The store's, or the network's.
    Store(StoreError),
    /// Ours, the disk's, or the end of patience: another attempt is of no use.
    Final(Error),
}

impl fmt::Display for RemoteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteFailure::Store(error) => error.fmt(f),
            RemoteFailure::Final(error) => f.write_str(&error.message),
        }
    }
}

impl From<StoreError> for RemoteFailure {
    fn from(error: StoreError) -> RemoteFailure {
        RemoteFailure::Store(error)
    }
}

impl From<Error> for RemoteFailure {
    fn from(error: Error) -> RemoteFailure {
        RemoteFailure::Final(error)
    }
}

impl RemoteFailure {
    /// Whether the same request may succeed later.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, RemoteFailure::Store(StoreError::Generic { .. }))
    }

    /// Whether other credentials might help.
    pub(crate) fn is_about_access(&self) -> bool {
        match self {
            RemoteFailure::Store(StoreError::NotFound { .. } | StoreError::Precondition { .. }) => {
                false
            }
            RemoteFailure::Store(_) => true,
            RemoteFailure::Final(_) => false,
        }
    }

    pub(crate) fn of_listing(self, kind: UriKind, uri: &str) -> Error {
        self.told(kind, |kind| match kind {
            UriKind::S3 | UriKind::Gs => format!("Could not list contents of directory at {uri}"),
            UriKind::As => format!("Failed to get contents of directory {uri}"),
        })
    }

    pub(crate) fn of_object(self, kind: UriKind, uri: &str) -> Error {
        self.told(kind, |kind| match kind {
            UriKind::S3 | UriKind::Gs => format!("Failed to get object at {uri}"),
            UriKind::As => format!("Failed to download file at {uri}"),
        })
    }

    fn told(self, kind: UriKind, head: impl Fn(UriKind) -> String) -> Error {
        let error = match self {
            RemoteFailure::Final(error) => return error,
            RemoteFailure::Store(error) => error,
        };
        let head = head(kind);
        let text = match no_credentials(&error) {
            Some(why) => why.to_string(),
            None => error.to_string(),
        };
        let (name, message) = match (element(&text, "Code"), element(&text, "Message")) {
            (Some(code), message) => (code, message.unwrap_or_default()),
            (None, _) => (name(&error), text.as_str()),
        };
        Error::internal(match kind {
            UriKind::S3 => format!("{head} due to exception: {name}, error message: {message}"),
            UriKind::Gs => format!("{head} : {name}: {message}"),
            UriKind::As => format!("{head}:{name}: {message}"),
        })
    }
}

/// The text of an XML element of an error document.
pub(crate) fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inside, _) = rest.split_once(&format!("</{name}>"))?;
    Some(inside.trim())
}

/// The reason for which a profile gives no credentials, if that is the error.
fn no_credentials(error: &StoreError) -> Option<&NoCredentials> {
    match error {
        StoreError::Unauthenticated { source, .. } => source.downcast_ref(),
        _ => None,
    }
}

fn name(error: &StoreError) -> &'static str {
    if no_credentials(error).is_some() {
        return "NoCredentials";
    }
    match error {
        StoreError::NotFound { .. } => "NotFound",
        StoreError::InvalidPath { .. } => "InvalidPath",
        StoreError::Precondition { .. } => "PreconditionFailed",
        StoreError::PermissionDenied { .. } => "AccessDenied",
        StoreError::Unauthenticated { .. } => "Unauthenticated",
        _ => "RequestFailed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> RemoteFailure {
        RemoteFailure::Store(StoreError::Generic {
            store: "S3",
            source: text.to_owned().into(),
        })
    }

    #[test]
    fn the_words_of_each_kind() {
        let document = "400 Bad Request: <Error><Code>InvalidToken</Code><Message>It is \
                        malformed.</Message></Error>";
        for (kind, text, expected) in [
            (
                UriKind::S3,
                document,
                "Could not list contents of directory at U due to exception: InvalidToken, error \
                 message: It is malformed.",
            ),
            (
                UriKind::Gs,
                document,
                "Could not list contents of directory at U : InvalidToken: It is malformed.",
            ),
            (
                UriKind::As,
                document,
                "Failed to get contents of directory U:InvalidToken: It is malformed.",
            ),
            (
                UriKind::S3,
                "connection refused",
                "Could not list contents of directory at U due to exception: RequestFailed, error \
                 message: Generic S3 error: connection refused",
            ),
        ] {
            assert_eq!(generic(text).of_listing(kind, "U").message, expected);
        }
        let denied = RemoteFailure::Store(StoreError::PermissionDenied {
            path: "a".to_owned(),
            source: "403".into(),
        });
        assert!(denied.is_about_access() && !denied.is_passing());
        let message = denied.of_object(UriKind::S3, "U").message;
        assert!(
            message.starts_with("Failed to get object at U due to exception: AccessDenied, "),
            "{message}"
        );
        let profile = RemoteFailure::from(StoreError::from(NoCredentials::new("p", "no answer")));
        assert!(profile.is_about_access() && !profile.is_passing());
        assert_eq!(
            profile.of_listing(UriKind::S3, "U").message,
            "Could not list contents of directory at U due to exception: NoCredentials, error \
             message: the AWS profile 'p' gives no credentials: no answer"
        );
        let ours = RemoteFailure::Final(Error::unavailable("stop"));
        assert!(!ours.is_about_access() && !ours.is_passing());
        assert_eq!(ours.of_object(UriKind::As, "U"), Error::unavailable("stop"));
    }
}
