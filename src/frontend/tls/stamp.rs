//! What tells whether a file has changed, without reading it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is known of files that belong together; none for one that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamps(Box<[Option<FileStamp>]>);

/// A file that is written anew has another time or length, one that is moved over another, or to
/// which a link leads from now on, has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    number: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamps {
    /// Looks at the files. Blocks as the file system does.
    pub(crate) fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> FileStamps {
        FileStamps(paths.into_iter().map(FileStamp::of).collect())
    }
}

impl FileStamp {
    fn of(path: &Path) -> Option<FileStamp> {
        let found = std::fs::metadata(path).ok()?;
        Some(FileStamp {
            device: found.dev(),
            number: found.ino(),
            bytes: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn changes_of_any_kind_are_seen() {
        let folder = std::env::temp_dir().join(format!("conch-stamps-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        for name in ["certificate", "first", "second"] {
            fs::write(path(name), "one").unwrap();
        }
        symlink(path("first"), path("key")).unwrap();
        let (certificate, key) = (path("certificate"), path("key"));
        let stamps = || FileStamps::of([&*certificate, &*key, Path::new("")]);
        let mut last = stamps();
        let mut changed = |name: &str, expected: bool| {
            let now = stamps();
            assert_eq!(now != last, expected, "{name}");
            last = now;
        };
        changed("nothing", false);
        fs::write(path("certificate"), "longer").unwrap();
        changed("a file written anew", true);
        fs::write(path("new"), "longer").unwrap();
        fs::rename(path("new"), path("certificate")).unwrap();
        changed("a file moved over another", true);
        symlink(path("second"), path("new")).unwrap();
        fs::rename(path("new"), path("key")).unwrap();
        changed("a link that leads elsewhere", true);
        fs::write(path("second"), "longer").unwrap();
        changed("a file behind a link", true);
        fs::remove_file(path("certificate")).unwrap();
        changed("a file that is gone", true);
        changed("nothing more", false);
        fs::remove_dir_all(folder).unwrap();
    }
}
