//! The source of a loaded model, to tell whether a load would change anything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use conch_config::ModelConfig;

use crate::repository::fingerprint::Fingerprint;

#[derive(Clone, Debug)]
pub(super) struct ModelSource {
    /// The model's directory in its repository.
    pub(super) path: PathBuf,
    /// How that directory looked when it was read; none if the files came with the request.
    pub(super) looks: Option<Fingerprint>,
    /// Nothing came with the request.
    pub(super) is_plain: bool,
    /// The next load changes nothing unless the directory looks otherwise, though the configuration
    /// came with the request.
    pub(super) keeps_config: bool,
    /// As it was before the backend completed it.
    pub(super) config: ModelConfig,
    /// Models that it needs: the steps of an ensemble.
    pub(super) needs: BTreeSet<String>,
    /// Somebody asked for this very model, not only for one that needs it.
    pub(super) is_explicit: bool,
}

impl ModelSource {
    /// This source in the place of `previous`: a wish for the model itself is not forgotten.
    pub(super) fn following(mut self, previous: Option<&ModelSource>) -> ModelSource {
        self.is_explicit |= previous.is_some_and(|source| source.is_explicit);
        self
    }

    /// Whether a model in directory `path` that looks like `looks` is the one that is loaded.
    pub(super) fn is_same(&self, path: &Path, looks: &Fingerprint) -> bool {
        (self.is_plain || self.keeps_config)
            && self.path == path
            && self.looks.as_ref() == Some(looks)
    }

    /// Whether a version can stay as it is when `next` is loaded: its files look the same, and the
    /// configurations differ at most in which versions they want.
    pub(super) fn is_unchanged_in(&self, next: &ModelSource, version: i64) -> bool {
        self.has_same_files(next, version)
            && wanting_any_version(&self.config) == wanting_any_version(&next.config)
    }

    /// Whether a version needs other instances at most: as [`ModelSource::is_unchanged_in`], but
    /// for the instance groups.
    pub(super) fn has_same_model_in(&self, next: &ModelSource, version: i64) -> bool {
        let groupless = |config: &ModelConfig| ModelConfig {
            instance_group: Vec::new(),
            ..wanting_any_version(config)
        };
        self.has_same_files(next, version) && groupless(&self.config) == groupless(&next.config)
    }

    fn has_same_files(&self, next: &ModelSource, version: i64) -> bool {
        let (Some(before), Some(after)) = (&self.looks, &next.looks) else {
            return false;
        };
        self.path == next.path && before.has_same_version(after, version)
    }

    /// Of a load that failed: the next one is to try again.
    pub(super) fn of_failure(mut self) -> ModelSource {
        self.is_plain = false;
        self.keeps_config = false;
        self.looks = None;
        self
    }
}

fn wanting_any_version(config: &ModelConfig) -> ModelConfig {
    ModelConfig {
        version_policy: None,
        ..config.clone()
    }
}

/// The names of all models that go when `name` is unloaded: itself and, on request, those that are
/// there only for what goes. What needs them goes as well, but comes back with them: see
/// [`dependents`].
pub(super) fn unloaded(
    sources: &[(&str, &ModelSource)],
    name: &str,
    with_dependents: bool,
) -> BTreeSet<String> {
    let mut unloaded = BTreeSet::from([name.to_owned()]);
    loop {
        let before = unloaded.len();
        for (name, source) in sources {
            let mut users = sources
                .iter()
                .filter(|(_, user)| user.needs.contains(*name))
                .peekable();
            let is_unowned = with_dependents
                && !source.is_explicit
                && users.peek().is_some()
                && users.all(|(user, _)| unloaded.contains(*user));
            if is_unowned {
                unloaded.insert((*name).to_owned());
            }
        }
        if unloaded.len() == before {
            return unloaded;
        }
    }
}

/// The names of those that need one of `changed`, near or far; `needs` is what each needs.
pub(super) fn dependents(
    needs: &[(&str, &BTreeSet<String>)],
    changed: &BTreeSet<String>,
) -> BTreeSet<String> {
    let mut dependents = BTreeSet::new();
    loop {
        let before = dependents.len();
        for (name, needed) in needs {
            if !needed.is_disjoint(changed) || !needed.is_disjoint(&dependents) {
                dependents.insert((*name).to_owned());
            }
        }
        if dependents.len() == before {
            return dependents;
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
        let sources: Vec<(&str, ModelSource)> = models
            .iter()
            .map(|(name, needs, is_explicit)| {
                let source = ModelSource {
                    path: PathBuf::new(),
                    looks: None,
                    is_plain: true,
                    keeps_config: false,
                    config: ModelConfig::default(),
                    needs: needs.iter().map(|need| (*need).to_owned()).collect(),
                    is_explicit: *is_explicit,
                };
                (*name, source)
            })
            .collect();
        let sources: Vec<(&str, &ModelSource)> = sources
            .iter()
            .map(|(name, source)| (*name, source))
            .collect();
        let needs: Vec<(&str, &BTreeSet<String>)> = sources
            .iter()
            .filter(|(_, source)| !source.needs.is_empty())
            .map(|(name, source)| (*name, &source.needs))
            .collect();
        // Name, with dependents; what is unloaded, what lies dormant.
        let table: [(&str, bool, &[&str], &[&str]); 8] = [
            ("alone", true, &["alone"], &[]),
            ("outer", false, &["outer"], &[]),
            // `b` was asked for, `c` is needed elsewhere.
            ("outer", true, &["a", "inner", "outer"], &[]),
            ("a", false, &["a"], &["inner", "outer"]),
            // What needs it is not unloaded, so neither is what that needs.
            ("a", true, &["a"], &["inner", "outer"]),
            ("c", false, &["c"], &["outer", "second"]),
            ("second", true, &["second"], &[]),
            ("unknown", true, &["unknown"], &[]),
        ];
        for (name, with_dependents, expected, expected_dormant) in table {
            let gone = unloaded(&sources, name, with_dependents);
            assert!(gone.iter().eq(expected), "{name}: {gone:?}");
            let mut dormant = dependents(&needs, &gone);
            dormant.retain(|name| !gone.contains(name));
            assert!(dormant.iter().eq(expected_dormant), "{name}: {dormant:?}");
        }
    }
}
