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

    /// Of a load that failed: the next one is to try again.
    pub(super) fn of_failure(mut self) -> Source {
        self.fingerprint = None;
        self
    }
}

/// The names of all models that go when `name` goes: those that cannot be without it, and on request those that are there only for
/// what goes.
pub(super) fn affected(
    sources: &[(&str, &Source)],
    name: &str,
    with_dependents: bool,
) -> BTreeSet<String> {
    let mut affected = BTreeSet::from([name.to_owned()]);
    loop {
        let before = affected.len();
        for (name, source) in sources {
            let needs_one = !source.needs.is_disjoint(&affected);
            let mut users = sources
                .iter()
                .filter(|(_, user)| user.needs.contains(*name))
                .peekable();
            let is_orphan = with_dependents
                && !source.is_explicit
                && users.peek().is_some()
                && users.all(|(user, _)| affected.contains(*user));
            if needs_one || is_orphan {
                affected.insert((*name).to_owned());
            }
        }
        if affected.len() == before {
            return affected;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_along() {
        // Name, needs, explicitly loaded.
        let models: [(&str, &[&str], bool); 7] = [
            ("outer", &["inner", "c"], true),
            ("inner", &["a", "b"], false),
            ("a", &[], false),
            ("b", &[], true),
            ("c", &[], false),
            ("second", &["c"], true),
            ("alone", &[], true),
        ];
        let sources: Vec<(&str, Source)> = models
            .iter()
            .map(|(name, needs, is_explicit)| {
                let needs = needs.iter().map(|need| (*need).to_owned()).collect();
                (
                    *name,
                    Source::new(PathBuf::new(), None, needs, *is_explicit),
                )
            })
            .collect();
        let sources: Vec<(&str, &Source)> = sources
            .iter()
            .map(|(name, source)| (*name, source))
            .collect();
        let table: [(&str, bool, &[&str]); 7] = [
            ("alone", true, &["alone"]),
            ("outer", false, &["outer"]),
            // `b` was asked for, `c` is needed elsewhere.
            ("outer", true, &["a", "inner", "outer"]),
            ("a", false, &["a", "inner", "outer"]),
            ("c", false, &["c", "outer", "second"]),
            ("second", true, &["second"]),
            ("unknown", true, &["unknown"]),
        ];
        for (name, with_dependents, expected) in table {
            let got = affected(&sources, name, with_dependents);
            assert!(got.iter().eq(expected), "{name}: {got:?}");
        }
    }
}
