//! A temporary directory with a model repository.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A temporary directory that is removed with the value.
pub struct Directory(PathBuf);

impl Default for Directory {
    fn default() -> Directory {
        Directory::new()
    }
}

impl Directory {
    /// An empty directory below that of the system's temporary files.
    pub fn new() -> Directory {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "conch-engine-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("the temporary directory can be written");
        Directory(path)
    }

    pub fn path(&self, relative: &str) -> PathBuf {
        self.0.join(relative)
    }

    pub fn folder(&self, relative: &str) {
        fs::create_dir_all(self.path(relative)).expect("the temporary directory can be written");
    }

    pub fn file(&self, relative: &str, contents: &str) {
        let path = self.path(relative);
        fs::create_dir_all(
            path.parent()
                .expect("the temporary directory can be written"),
        )
        .expect("the temporary directory can be written");
        fs::write(path, contents).expect("the temporary directory can be written");
    }

    /// A model of the fake backend in repository `repository`, with these versions and `extra`
    /// lines of configuration.
    pub fn model(&self, repository: &str, name: &str, versions: &[&str], extra: &str) {
        self.folder(&format!("{repository}/{name}"));
        for version in versions {
            self.folder(&format!("{repository}/{name}/{version}"));
        }
        let backend = if extra.contains("backend:") {
            ""
        } else {
            "backend: 'fake'"
        };
        let tensors = if extra.contains("input") {
            ""
        } else {
            "input [ { name: 'IN' data_type: TYPE_INT32 dims: [ 1 ] } ]
             output [ { name: 'OUT' data_type: TYPE_INT32 dims: [ 1 ] } ]"
        };
        self.file(
            &format!("{repository}/{name}/config.pbtxt"),
            &format!("{backend} max_batch_size: 8 {tensors} {extra}\n"),
        );
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
