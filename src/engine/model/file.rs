//! Files that a configuration names and that lie in the model's directory: read by control threads
//! when the model is loaded.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::Error;

/// A file of a model.
#[derive(Debug)]
pub(crate) struct ModelFile {
    /// As configured.
    path: PathBuf,
    /// Without links and dots, as far as it exists.
    resolved: PathBuf,
    is_inside: bool,
}

impl ModelFile {
    /// The file called `name` in `directory`. A name that begins with a slash is relative all the
    /// same, as upstream.
    ///
    /// # Errors
    /// INVALID_ARG if there is no such directory.
    pub(crate) fn locate(directory: &Path, name: &str) -> Result<ModelFile, Error> {
        let own = directory.canonicalize().map_err(|cause| {
            let directory = directory.display();
            Error::invalid(format!(
                "Failed to canonicalize parent path '{directory}': {cause}"
            ))
        })?;
        let path = directory.join(name.trim_start_matches('/'));
        let resolved = resolved(&path);
        Ok(ModelFile {
            is_inside: resolved.starts_with(own),
            path,
            resolved,
        })
    }

    /// Whether it lies in the model's directory, whatever links it goes by.
    pub(crate) fn is_inside(&self) -> bool {
        self.is_inside
    }

    /// How many bytes it has.
    ///
    /// # Errors
    /// INTERNAL if that cannot be told, or if it is no file.
    pub(crate) fn size_bytes(&self) -> Result<u64, Error> {
        let metadata = self.metadata().map_err(|cause| self.unreadable(&cause))?;
        Ok(metadata.len())
    }

    /// All of it.
    ///
    /// # Errors
    /// INTERNAL if it cannot be read, or has more than `bytes_max` bytes.
    pub(crate) fn read(&self, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let bytes = self.read_prefix(bytes_max.saturating_add(1))?;
        if bytes.len() as u64 > bytes_max {
            let cause = io::Error::other(format!("it is larger than {bytes_max} bytes"));
            return Err(self.unreadable(&cause));
        }
        Ok(bytes)
    }

    /// At most its first `bytes` bytes.
    ///
    /// # Errors
    /// INTERNAL if it cannot be read.
    pub(crate) fn read_prefix(&self, bytes: u64) -> Result<Vec<u8>, Error> {
        let read = || {
            // Asked first, for its words.
            self.metadata()?;
            let mut contents = Vec::new();
            let file = conch_config::files::open(&self.resolved)?;
            file.take(bytes).read_to_end(&mut contents)?;
            Ok(contents)
        };
        read().map_err(|cause: io::Error| self.unreadable(&cause))
    }

    fn metadata(&self) -> io::Result<Metadata> {
        let metadata = std::fs::metadata(&self.resolved)?;
        if metadata.is_file() {
            Ok(metadata)
        } else {
            Err(io::Error::other("it is no file"))
        }
    }

    fn unreadable(&self, cause: &io::Error) -> Error {
        Error::internal(format!("failed to open text file for read {self}: {cause}"))
    }
}

/// As it was configured.
impl fmt::Display for ModelFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// The path without links and dots, as far as it exists; what does not exist can hide no link.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in absolute.ancestors() {
        let Ok(mut whole) = ancestor.canonicalize() else {
            continue;
        };
        let rest = absolute.strip_prefix(ancestor).unwrap_or(Path::new(""));
        for part in rest.components() {
            match part {
                Component::ParentDir => {
                    whole.pop();
                }
                part => whole.push(part),
            }
        }
        return whole;
    }
    absolute
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Directory;

    #[test]
    fn what_cannot_be_read_says_why() {
        let directory = Directory::new();
        directory.file("m/text", "0123456789");
        directory.folder("m/folder");
        let model = directory.path("m");
        let locate = |name: &str| ModelFile::locate(&model, name).unwrap();
        assert_eq!(locate("text").read(10).unwrap(), b"0123456789");
        let unreadable = |name: &str, why: &str| {
            let path = model.join(name);
            let path = path.display();
            Err(Error::internal(format!(
                "failed to open text file for read {path}: {why}"
            )))
        };
        for (name, why) in [
            ("text", "it is larger than 9 bytes"),
            ("folder", "it is no file"),
            ("none", "No such file or directory (os error 2)"),
        ] {
            assert_eq!(locate(name).read(9), unreadable(name, why));
        }
        let nowhere = directory.path("nowhere");
        let message = format!(
            "Failed to canonicalize parent path '{}': No such file or directory (os error 2)",
            nowhere.display()
        );
        assert_eq!(
            ModelFile::locate(&nowhere, "text").unwrap_err(),
            Error::invalid(message)
        );
    }
}
