//! Bringing the objects of a directory to disk: in parts, several at once, each resumed where it
//! broke off.
//!
//! A directory that fails is left as it is for the caller to remove; nothing outside of it is
//! touched, whatever the objects are called.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use conch_control::remote::{DownloadObserver, DownloadProgress, DownloadSpec, RemoteObject};
use conch_engine::{Code, Error};
use conch_log as log;
use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectStore};
use tokio::time::sleep;

use crate::failure::RemoteFailure;
use crate::listing;
use crate::uri::UriLocation;

/// Writes all that is wanted of `place`.
pub(crate) async fn download(
    store: &dyn ObjectStore,
    place: &UriLocation,
    wanted: &DownloadSpec<'_>,
    watch: &DownloadObserver<'_>,
) -> Result<(), RemoteFailure> {
    let DownloadSpec {
        directory: uri,
        listing,
        target,
    } = *wanted;
    let needed = listing.total_bytes();
    let free = free_bytes(target);
    if free.is_some_and(|free| free < needed) {
        let free = free.unwrap_or_default();
        return Err(RemoteFailure::Final(Error::internal(format!(
            "there is not enough space for '{uri}' in '{}': it has {needed} bytes, {free} are free",
            target.display()
        ))));
    }
    // A first attempt with other credentials may have left something.
    clear(target)?;
    let course = DownloadState {
        store,
        place,
        progress: Cell::default(),
        watch,
    };
    let mut parts = Vec::new();
    for object in &listing.objects {
        let path = target.join(local_name(&object.name)?);
        if let Some(parent) = path.parent() {
            make_directories(parent)?;
        }
        create(&path)?;
        let mut start = 0u64;
        // What is empty has one part, too: it may turn out to be the mark of a directory.
        loop {
            let end = object.bytes.min(start.saturating_add(PART_BYTES));
            parts.push(DownloadPart {
                object,
                path: path.clone(),
                start,
                end,
            });
            start = end;
            if start == object.bytes {
                break;
            }
        }
    }
    let fetching = stream::iter(&parts)
        .map(|part| course.fetch(part))
        .buffer_unordered(PARTS_AT_ONCE)
        .try_collect::<()>();
    let ticking = async {
        loop {
            sleep(TICK).await;
            if let Err(error) = watch(course.progress.get()) {
                return error;
            }
        }
    };
    match select(pin!(fetching), pin!(ticking)).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right((error, _)) => Err(RemoteFailure::Final(error)),
    }
}

/// A piece of an object, and where it goes.
struct DownloadPart<'l> {
    object: &'l RemoteObject,
    path: PathBuf,
    start: u64,
    end: u64,
}

struct DownloadState<'d> {
    store: &'d dyn ObjectStore,
    place: &'d UriLocation,
    progress: Cell<DownloadProgress>,
    watch: &'d DownloadObserver<'d>,
}

impl DownloadState<'_> {
    /// Fetches one part, going on where a broken connection left it.
    async fn fetch(&self, part: &DownloadPart<'_>) -> Result<(), RemoteFailure> {
        let mut position = part.start;
        let mut attempts_left = RESUMES_MAX;
        let mut pause = PAUSE_MIN;
        loop {
            match self.stream(part, &mut position).await {
                Ok(()) => break,
                Err(failure) if failure.is_passing() && attempts_left > 0 => {
                    attempts_left -= 1;
                    let DownloadPart { object, end, .. } = part;
                    let name = &object.name;
                    log::warning!(
                        "download of '{name}' broke at byte {position} of {end}, going on from \
                         there: {failure}"
                    );
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(failure) => return Err(failure),
            }
        }
        let is_last = part.end == part.object.bytes;
        self.advance(0, usize::from(is_last))?;
        Ok(())
    }

    /// Writes what arrives at `position` and moves it on.
    async fn stream(
        &self,
        part: &DownloadPart<'_>,
        position: &mut u64,
    ) -> Result<(), RemoteFailure> {
        let object = part.object;
        let key = match self.place.key.as_str() {
            "" => object.name.clone(),
            key => format!("{key}/{}", object.name),
        };
        let is_whole = *position == 0 && part.end == object.bytes;
        let options = GetOptions {
            range: (!is_whole).then_some(GetRange::Bounded(*position..part.end)),
            ..GetOptions::default()
        };
        let reply = match self.store.get_opts(&listing::path(&key)?, options).await {
            Ok(reply) => reply,
            // Its name ends with a slash, which listings do not tell.
            Err(object_store::Error::NotFound { .. }) if object.bytes == 0 => {
                return Ok(turn_into_directory(&part.path)?);
            }
            Err(object_store::Error::NotFound { .. }) => return Err(changed(object)),
            Err(error) => return Err(RemoteFailure::Store(error)),
        };
        let tag = listing::tag(&reply.meta);
        let has_other_tag = !tag.is_empty() && !object.tag.is_empty() && tag != object.tag;
        if has_other_tag || reply.meta.size != object.bytes {
            return Err(changed(object));
        }
        let file = OpenOptions::new()
            .write(true)
            .open(&part.path)
            .map_err(|cause| disk(&part.path, &cause))?;
        let mut body = reply.into_stream();
        while let Some(bytes) = body.try_next().await? {
            let count = bytes.len() as u64;
            if part.end - *position < count {
                return Err(RemoteFailure::Final(Error::internal(format!(
                    "the store sent more of '{}' than it has",
                    object.name
                ))));
            }
            file.write_all_at(&bytes, *position)
                .map_err(|cause| disk(&part.path, &cause))?;
            *position += count;
            self.advance(count, 0)?;
        }
        if *position < part.end {
            return Err(RemoteFailure::Store(object_store::Error::Generic {
                store: "remote",
                source: format!("the reply ended at byte {position} of {}", part.end).into(),
            }));
        }
        Ok(())
    }

    fn advance(&self, bytes: u64, files: usize) -> Result<(), Error> {
        let mut progress = self.progress.get();
        progress.bytes += bytes;
        progress.files += files;
        self.progress.set(progress);
        (self.watch)(progress)
    }
}

