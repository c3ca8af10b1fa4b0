//! Places in object stores, as upstream writes them, and with an endpoint of one's own for each
//! kind.
//!
//! ```text
//! s3://bucket/path          s3://[http://|https://]host:port/bucket/path
//! gs://bucket/path          gs://http[s]://host[:port]/bucket/path
//! as://account[.blob.core.windows.net]/container/path
//!                           as://http[s]://host[:port]/account/container/path
//! ```

use std::fmt;

use conch_engine::Error;

/// Which store's protocol a place speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UriKind {
    S3,
    Gs,
    As,
}

/// A directory or object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UriLocation {
    pub(crate) kind: UriKind,
    /// `http://host:port` or `https://host:port`, where the URI names one.
    pub(crate) endpoint: Option<String>,
    /// Of Azure; empty for the others.
    pub(crate) account: String,
    /// A container, in Azure's words.
    pub(crate) bucket: String,
    /// Without slashes at either end; empty for the whole bucket.
    pub(crate) key: String,
}

impl UriLocation {
    /// # Errors
    /// In upstream's words: INVALID_ARG for what is empty, INTERNAL for what lacks a bucket or is
    /// no path of Azure's.
    pub(crate) fn parse(uri: &str) -> Result<UriLocation, Error> {
        let kinds = [
            ("s3://", UriKind::S3),
            ("gs://", UriKind::Gs),
            ("as://", UriKind::As),
        ];
        let found = kinds
            .iter()
            .find_map(|(scheme, kind)| Some((*kind, uri.strip_prefix(scheme)?)));
        let (kind, rest) = found.ok_or_else(|| Error::invalid(format!("no remote path: {uri}")))?;
        let missing = || match kind {
            UriKind::As => Error::internal(format!("Invalid azure storage path: {uri}")),
            UriKind::S3 | UriKind::Gs => {
                Error::internal(format!("No bucket name found in path: {uri}"))
            }
        };
        if kind == UriKind::As && rest.contains('?') {
            return Err(missing());
        }
        let (mut endpoint, rest) = split_endpoint(rest);
        if kind == UriKind::S3 && rest.trim_matches('/').is_empty() {
            return Err(Error::invalid(format!("Invalid bucket name: '{rest}'")));
        }
        // As upstream's, slashes more than needed mean nothing.
        let mut parts = rest.split('/').filter(|part| !part.is_empty()).peekable();
        if endpoint.is_empty()
            && kind == UriKind::S3
            && let Some(host) = parts.next_if(|part| is_host_and_port(part))
        {
            endpoint = format!("http://{host}");
        } else if !endpoint.is_empty() {
            endpoint += parts.next().ok_or_else(missing)?;
        }
        let account = match kind {
            UriKind::As => account(parts.next().ok_or_else(missing)?),
            UriKind::S3 | UriKind::Gs => String::new(),
        };
        let bucket = parts.next().ok_or_else(missing)?.to_owned();
        Ok(UriLocation {
            kind,
            endpoint: Some(endpoint).filter(|endpoint| !endpoint.is_empty()),
            account,
            bucket,
            key: parts.collect::<Vec<_>>().join("/"),
        })
    }
}

/// Bucket and key.
impl fmt::Display for UriLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.key.is_empty() { "" } else { "/" };
        write!(f, "{}{slash}{}", self.bucket, self.key)
    }
}

/// The protocol of an endpoint, if the URI goes on with one, and what follows it.
fn split_endpoint(rest: &str) -> (String, &str) {
    let trimmed = rest.trim_start_matches('/');
    for protocol in ["https://", "http://"] {
        if let Some(rest) = trimmed.strip_prefix(protocol) {
            return (protocol.to_owned(), rest);
        }
    }
    (String::new(), rest)
}

