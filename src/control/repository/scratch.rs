//! Temporary directories for what models need on disk while they are loaded.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use conch_engine::Error;
use conch_log as log;

/// A new directory that no other user may look into (weights can be secret). Removed, with all in
/// it, when the value is dropped.
#[derive(Debug)]
pub struct ScratchDirectory {
    path: PathBuf,
}

impl ScratchDirectory {
    /// Makes a directory below the system's own for temporary files.
    ///
    /// # Errors
    /// INTERNAL if that fails.
    pub fn new() -> Result<ScratchDirectory, Error> {
        ScratchDirectory::below(&std::env::temp_dir())
    }

    /// Makes a directory below `parent`.
    ///
    /// # Errors
    /// INTERNAL if that fails.
    pub fn below(parent: &Path) -> Result<ScratchDirectory, Error> {
        let path = make_directory(parent).map_err(|cause| {
            // The path is for the operator alone: clients read the error.
            log::error!("no temporary directory in '{}': {cause}", parent.display());
            Error::internal(format!("failed to create a temporary directory: {cause}"))
        })?;
        Ok(ScratchDirectory { path })
    }

    /// Absolute and without links.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        if let Err(cause) = fs::remove_dir_all(&self.path) {
            log::error!("failed to remove '{}': {cause}", self.path.display());
        }
    }
}

fn make_directory(parent: &Path) -> io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut attempts_left = ATTEMPTS_MAX;
    loop {
        let name = format!(
            "conch-model-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = parent.join(name);
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return fs::canonicalize(path),
            // Left by a process of the same number that was killed.
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists && attempts_left > 0 => {
                attempts_left -= 1;
            }
            Err(cause) => return Err(cause),
        }
    }
}

const ATTEMPTS_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_directory_is_private_and_goes_with_the_value() {
        let directory = ScratchDirectory::new().unwrap();
        let path = directory.path().to_owned();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/b/c"), "").unwrap();
        drop(directory);
        assert!(!path.exists());
    }
}
