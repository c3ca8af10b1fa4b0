//! Folders for unpacked archives in the temporary folder, and the end of those whose server was
//! killed.
//!
//! A server holds a lock (`flock`) on a file in each of its folders, so that the folder of a living
//! server is told from one that was left, whatever namespace or user the server belongs to.

use std::fs::{DirBuilder, DirEntry, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// Upstream's begin with `python_env_` and are left alone.
const PREFIX: &str = "conch_python_env_";

/// The file that is locked.
const OWNER: &str = ".owner";

/// Names that are tried: others may exist, of servers with the same process id.
const NAMES_MAX: u32 = 10_000;

/// Entries of the temporary folder that a start looks at, and folders that it removes.
const LOOKS_MAX: usize = 10_000;
const REMOVALS_MAX: usize = 8;

/// A folder of this process, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct UnpackedFolder {
    path: PathBuf,
    /// Locked as long as it is open.
    _owner: File,
}

impl UnpackedFolder {
    /// A new, empty folder in `parent` for this user alone.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn create(parent: &Path) -> io::Result<UnpackedFolder> {
        for number in 0..NAMES_MAX {
            let path = parent.join(format!("{PREFIX}{}_{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            match own(&path) {
                Ok(Some(owner)) => {
                    return Ok(UnpackedFolder {
                        path,
                        _owner: owner,
                    });
                }
                // Another server took it for one that was left.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let _ = std::fs::remove_dir_all(&path);
                    return Err(error);
                }
            }
        }
        Err(io::Error::other("too many folders of unpacked archives"))
    }

    /// Where the contents of an archive go: apart from the locked file, which they may not replace.
    pub(crate) fn contents(&self) -> PathBuf {
        self.path.join("environment")
    }

    #[cfg(test)]
    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnpackedFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Locks the file of a new folder; none if another server removes the folder.
fn own(folder: &Path) -> io::Result<Option<File>> {
    let owner = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(folder.join(OWNER))?;
    let is_locked = rustix::fs::flock(&owner, FlockOperation::NonBlockingLockExclusive).is_ok();
    // Who removes a folder has locked the file before.
    Ok((is_locked && owner.metadata()?.nlink() > 0).then_some(owner))
}

/// Removes folders that this user's servers left in `parent` when they were killed: which, and what
/// became of it.
pub(crate) fn sweep(parent: &Path) -> Vec<(PathBuf, io::Result<()>)> {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return Vec::new();
    };
    let left = entries
        .take(LOOKS_MAX)
        .filter_map(Result::ok)
        .filter_map(|entry| Some((lock_left(&entry)?, entry.path())));
    left.take(REMOVALS_MAX)
        .map(|(_owner, path)| {
            let removed = std::fs::remove_dir_all(&path);
            (path, removed)
        })
        .collect()
}

/// The locked file of a folder whose server is gone.
fn lock_left(entry: &DirEntry) -> Option<File> {
    let name = entry.file_name();
    if !name.to_string_lossy().starts_with(PREFIX) {
        return None;
    }
    // Of the entry itself, not of what a symbolic link leads to.
    let about = entry.metadata().ok()?;
    if !about.is_dir() || about.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let owner = File::open(entry.path().join(OWNER)).ok()?;
    rustix::fs::flock(&owner, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_removed_and_what_is_in_use_is_not() {
        let parent = std::env::temp_dir().join(format!("conch-unpacked-{}", std::process::id()));
        std::fs::create_dir_all(&parent).unwrap();
        let used = UnpackedFolder::create(&parent).unwrap();
        std::fs::write(used.path().join("file"), "used").unwrap();
        // As a killed server leaves it: without a lock.
        let left = parent.join(format!("{PREFIX}1_0"));
        std::fs::create_dir_all(left.join("bin")).unwrap();
        std::fs::write(left.join(OWNER), "").unwrap();
        let others = ["python_env_1_0", "conch_python_env_2_0", "other"].map(|it| parent.join(it));
        for other in &others {
            // Without the file it may be one that is being made.
            std::fs::create_dir(other).unwrap();
        }
        let target = parent.join("target");
        std::fs::create_dir(&target).unwrap();
        std::fs::write(target.join(OWNER), "").unwrap();
        std::os::unix::fs::symlink(&target, parent.join(format!("{PREFIX}3_0"))).unwrap();
        let swept = sweep(&parent);
        assert!(
            matches!(&*swept, [(path, Ok(()))] if *path == left),
            "{swept:?}"
        );
        assert!(!left.exists());
        assert!(used.path().join("file").exists());
        assert!(others.iter().all(|other| other.exists()));
        assert!(target.exists());
        let path = used.path().to_owned();
        let second = UnpackedFolder::create(&parent).unwrap();
        assert_ne!(second.path(), path);
        drop(used);
        assert!(!path.exists());
        drop(second);
        std::fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn one_start_removes_a_bounded_number() {
        let parent = std::env::temp_dir().join(format!("conch-sweep-{}", std::process::id()));
        for number in 0..=REMOVALS_MAX {
            let left = parent.join(format!("{PREFIX}1_{number}"));
            std::fs::create_dir_all(&left).unwrap();
            std::fs::write(left.join(OWNER), "").unwrap();
        }
        assert_eq!(sweep(&parent).len(), REMOVALS_MAX);
        assert_eq!(std::fs::read_dir(&parent).unwrap().count(), 1);
        assert_eq!(sweep(&parent).len(), 1);
        assert_eq!(std::fs::read_dir(&parent).unwrap().count(), 0);
        std::fs::remove_dir_all(&parent).unwrap();
    }
}
