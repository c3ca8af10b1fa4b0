//! What a loaded model was made of, to tell whether a load would change anything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::fingerprint::Fingerprint;

#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The model's directory in its repository.
    path: PathBuf,
    /// Of that directory when it was read; none if what the model was made of came with the request: the next load reads it again.
    fingerprint: Option<Fingerprint>,
    /// Models that it needs: the steps of an ensemble.
    pub(super) needs: BTreeSet<String>,
    /// Somebody asked for this very model, not only for one that needs it.
    pub(super) is_explicit: bool,
}

impl Source {
    pub(super) fn new(
        path: PathBuf,
        fingerprint: Option<Fingerprint>,
        needs: BTreeSet<String>,
        is_explicit: bool,
    ) -> Source {
        Source {
            path,
            fingerprint,
            needs,
            is_explicit,
        }
    }

    /// This source in the place of `previous`: a wish for the model itself is not forgotten.
    pub(super) fn following(mut self, previous: Option<&Source>) -> Source {
        self.is_explicit |= previous.is_some_and(|source| source.is_explicit);
        self
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a model in directory `path` that looks like `fingerprint` is the one that is loaded.
    pub(super) fn is_same(&self, path: &Path, fingerprint: &Fingerprint) -> bool {
        self.path == path && self.fingerprint.as_ref() == Some(fingerprint)
    }
}
