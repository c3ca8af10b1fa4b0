//! The trait of repositories on other machines: their models, the state of a model's files, and
//! downloads.
//!
//! Implemented by `remote` over object stores, and by a fake in tests. Control threads only: every
//! call blocks, but each for a bounded time without news from the other side.

use std::fmt;
use std::path::{Path, PathBuf};

use conch_engine::Error;

/// Repositories by URI.
pub trait RemoteRepositories: fmt::Debug + Send + Sync {
    /// The names of all models of `repository`: its sub-directories, sorted.
    ///
    /// # Errors
    /// INTERNAL if it cannot be listed, INVALID_ARG if the URI is none.
    fn models(&self, repository: &str) -> Result<Vec<String>, Error>;

    /// Whether there is anything below `directory`.
    ///
    /// # Errors
    /// As [`RemoteRepositories::models`].
    fn exists(&self, directory: &str) -> Result<bool, Error>;

    /// What lies below each of `directories`, in their order; nothing below one that is not there.
    /// Downloads no contents.
    ///
    /// # Errors
    /// Of each: as [`RemoteRepositories::models`], and INVALID_ARG if it has more objects than can
    /// be held.
    fn list(&self, directories: &[&str]) -> Vec<Result<RemoteListing, Error>>;

    /// Downloads a directory, or fails and leaves what came so far.
    ///
    /// # Errors
    /// INVALID_ARG for a name that cannot be a file's; UNAVAILABLE if what lies there is not any
    /// more what the listing says; what `watch` returned; INTERNAL for all that network and disk
    /// may do.
    fn download(
        &self,
        wanted: &DownloadSpec<'_>,
        watch: &DownloadObserver<'_>,
    ) -> Result<(), Error>;

    /// Where models of this kind of repository are to be kept while they are loaded; none for the
    /// system's directory of temporary files.
    fn mount_directory(&self, directory: &str) -> Option<PathBuf>;
}

/// All that lies below a remote directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteListing {
    /// By name.
    pub objects: Vec<RemoteObject>,
}

impl RemoteListing {
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub fn total_bytes(&self) -> u64 {
        let sizes = self.objects.iter().map(|object| object.bytes);
        sizes.fold(0, u64::saturating_add)
    }
}

/// One file of a remote directory; or a directory in which nothing lies, which cannot be told from
/// an empty file without asking for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteObject {
    /// Below the directory, with `/` between its parts. From outside: it may be anything.
    pub name: String,
    pub bytes: u64,
    /// Changes with the contents; empty where the store has none.
    pub tag: String,
    /// Since 1970.
    pub modified_ns: i64,
}

/// What is to be downloaded, and where to.
#[derive(Clone, Copy, Debug)]
pub struct DownloadSpec<'w> {
    pub directory: &'w str,
    /// All that is wanted of it, as it was listed.
    pub listing: &'w RemoteListing,
    /// An empty directory.
    pub target: &'w Path,
}

/// How far a download is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DownloadProgress {
    pub bytes: u64,
    pub files: usize,
}

/// Hears of progress, and several times per second while there is none; an error ends the download.
/// Called on one thread.
pub type DownloadObserver<'w> = dyn Fn(DownloadProgress) -> Result<(), Error> + 'w;

/// No remote repositories: their URIs are refused.
#[derive(Debug)]
pub struct NoRemote;

impl RemoteRepositories for NoRemote {
    fn models(&self, repository: &str) -> Result<Vec<String>, Error> {
        Err(refusal(repository))
    }

    fn exists(&self, directory: &str) -> Result<bool, Error> {
        Err(refusal(directory))
    }

    fn list(&self, directories: &[&str]) -> Vec<Result<RemoteListing, Error>> {
        directories
            .iter()
            .map(|directory| Err(refusal(directory)))
            .collect()
    }

    fn download(&self, wanted: &DownloadSpec<'_>, _: &DownloadObserver<'_>) -> Result<(), Error> {
        Err(refusal(wanted.directory))
    }

    fn mount_directory(&self, _: &str) -> Option<PathBuf> {
        None
    }
}

/// `path` as the URI of something remote, if it is one: whatever begins as upstream's kinds of file
/// system do.
pub(crate) fn uri(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    SCHEMES
        .iter()
        .any(|scheme| text.starts_with(scheme))
        .then_some(text)
}

fn refusal(uri: &str) -> Error {
    let scheme = SCHEMES.iter().find(|scheme| uri.starts_with(**scheme));
    let scheme = scheme.copied().unwrap_or_default();
    Error::internal(format!("{scheme} file-system not supported."))
}

const SCHEMES: [&str; 3] = ["s3://", "gs://", "as://"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remote() {
        for (path, expected) in [
            ("s3://bucket/models", true),
            ("gs://bucket", true),
            ("as://account/container", true),
            ("/models", false),
            ("s3:/bucket", false),
            ("./s3://bucket", false),
            ("S3://bucket", false),
            ("", false),
        ] {
            assert_eq!(uri(Path::new(path)).is_some(), expected, "{path}");
        }
        // As repositories and models are put together.
        let model = Path::new("s3://bucket/models/").join("m");
        assert_eq!(uri(&model), Some("s3://bucket/models/m"));
    }

    #[test]
    fn without_remote_repositories_the_kind_is_named() {
        let error = NoRemote.models("gs://bucket").unwrap_err();
        assert_eq!(error.message, "gs:// file-system not supported.");
    }
}