fn is_host_and_port(part: &str) -> bool {
    part.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn account(host: &str) -> String {
    let end = host.rfind(".blob.core.windows.net").unwrap_or(host.len());
    host[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Endpoint, account, bucket, key.
    type Parts = (&'static str, &'static str, &'static str, &'static str);

    const PLACES: [(&str, Result<Parts, &str>); 34] = [
        ("s3://bucket", Ok(("", "", "bucket", ""))),
        ("s3://bucket/", Ok(("", "", "bucket", ""))),
        ("s3://bucket/models", Ok(("", "", "bucket", "models"))),
        ("s3:///bucket//a///b//", Ok(("", "", "bucket", "a/b"))),
        ("s3://bucket/a b/ü=1", Ok(("", "", "bucket", "a b/ü=1"))),
        (
            "s3://localhost:4566/bucket/models",
            Ok(("http://localhost:4566", "", "bucket", "models")),
        ),
        (
            "s3://http://10.0.0.1:9000/bucket",
            Ok(("http://10.0.0.1:9000", "", "bucket", "")),
        ),
        (
            "s3://https://minio.example:443/bucket/a/b",
            Ok(("https://minio.example:443", "", "bucket", "a/b")),
        ),
        (
            "s3://https://minio.example/bucket",
            Ok(("https://minio.example", "", "bucket", "")),
        ),
        ("s3://", Err("Invalid bucket name: ''")),
        ("s3:////", Err("Invalid bucket name: '//'")),
        ("s3://http://", Err("Invalid bucket name: ''")),
        (
            "s3://http://host:9000",
            Err("No bucket name found in path: s3://http://host:9000"),
        ),
        (
            "s3://host:9000/",
            Err("No bucket name found in path: s3://host:9000/"),
        ),
        ("s3://host:port/x", Ok(("", "", "host:port", "x"))),
        ("gs://bucket", Ok(("", "", "bucket", ""))),
        ("gs://bucket/a/b/", Ok(("", "", "bucket", "a/b"))),
        (
            "gs://http://127.0.0.1:4443/bucket/a",
            Ok(("http://127.0.0.1:4443", "", "bucket", "a")),
        ),
        ("gs://", Err("No bucket name found in path: gs://")),
        ("gs:///", Err("No bucket name found in path: gs:///")),
        (
            "as://account/container",
            Ok(("", "account", "container", "")),
        ),
        (
            "as://account.blob.core.windows.net/container/a/b",
            Ok(("", "account", "container", "a/b")),
        ),
        (
            "as://account.other.net/container",
            Ok(("", "account.other.net", "container", "")),
        ),
        (
            "as://http://127.0.0.1:10000/account/container/a",
            Ok(("http://127.0.0.1:10000", "account", "container", "a")),
        ),
        (
            "as://https://host/account/container",
            Ok(("https://host", "account", "container", "")),
        ),
        (
            "as://account",
            Err("Invalid azure storage path: as://account"),
        ),
        (
            "as://account/",
            Err("Invalid azure storage path: as://account/"),
        ),
        ("as://", Err("Invalid azure storage path: as://")),
        (
            "as://http://host:1/account",
            Err("Invalid azure storage path: as://http://host:1/account"),
        ),
        (
            "as://account/container/a?sig=x",
            Err("Invalid azure storage path: as://account/container/a?sig=x"),
        ),
        ("/models", Err("no remote path: /models")),
        ("S3://bucket", Err("no remote path: S3://bucket")),
        ("s3:/bucket", Err("no remote path: s3:/bucket")),
        ("", Err("no remote path: ")),
    ];

    #[test]
    fn places() {
        for (uri, expected) in PLACES {
            let got = UriLocation::parse(uri);
            let shown = got.as_ref().map(|place| {
                let endpoint = place.endpoint.as_deref().unwrap_or_default();
                (endpoint, &*place.account, &*place.bucket, &*place.key)
            });
            let shown = shown.map_err(|error| &*error.message);
            assert_eq!(shown, expected, "{uri}");
        }
    }
}
