//! From a place in a repository to a directory that can be read: this one, or a copy of a remote
//! one.
//!
//! A copy is private, complete before anybody sees it, and there as long as anything was loaded
//! from it. What is remote is looked at first (names, sizes, times and tags) and downloaded only if
//! that says something new.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use conch_engine::Error;
use conch_engine::model::registry::ModelId;
use conch_log as log;

use super::Lifecycle;
use super::remote_copies::{LocalModel, RemoteCopy};
use crate::ScratchDirectory;
use crate::options::ControlMode;
use crate::repository::fingerprint::Fingerprint;
use crate::repository::remote;
use crate::repository::remote::{DownloadProgress, RemoteListing};

/// A model, the listing of its directory, and how that looks.
type MissingCopy<'m> = (usize, &'m (ModelId, PathBuf), RemoteListing, Fingerprint);

impl Lifecycle {
    /// Looks at models in their repositories and brings those here that are remote, several at a
    /// time. In the order of `models`; none for one that is loaded and looks as it did then, unless
    /// `is_forced`.
    ///
    /// # Errors
    /// Of each: it cannot be read, or not be brought here.
    pub(super) fn arrive(
        &self,
        models: &[(ModelId, PathBuf)],
        is_forced: bool,
    ) -> Vec<Result<Option<LocalModel>, Error>> {
        let late = Mutex::new(Vec::new());
        let mut outcomes = self.arrive_each(models, is_forced, |index, outcome| {
            let mut late = late.lock().unwrap_or_else(PoisonError::into_inner);
            late.push((index, outcome));
        });
        for (index, outcome) in late.into_inner().unwrap_or_else(PoisonError::into_inner) {
            outcomes[index] = outcome.map(Some);
        }
        outcomes
    }

    /// As [`Lifecycle::arrive`], but what was downloaded goes to `on_download` with its index, at
    /// once and on the thread that downloaded it; in what is returned it is none.
    pub(super) fn arrive_each(
        &self,
        models: &[(ModelId, PathBuf)],
        is_forced: bool,
        on_download: impl Fn(usize, Result<LocalModel, Error>) + Sync,
    ) -> Vec<Result<Option<LocalModel>, Error>> {
        let uris: Vec<&str> = models
            .iter()
            .filter_map(|(_, path)| remote::uri(path))
            .collect();
        let mut listings = match uris.is_empty() {
            true => Vec::new(),
            false => self.options.remote.list(&uris),
        }
        .into_iter();
        let mut outcomes = Vec::with_capacity(models.len());
        let mut wanted: Vec<MissingCopy<'_>> = Vec::new();
        for (index, model) in models.iter().enumerate() {
            let (id, path) = model;
            let (looks, listing) = match remote::uri(path) {
                None => (Fingerprint::of(path), None),
                Some(uri) => match listings.next().unwrap_or_else(|| Err(nothing_at(uri))) {
                    Ok(listing) if listing.is_empty() => {
                        outcomes.push(Err(nothing_at(uri)));
                        continue;
                    }
                    Ok(listing) => (Fingerprint::of_listing(&listing), Some(listing)),
                    Err(error) => {
                        outcomes.push(Err(error));
                        continue;
                    }
                },
            };
            if !is_forced && self.is_loaded(id, path, &looks) {
                outcomes.push(Ok(None));
                continue;
            }
            let copy = match &listing {
                Some(_) => self.copies.find(path, &looks),
                None => None,
            };
            match listing {
                Some(listing) if copy.is_none() => {
                    outcomes.push(Ok(None));
                    wanted.push((index, model, listing, looks));
                }
                _ => outcomes.push(Ok(Some(LocalModel {
                    path: path.clone(),
                    looks,
                    copy,
                }))),
            }
        }
        self.download_all(&wanted, on_download);
        outcomes
    }

    /// Keeps what a failed load was made from, if the next poll is to try again.
    pub(super) fn add_spare_copy(&self, id: &ModelId, copy: Option<&Arc<RemoteCopy>>) {
        if let (Some(copy), ControlMode::Poll) = (copy, self.options.model_control_mode) {
            self.copies.add_spare(id, copy);
        }
    }

    fn is_loaded(&self, id: &ModelId, path: &Path, looks: &Fingerprint) -> bool {
        let models = self.table.lock();
        let source = models.get(id).and_then(|entry| entry.source.as_ref());
        source.is_some_and(|source| source.is_same(path, looks))
    }

    fn download_all(
        &self,
        wanted: &[MissingCopy<'_>],
        on_download: impl Fn(usize, Result<LocalModel, Error>) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((index, (id, path), listing, looks)) =
                wanted.get(next.fetch_add(1, Ordering::Relaxed))
            {
                on_download(*index, self.download(id, path, listing, looks));
            }
        };
        let thread_count = self.options.model_load_thread_count.min(wanted.len());
        let loader = &self.placement.loader;
        let work_as_loader = || {
            loader.apply();
            work();
        };
        thread::scope(|scope| {
            for index in 1..thread_count {
                let started = thread::Builder::new()
                    .name(format!("download-{index}"))
                    .spawn_scoped(scope, work_as_loader);
                if started.is_err() {
                    break;
                }
            }
            // This thread is one of them, so the work is done even if no other could be started.
            work();
        });
    }