/// Where an object goes, below its directory.
///
/// # Errors
/// INVALID_ARG for a name that leads elsewhere, or that no file can have.
fn local_name(name: &str) -> Result<PathBuf, Error> {
    let is_plain = !name.is_empty()
        && !name.contains('\0')
        && name.split('/').all(|part| {
            let mut components = Path::new(part).components();
            matches!(components.next(), Some(Component::Normal(_))) && part.len() <= NAME_MAX
        });
    if is_plain {
        return Ok(PathBuf::from(name));
    }
    Err(Error::invalid(format!(
        "an object is called '{}', which cannot be the name of a file",
        name.escape_debug()
    )))
}

fn make_directories(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|cause| match cause.kind() {
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => both(path),
        _ => Error::internal(format!(
            "Failed to create local folder: {}, errno:{cause}",
            path.display()
        )),
    })
}

fn turn_into_directory(path: &Path) -> Result<(), Error> {
    fs::remove_file(path)
        .and_then(|()| fs::create_dir(path))
        .map_err(|cause| disk_error(path, &cause))
}

fn clear(directory: &Path) -> Result<(), Error> {
    fs::remove_dir_all(directory)
        .and_then(|()| fs::create_dir(directory))
        .map_err(|cause| disk_error(directory, &cause))
}

fn create(path: &Path) -> Result<File, Error> {
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    created.map_err(|cause| match cause.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory => both(path),
        _ => disk_error(path, &cause),
    })
}

fn both(path: &Path) -> Error {
    let name = path.file_name().unwrap_or(path.as_os_str());
    Error::invalid(format!(
        "'{}' is the name of an object and of a directory",
        name.display()
    ))
}

fn disk(path: &Path, cause: &io::Error) -> RemoteFailure {
    RemoteFailure::Final(disk_error(path, cause))
}

fn disk_error(path: &Path, cause: &io::Error) -> Error {
    Error::internal(format!("failed to write '{}': {cause}", path.display()))
}

fn changed(object: &RemoteObject) -> RemoteFailure {
    RemoteFailure::Final(Error::new(
        Code::Unavailable,
        format!("'{}' changed while it was downloaded", object.name),
    ))
}

/// What may still be written there; none if the file system does not tell.
fn free_bytes(directory: &Path) -> Option<u64> {
    let state = rustix::fs::statvfs(directory).ok()?;
    state.f_bavail.checked_mul(state.f_frsize)
}

/// Large enough that the wait for a reply (some 30 ms) costs little beside 16 MiB at 1 GB/s, small
/// enough to keep all connections busy.
const PART_BYTES: u64 = 16 << 20;
/// One connection of a large store brings about 100 MB/s.
const PARTS_AT_ONCE: usize = 8;
/// Per part, on top of the retries of each request: five times five breaks, within some fifteen
/// seconds if nothing comes in between.
const RESUMES_MAX: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How soon a download hears that it is to end.
const TICK: Duration = Duration::from_millis(200);
/// Of the file systems of Linux.
const NAME_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        let long = "x".repeat(256);
        let table: [(&str, bool); 22] = [
            ("config.pbtxt", true),
            ("1/model.onnx", true),
            ("a/b/c/d", true),
            ("...", true),
            ("..a/b..", true),
            (" ", true),
            ("größe/ü", true),
            ("a\\..\\b", true),
            ("a\nb", true),
            ("", false),
            ("/etc/passwd", false),
            ("//a", false),
            ("a//b", false),
            ("a/", false),
            (".", false),
            ("..", false),
            ("./a", false),
            ("../a", false),
            ("1/../../a", false),
            ("1/..", false),
            ("a\0b", false),
            (&long, false),
        ];
        for (name, expected) in table {
            assert_eq!(local_name(name).is_ok(), expected, "{name:?}");
        }
    }
}
