//! The error of a profile without credentials.

use std::fmt;
use std::sync::Arc;

use object_store::Error as StoreError;

/// A profile gives no credentials. Holds no secret.
#[derive(Clone, Debug)]
pub(crate) struct NoCredentials(Arc<str>);

impl NoCredentials {
    pub(crate) fn new(profile: &str, why: &str) -> NoCredentials {
        let text = format!("the AWS profile '{profile}' gives no credentials: {why}");
        NoCredentials(text.into())
    }
}

impl fmt::Display for NoCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoCredentials {}

impl From<NoCredentials> for StoreError {
    fn from(error: NoCredentials) -> StoreError {
        StoreError::Unauthenticated {
            path: String::new(),
            source: Box::new(error),
        }
    }
}