    fn download(
        &self,
        id: &ModelId,
        path: &Path,
        listing: &RemoteListing,
        looks: &Fingerprint,
    ) -> Result<LocalModel, Error> {
        let _shown = self.table.show_downloading(id);
        let uri = remote::uri(path).unwrap_or_default();
        let scratch = match self.options.remote.mount_directory(uri) {
            Some(parent) => ScratchDirectory::below(&parent)?,
            None => ScratchDirectory::new()?,
        };
        let incoming = scratch.path().join(INCOMING);
        let target = scratch.path().join(&*id.name);
        let failed = |cause: &std::io::Error| {
            let target = target.display();
            Error::internal(format!(
                "failed to create local folder: {target}, errno:{cause}"
            ))
        };
        fs::create_dir(&incoming).map_err(|cause| failed(&cause))?;
        let whole = ByteCount {
            files: listing.objects.len(),
            bytes: listing.total_bytes(),
        };
        log::info!("downloading '{id}' from {uri}: {whole}");
        let started = Instant::now();
        let reporter = DownloadReporter::new(self, id, whole);
        let wanted = remote::DownloadSpec {
            directory: uri,
            listing,
            target: &incoming,
        };
        let watch = |progress| reporter.report(progress);
        self.options.remote.download(&wanted, &watch)?;
        fs::rename(&incoming, &target).map_err(|cause| failed(&cause))?;
        let seconds = started.elapsed().as_secs_f32();
        log::info!("downloaded '{id}': {whole} in {seconds:.1} s");
        let copy = Arc::new(RemoteCopy {
            path: target,
            looks: looks.clone(),
            _scratch: scratch,
        });
        self.copies.add(path, &copy);
        Ok(LocalModel {
            path: path.to_owned(),
            looks: looks.clone(),
            copy: Some(copy),
        })
    }
}

fn nothing_at(uri: &str) -> Error {
    Error::internal(format!("directory or file does not exist at {uri}"))
}

/// Tells log and index how far a download is.
struct DownloadReporter<'l> {
    lifecycle: &'l Lifecycle,
    id: &'l ModelId,
    whole: ByteCount,
    /// When index and log are next told.
    next: std::cell::Cell<(Instant, Instant)>,
}

impl<'l> DownloadReporter<'l> {
    fn new(lifecycle: &'l Lifecycle, id: &'l ModelId, whole: ByteCount) -> DownloadReporter<'l> {
        let now = Instant::now();
        DownloadReporter {
            lifecycle,
            id,
            whole,
            next: std::cell::Cell::new((now, now + LOG_PERIOD)),
        }
    }

    /// # Errors
    /// UNAVAILABLE if the server is stopping.
    fn report(&self, progress: DownloadProgress) -> Result<(), Error> {
        let now = Instant::now();
        let (mut index_at, mut log_at) = self.next.get();
        if now < index_at {
            return Ok(());
        }
        if self.lifecycle.is_ending() {
            return Err(super::stopping());
        }
        let DownloadReporter { id, whole, .. } = self;
        let words = format!(
            "downloading: {} of {} files, {}",
            progress.files,
            whole.files,
            DownloadedShare(progress.bytes, whole.bytes)
        );
        index_at = now + INDEX_PERIOD;
        if now >= log_at {
            log_at = now + LOG_PERIOD;
            log::info!("'{id}' is {words}");
        }
        self.lifecycle.table.set_downloading(id, words);
        self.next.set((index_at, log_at));
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct ByteCount {
    files: usize,
    bytes: u64,
}

impl std::fmt::Display for ByteCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bytes {
            bytes @ ..MB => write!(f, "{} files, {bytes} bytes", self.files),
            bytes => write!(f, "{} files, {} MB", self.files, Tenths(bytes)),
        }
    }
}

/// A part of a number of bytes, in units of the whole.
struct DownloadedShare(u64, u64);

impl std::fmt::Display for DownloadedShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            DownloadedShare(part, whole @ ..MB) => write!(f, "{part} of {whole} bytes"),
            DownloadedShare(part, whole) => write!(f, "{} of {} MB", Tenths(part), Tenths(whole)),
        }
    }
}

/// Bytes in megabytes, with one digit behind the point.
struct Tenths(u64);

impl std::fmt::Display for Tenths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / MB, self.0 / (MB / 10) % 10)
    }
}

const MB: u64 = 1_000_000;
/// What is being written; renamed to the model's name when it is complete.
const INCOMING: &str = ".incoming";
const INDEX_PERIOD: Duration = Duration::from_millis(200);
const LOG_PERIOD: Duration = Duration::from_secs(5);
