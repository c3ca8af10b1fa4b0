//! The local directory of a model that is to be loaded: its repository's, or a downloaded copy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conch_engine::model::registry::ModelId;

use crate::ScratchDirectory;
use crate::repository::fingerprint::Fingerprint;

/// A model that lies where it can be read.
pub(super) struct LocalModel {
    /// Its place in the repository.
    pub(super) path: PathBuf,
    /// How that looked before anything was read, so that a change meanwhile shows next time.
    pub(super) looks: Fingerprint,
    /// Keeps the files; none if they lie in the repository.
    pub(super) copy: Option<Arc<RemoteCopy>>,
}

impl LocalModel {
    /// Where the files are.
    pub(super) fn directory(&self) -> &Path {
        self.copy.as_ref().map_or(&self.path, |copy| &copy.path)
    }
}

/// The files of a remote model; removed with the value.
#[derive(Debug)]
pub(super) struct RemoteCopy {
    pub(super) path: PathBuf,
    pub(super) looks: Fingerprint,
    pub(super) _scratch: ScratchDirectory,
}

/// The copies that there are.
#[derive(Default)]
pub(super) struct RemoteCopies(Mutex<KnownCopy>);

#[derive(Default)]
struct KnownCopy {
    /// The latest of each place.
    pub(super) latest: BTreeMap<PathBuf, Weak<RemoteCopy>>,
    /// Of loads that failed: the next poll does not download the same again.
    pub(super) spares: BTreeMap<ModelId, Arc<RemoteCopy>>,
}

impl RemoteCopies {
    pub(super) fn add_spare(&self, id: &ModelId, copy: &Arc<RemoteCopy>) {
        let replaced = self.lock().spares.insert(id.clone(), Arc::clone(copy));
        // Directories are removed without the lock.
        drop(replaced);
    }

    /// Lets all go but those of models that `is_wanted`.
    pub(super) fn retain(&self, is_wanted: impl Fn(&ModelId) -> bool) {
        let mut known = self.lock();
        let (kept, gone) = std::mem::take(&mut known.spares)
            .into_iter()
            .partition(|(id, _)| is_wanted(id));
        known.spares = kept;
        drop(known);
        drop::<BTreeMap<_, _>>(gone);
    }

    /// The model is loaded, or is not to be any more.
    pub(super) fn forget(&self, id: &ModelId) {
        let spare = self.lock().spares.remove(id);
        drop(spare);
    }

    pub(super) fn find(&self, path: &Path, looks: &Fingerprint) -> Option<Arc<RemoteCopy>> {
        let copy = self.lock().latest.get(path).and_then(Weak::upgrade);
        copy.filter(|copy| copy.looks == *looks)
    }

    pub(super) fn add(&self, path: &Path, copy: &Arc<RemoteCopy>) {
        let mut known = self.lock();
        known.latest.retain(|_, copy| copy.strong_count() > 0);
        known.latest.insert(path.to_owned(), Arc::downgrade(copy));
    }

    fn lock(&self) -> MutexGuard<'_, KnownCopy> {
        // Each change is one insertion or removal, so a panic elsewhere leaves them sound.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
