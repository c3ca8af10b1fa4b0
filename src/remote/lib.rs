//! Model repositories in object stores: `s3://`, `gs://` and `as://`. The only door to
//! object_store, and to the runtime and the HTTP client that it needs.
//!
//! Called on control threads. Each call has a runtime of its own, on the calling thread, and ends
//! with it: no thread is left behind (the resolver's threads last as long as the system's resolver
//! takes, that of a `credential_process` half a minute at most), and no connection. The data plane
//! knows nothing of it.
#![forbid(unsafe_code)]

mod credentials;
mod download;
mod failure;
mod http;
mod listing;
mod machine;
mod no_credentials;
mod profile;
mod retries;
mod store;
#[cfg(test)]
mod tests;
mod uri;

use std::path::PathBuf;
use std::sync::Arc;

use conch_control::remote::{DownloadObserver, DownloadSpec, RemoteListing, RemoteRepositories};
use conch_engine::Error;
use futures_util::stream::{self, StreamExt};

use credentials::CloudEnvironment;
use failure::RemoteFailure;
use listing::ListingBudget;
use store::{Store, Stores};
use uri::{UriKind, UriLocation};

/// All remote repositories.
#[derive(Debug)]
pub struct Cloud {
    stores: Stores,
}

impl Cloud {
    /// Reads nothing yet; credentials are those of the process's environment.
    pub fn new() -> Cloud {
        Cloud::with_environment(Arc::new(|name: &str| std::env::var(name).ok()))
    }

    fn with_environment(environment: Arc<CloudEnvironment>) -> Cloud {
        Cloud {
            stores: Stores::new(environment),
        }
    }

    /// Does `work` with the store of `uri`; once more if it fails and the credential file says
    /// something else now.
    async fn attempt<T>(
        &self,
        uri: &str,
        work: impl AsyncFn(&Store, &UriLocation) -> Result<T, RemoteFailure>,
        told: impl Fn(RemoteFailure, UriKind) -> Error,
    ) -> Result<T, Error> {
        let place = UriLocation::parse(uri)?;
        let store = self.stores.open(&place, uri)?;
        let failure = match work(&store, &place).await {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        if !failure.is_about_access() || !self.stores.reread()? {
            return Err(told(failure, place.kind));
        }
        let store = self.stores.open(&place, uri)?;
        let outcome = work(&store, &place).await;
        outcome.map_err(|failure| told(failure, place.kind))
    }

    /// [`Cloud::attempt`] of what only lists.
    async fn attempt_listing<T>(
        &self,
        uri: &str,
        work: impl AsyncFn(&Store, &UriLocation) -> Result<T, RemoteFailure>,
    ) -> Result<T, Error> {
        let told = |failure: RemoteFailure, kind| failure.of_listing(kind, uri);
        self.attempt(uri, work, told).await
    }

    async fn list_one(&self, uri: &str, allowance: &ListingBudget) -> Result<RemoteListing, Error> {
        self.attempt_listing(uri, async |store, place| {
            listing::contents(&*store.pages, place, allowance).await
        })
        .await
    }
}

impl Default for Cloud {
    fn default() -> Cloud {
        Cloud::new()
    }
}

impl RemoteRepositories for Cloud {
    fn models(&self, repository: &str) -> Result<Vec<String>, Error> {
        let names = block_on(self.attempt_listing(repository, async |store, place| {
            listing::directories(&*store.pages, place).await
        }))?;
        Ok(names?.into_iter().collect())
    }

    fn exists(&self, directory: &str) -> Result<bool, Error> {
        block_on(self.attempt_listing(directory, async |store, place| {
            listing::exists(&*store.pages, place).await
        }))?
    }

    fn list(&self, directories: &[&str]) -> Vec<Result<RemoteListing, Error>> {
        let allowance = ListingBudget::new();
        let listing = stream::iter(directories)
            .map(|directory| self.list_one(directory, &allowance))
            .buffered(LISTINGS_AT_ONCE)
            .collect::<Vec<_>>();
        match block_on(listing) {
            Ok(listings) => listings,
            Err(error) => directories.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn download(
        &self,
        wanted: &DownloadSpec<'_>,
        watch: &DownloadObserver<'_>,
    ) -> Result<(), Error> {
        let work = async |store: &Store, place: &UriLocation| {
            download::download(&*store.objects, place, wanted, watch).await
        };
        let uri = wanted.directory;
        block_on(self.attempt(uri, work, |failure, kind| failure.of_object(kind, uri)))?
    }

    fn mount_directory(&self, directory: &str) -> Option<PathBuf> {
        let variable = match UriLocation::parse(directory).ok()?.kind {
            UriKind::S3 => "TRITON_AWS_MOUNT_DIRECTORY",
            UriKind::Gs => "TRITON_GCS_MOUNT_DIRECTORY",
            UriKind::As => "TRITON_AZURE_MOUNT_DIRECTORY",
        };
        let path = (self.stores.environment())(variable)?;
        Some(path)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    }
}

/// Runs one operation on this thread.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(RESOLVERS_MAX)
        .thread_name("resolve")
        .build()
        .map_err(|cause| Error::internal(format!("cannot reach the network: {cause}")))?;
    let outcome = runtime.block_on(work);
    // A resolver without an answer is not waited for.
    runtime.shutdown_background();
    Ok(outcome)
}

/// A poll of a thousand models takes 63 rounds: about two seconds against a store that answers in
/// 30 ms.
const LISTINGS_AT_ONCE: usize = 16;
/// All connections of an operation go to one or two hosts.
const RESOLVERS_MAX: usize = 2;
