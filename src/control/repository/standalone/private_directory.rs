//! A private folder below the one for temporary files, and the end of those whose process was
//! killed.
//!
//! A process holds a lock on a file in its folder, so that the folder of a living process is told
//! from one that was left, whatever namespace the process belongs to.

use std::fs::{DirBuilder, DirEntry, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use conch_log as log;

/// A folder of this process that no other user may look into, removed when it is dropped.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    path: PathBuf,
    /// Locked as long as it is open.
    _owner: File,
}

impl PrivateDirectory {
    /// Makes an empty folder in `parent`, and removes those that this user's processes left there
    /// when they were killed.
    ///
    /// # Errors
    /// What the system refuses.
    pub(super) fn create(parent: &Path) -> io::Result<PrivateDirectory> {
        let folder = PrivateDirectory::new(parent)?;
        let user = fs::metadata(&folder.path)?.uid();
        sweep(parent, user);
        Ok(folder)
    }

    /// Where contents go: apart from the locked file.
    pub(super) fn contents(&self) -> PathBuf {
        self.path.join(CONTENTS)
    }

    fn new(parent: &Path) -> io::Result<PrivateDirectory> {
        for number in 0..NAMES_MAX {
            let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                // Left by a process of the same number, or of a process in another namespace.
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(cause) => return Err(cause),
            }
            match own(&path) {
                Ok(Some(owner)) => {
                    let folder = PrivateDirectory {
                        path,
                        _owner: owner,
                    };
                    fs::create_dir(folder.contents())?;
                    return Ok(folder);
                }
                // Another process took it for one that was left.
                Ok(None) => {}
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => {
                    let _ = fs::remove_dir_all(&path);
                    return Err(cause);
                }
            }
        }
        Err(io::Error::other("too many folders of other processes"))
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if let Err(cause) = fs::remove_dir_all(&self.path) {
            log::error!("failed to remove '{}': {cause}", self.path.display());
        }
    }
}

/// Locks the file of a new folder; none if another process removes the folder.
fn own(folder: &Path) -> io::Result<Option<File>> {
    let owner = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(folder.join(OWNER))?;
    let is_locked = owner.try_lock().is_ok();
    // Who removes a folder has locked the file before.
    Ok((is_locked && owner.metadata()?.nlink() > 0).then_some(owner))
}

/// Removes folders that processes of `user` left in `parent`.
fn sweep(parent: &Path, user: u32) {
    let entries = fs::read_dir(parent).into_iter().flatten();
    let left = entries
        .take(LOOKS_MAX)
        .filter_map(Result::ok)
        .filter_map(|entry| Some((lock_left(&entry, user)?, entry.path())));
    for (_owner, path) in left.take(REMOVALS_MAX) {
        if let Err(cause) = fs::remove_dir_all(&path) {
            log::warning!("failed to remove '{}': {cause}", path.display());
        }
    }
}

/// The locked file of a folder whose process is gone.
fn lock_left(entry: &DirEntry, user: u32) -> Option<File> {
    if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
        return None;
    }
    // Of the entry itself, not of what a symbolic link leads to.
    let about = entry.metadata().ok()?;
    if !about.is_dir() || about.uid() != user {
        return None;
    }
    let owner = File::open(entry.path().join(OWNER)).ok()?;
    owner.try_lock().ok()?;
    Some(owner)
}

const PREFIX: &str = "conch-files-";

/// The file that is locked, and the folder beside it.
const OWNER: &str = ".owner";
const CONTENTS: &str = "models";

/// Names that are tried: others may exist, of processes of the same number.
const NAMES_MAX: u32 = 10_000;

/// Entries of the temporary folder that a start looks at, and folders that it removes.
const LOOKS_MAX: usize = 10_000;
const REMOVALS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use conch_engine::testing::Directory;

    #[test]
    fn what_is_left_is_removed_and_what_is_in_use_is_not() {
        let parent = Directory::new();
        parent.file("target/kept", "");
        let used = PrivateDirectory::create(&parent.path("")).unwrap();
        let mode = fs::metadata(&used.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // As a killed process leaves it: without a lock; and with a link, which is not followed.
        parent.file(&format!("{PREFIX}1-0/{OWNER}"), "");
        parent.folder(&format!("{PREFIX}1-0/{CONTENTS}"));
        let link = format!("{PREFIX}1-0/{CONTENTS}/link");
        symlink(parent.path("target"), parent.path(&link)).unwrap();
        // Of which nothing says that they are of such a process.
        parent.folder(&format!("{PREFIX}2-0"));
        parent.file("other/.owner", "");
        symlink(parent.path("other"), parent.path(&format!("{PREFIX}3-0"))).unwrap();
        let second = PrivateDirectory::create(&parent.path("")).unwrap();
        assert_ne!(used.path, second.path);
        let mut names: Vec<String> = fs::read_dir(parent.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let own = |number: u32| format!("{PREFIX}{}-{number}", std::process::id());
        let mut expected = vec![
            format!("{PREFIX}2-0"),
            format!("{PREFIX}3-0"),
            own(0),
            own(1),
            String::from("other"),
            String::from("target"),
        ];
        expected.sort();
        assert_eq!(names, expected);
        assert!(parent.path("target/kept").exists());
        let path = used.path.clone();
        drop(used);
        assert!(!path.exists() && second.contents().is_dir());
    }
}
