//! Files that came with a load instead of from a repository: a directory of their own for as long
//! as the model is loaded.

use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use conch_engine::{Error, truncated};

use crate::ScratchDirectory;

/// A temporary model directory.
#[derive(Debug)]
pub(super) struct OverrideFiles {
    directory: ScratchDirectory,
}

impl OverrideFiles {
    /// Writes `files` (path below the directory, contents) into a new directory.
    ///
    /// # Errors
    /// INVALID_ARG for a path that leads out of the directory or through a file; INTERNAL if
    /// writing fails. Nothing is left then.
    pub(super) fn write(files: &[(String, Vec<u8>)]) -> Result<OverrideFiles, Error> {
        let written = OverrideFiles {
            directory: ScratchDirectory::new()?,
        };
        for (name, contents) in files {
            written.add(name, contents)?;
        }
        Ok(written)
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    fn add(&self, name: &str, contents: &[u8]) -> Result<(), Error> {
        let relative = name.strip_prefix(FILE_PREFIX).unwrap_or(name);
        let invalid = |why: &str| {
            Error::invalid(format!(
                "Invalid file parameter '{FILE_PREFIX}{}'{why}",
                truncated(relative)
            ))
        };
        let inside =
            normalize(relative).ok_or_else(|| invalid(" must stay within model directory."))?;
        if inside.as_os_str().is_empty() {
            return Err(invalid(", it names no file"));
        }
        let path = self.path().join(inside);
        let failed = |cause: &io::Error| {
            Error::internal(format!(
                "failed to write file parameter '{}': {cause}",
                truncated(relative)
            ))
        };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|cause| match cause.kind() {
                io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                    invalid(", directory has been created as a file")
                }
                _ => failed(&cause),
            })?;
        }
        fs::write(&path, contents).map_err(|cause| match cause.kind() {
            io::ErrorKind::IsADirectory => invalid(", file has been created as a directory"),
            _ => failed(&cause),
        })
    }
}

/// The path below the directory that `relative` names, without `.` and `..`; none if it leads out.
/// The directory is ours and new, so no link is on the way.
fn normalize(relative: &str) -> Option<PathBuf> {
    let mut inside = PathBuf::new();
    // Upstream joins texts: a leading slash makes no absolute path.
    for component in Path::new(relative.trim_start_matches('/')).components() {
        match component {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !inside.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(inside)
}

const FILE_PREFIX: &str = "file:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        let table: [(&[&str], Result<&str, &str>); 12] = [
            (&["file:1/model.onnx"], Ok("1/model.onnx")),
            (&["1/a/b/c"], Ok("1/a/b/c")),
            (&["file:1/../2/./x"], Ok("2/x")),
            (&["file:/1/x"], Ok("1/x")),
            (&["file:1//x"], Ok("1/x")),
            (&["file:../x"], Err("must stay within model directory.")),
            (
                &["file:1/../../x"],
                Err("must stay within model directory."),
            ),
            (
                &["file:/../../../../tmp/x"],
                Err("must stay within model directory."),
            ),
            (&["file:"], Err("names no file")),
            (&["file:1/.."], Err("names no file")),
            (
                &["file:1", "file:1/x"],
                Err("Invalid file parameter 'file:1/x', directory has been created as a file"),
            ),
            (
                &["file:1/x", "file:1"],
                Err("Invalid file parameter 'file:1', file has been created as a directory"),
            ),
        ];
        for (names, expected) in table {
            let files: Vec<(String, Vec<u8>)> = names
                .iter()
                .map(|name| ((*name).to_owned(), b"contents".to_vec()))
                .collect();
            match (OverrideFiles::write(&files), expected) {
                (Ok(directory), Ok(path)) => {
                    let path = directory.path().join(path);
                    assert_eq!(fs::read(path).unwrap(), b"contents", "{names:?}");
                }
                (Err(error), Err(part)) => assert!(error.message.contains(part), "{error}"),
                (got, expected) => panic!("{names:?}: got {got:?}, expected {expected:?}"),
            }
        }
    }
}
