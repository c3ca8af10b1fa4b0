//! The registry of servable models, as immutable snapshots.
//!
//! The control plane publishes a new [`Snapshot`] after each change; the data plane reads through a
//! [`RegistryReader`], which costs one atomic load of a line that nobody writes between changes. A
//! request that found its [`ModelVersion`] keeps it alive, whatever the registry becomes.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use crate::model::model_map::ModelMap;
use crate::{Error, ModelVersion, truncated};

/// Where a model version stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionState {
    Loading,
    Ready,
    Unloading,
    /// With the reason: `unloaded`, or code and message of what failed.
    Unavailable(String),
}

impl VersionState {
    /// The word of the repository index.
    pub const fn name(&self) -> &'static str {
        match self {
            VersionState::Loading => "LOADING",
            VersionState::Ready => "READY",
            VersionState::Unloading => "UNLOADING",
            VersionState::Unavailable(_) => "UNAVAILABLE",
        }
    }

    /// Empty unless unavailable.
    pub fn reason(&self) -> &str {
        match self {
            VersionState::Unavailable(reason) => reason,
            VersionState::Loading | VersionState::Ready | VersionState::Unloading => "",
        }
    }
}

/// What is answered where no model is served, in upstream's words.
pub const NOT_READY: &str = "Server not ready";

/// The reason of versions that were unloaded on purpose.
pub const UNLOADED: &str = "unloaded";

/// The registry's entry of one version.
#[derive(Clone, Debug)]
pub struct VersionEntry {
    pub state: VersionState,
    /// Present while ready; kept while unloading, so that its numbers can still be read.
    pub model: Option<Arc<ModelVersion>>,
}

/// What a model is known by: its name, and the repository that it comes from where that matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId {
    /// Empty unless the server tells models of the same name apart.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ModelId {
    /// A model without a namespace.
    pub fn plain(name: &str) -> ModelId {
        ModelId {
            namespace: Arc::from(""),
            name: Arc::from(name),
        }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}::", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// All versions of one model that were ever to be loaded, ascending.
pub type Versions = BTreeMap<i64, VersionEntry>;

/// The models at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Shared between snapshots, so that a change of one model does not cost what all cost.
    models: ModelMap<Arc<NamedModels>>,
    /// Models of one name may differ in their namespace, which gives names that mean none another
    /// error.
    has_namespaces: bool,
    /// The server's start failed: there is nothing to ask.
    is_closed: bool,
    /// The ready versions whose backends want to be asked about that, by name.
    inspected: Vec<Arc<ModelVersion>>,
    /// A model bounds its live requests, or one did.
    limits_requests: bool,
}

/// The models of one name: one, but for namespaces.
#[derive(Clone, Debug, Default)]
struct NamedModels {
    /// The one that requests mean.
    versions: Versions,
    /// How many there are that were not unloaded, nor are about to be; requests cannot tell several
    /// apart.
    candidate_count: usize,
    others: Vec<Versions>,
}

impl NamedModels {
    fn add(&mut self, versions: Versions) {
        let is_candidate = versions.values().any(|entry| {
            entry.state != VersionState::Unloading && entry.state.reason() != UNLOADED
        });
        let is_first = self.versions.is_empty() || (is_candidate && self.candidate_count == 0);
        self.candidate_count += usize::from(is_candidate);
        let other = if is_first {
            std::mem::replace(&mut self.versions, versions)
        } else {
            versions
        };
        if !other.is_empty() {
            self.others.push(other);
        }
    }
}

impl Snapshot {
    pub fn new(models: impl IntoIterator<Item = (ModelId, Versions)>) -> Snapshot {
        let mut named: HashMap<Arc<str>, NamedModels> = HashMap::new();
        for (id, versions) in models {
            named.entry(id.name).or_default().add(versions);
        }
        let mut snapshot = Snapshot {
            models: named
                .into_iter()
                .map(|(name, named)| (name, Arc::new(named)))
                .collect(),
            has_namespaces: false,
            is_closed: false,
            inspected: Vec::new(),
            limits_requests: false,
        };
        snapshot.limits_requests = snapshot
            .ready_models()
            .iter()
            .any(|model| model.limits_requests());
        let ready = snapshot.ready_models().into_iter();
        snapshot.inspected = ready
            .filter(|model| model.probes.has_hooks())
            .cloned()
            .collect();
        snapshot
    }

    /// Puts `versions` in the place of those of all models called `name`; none takes the name away.
    pub fn replace(&mut self, name: &Arc<str>, versions: Option<Versions>) {
        let is_other = |model: &Arc<ModelVersion>| model.name != *name;
        self.inspected.retain(is_other);
        let Some(versions) = versions else {
            self.models.remove(name);
            return;
        };
        self.limits_requests |= versions
            .values()
            .filter_map(VersionEntry::ready)
            .any(|model| model.limits_requests());
        let count = self.inspected.len();
        self.inspected.extend(
            versions
                .values()
                .filter_map(VersionEntry::ready)
                .filter(|model| model.probes.has_hooks())
                .cloned(),
        );
        if self.inspected.len() > count {
            self.inspected.sort_by(|left, right| {
                (&left.name, left.version).cmp(&(&right.name, right.version))
            });
        }
        let mut named = NamedModels::default();
        named.add(versions);
        self.models.insert(Arc::clone(name), Arc::new(named));
    }

    /// The snapshot of a server whose models have namespaces, or have none.
    #[must_use]
    pub fn with_namespaces(mut self, has_namespaces: bool) -> Snapshot {
        self.has_namespaces = has_namespaces;
        self
    }

    /// The snapshot of a server that serves no model, because its start failed.
    pub fn closed() -> Snapshot {
        Snapshot {
            is_closed: true,
            ..Snapshot::default()
        }
    }

    /// Whether some model may bound its live requests.
    pub fn limits_requests(&self) -> bool {
        self.limits_requests
    }

    /// # Errors
    /// For a name that nobody tried to load NOT_FOUND, or INVALID_ARG where there are namespaces;
    /// INVALID_ARG for a name that several models have.
    fn unique(&self, name: &str) -> Result<&Versions, Error> {
        let named = self.models.get(name).ok_or_else(|| {
            if self.is_closed {
                return Error::unavailable(NOT_READY);
            }
            let message = format!(
                "Request for unknown model: '{name}' is not found",
                name = truncated(&name)
            );
            if self.has_namespaces {
                Error::invalid(message)
            } else {
                Error::not_found(message)
            }
        })?;
        if self.has_namespaces && named.candidate_count == 0 {
            return Err(Error::not_found(format!(
                "Identifier of model '{name}' is not found in global map",
                name = truncated(&name)
            )));
        }
        if named.candidate_count > 1 {
            return Err(Error::invalid(format!(
                "There are {} identifiers of model '{name}' in global map, model namespace must be \
                 provided to resolve ambiguity.",
                named.candidate_count,
                name = truncated(&name)
            )));
        }
        Ok(&named.versions)
    }

    /// The version asked for, or the highest ready one. Does not block, allocates only on failure.
    ///
    /// # Errors
    /// In upstream's words: NOT_FOUND for a model or version that nobody tried to load and for a
    /// model without a ready version, UNAVAILABLE for a version that is not ready.
    pub fn find(&self, name: &str, version: Option<i64>) -> Result<&Arc<ModelVersion>, Error> {
        let versions = self.unique(name)?;
        match version {
            None => versions
                .values()
                .rev()
                .find_map(VersionEntry::ready)
                .ok_or_else(|| {
                    Error::not_found(format!(
                        "Request for unknown model: '{name}' has no available versions",
                        name = truncated(&name)
                    ))
                }),
            Some(version) => {
                let entry = versions.get(&version).ok_or_else(|| {
                    Error::not_found(format!(
                        "Request for unknown model: '{name}' version {version} is not found",
                        name = truncated(&name)
                    ))
                })?;
                entry.ready().ok_or_else(|| {
                    Error::unavailable(format!(
                        "Request for unknown model: '{name}' version {version} is not at ready \
                         state",
                        name = truncated(&name)
                    ))
                })
            }
        }
    }

    /// [`Snapshot::find`] in a namespace. Where there are none, that is the empty one.
    ///
    /// # Errors
    /// As [`Snapshot::find`].
    pub(crate) fn find_in(
        &self,
        namespace: &str,
        name: &str,
        version: Option<i64>,
    ) -> Result<&Arc<ModelVersion>, Error> {
        if !self.has_namespaces {
            return self.find(name, version);
        }
        let named = self.models.get(name);
        let of_name = named.map(|named| std::iter::once(&named.versions).chain(&named.others));
        let mut ready = of_name
            .into_iter()
            .flatten()
            .flat_map(|versions| versions.values().rev().filter_map(VersionEntry::ready))
            .filter(|model| *model.namespace == *namespace);
        let found = match version {
            None => ready.next(),
            Some(version) => ready.find(|model| model.version == version),
        };
        found.ok_or_else(|| {
            Error::not_found(format!(
                "Request for unknown model: '{namespace}::{name}' has no available versions",
                name = truncated(&name)
            ))
        })
    }

    /// The ready versions of a model, ascending.
    ///
    /// # Errors
    /// NOT_FOUND if nobody tried to load such a model.
    pub fn ready_versions(&self, name: &str) -> Result<Vec<i64>, Error> {
        Ok(self
            .unique(name)?
            .iter()
            .filter(|(_, entry)| entry.ready().is_some())
            .map(|(version, _)| *version)
            .collect())
    }

    /// The ready versions whose backends have a readiness hook.
    pub fn inspected(&self) -> &[Arc<ModelVersion>] {
        &self.inspected
    }

    /// Every ready version, models by name, versions ascending.
    pub fn ready_models(&self) -> Vec<&Arc<ModelVersion>> {
        let mut ready: Vec<&Arc<ModelVersion>> = self
            .models
            .values()
            .flat_map(|named| std::iter::once(&named.versions).chain(&named.others))
            .flat_map(|versions| versions.values().filter_map(VersionEntry::ready))
            .collect();
        ready.sort_by(|left, right| {
            (&left.name, &left.namespace, left.version).cmp(&(
                &right.name,
                &right.namespace,
                right.version,
            ))
        });
        ready
    }
}

impl VersionEntry {
    fn ready(&self) -> Option<&Arc<ModelVersion>> {
        self.model
            .as_ref()
            .filter(|_| self.state == VersionState::Ready)
    }
}

/// The current snapshot.
#[derive(Debug, Default)]
pub struct Registry {
    current: Arc<ArcSwap<Snapshot>>,
}

impl Registry {
    /// For the control plane and other rare readers.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// For a thread that looks often.
    pub fn reader(&self) -> RegistryReader {
        RegistryReader {
            cache: Cache::new(Arc::clone(&self.current)),
        }
    }

    /// Makes `snapshot` the one that every later look finds. Called under the lifecycle's lock
    /// only.
    pub fn publish(&self, snapshot: Snapshot) {
        self.current.store(Arc::new(snapshot));
    }
}

/// One thread's view of the registry. Holds the snapshot it saw last until the next look.
pub struct RegistryReader {
    cache: Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>,
}

impl RegistryReader {
    pub fn load(&mut self) -> &Arc<Snapshot> {
        self.cache.load()
    }
}

impl std::fmt::Debug for RegistryReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, VersionParts};

    fn snapshot(entries: &[(&str, i64, VersionState)]) -> Snapshot {
        let mut models: HashMap<ModelId, Versions> = HashMap::new();
        for (name, version, state) in entries {
            let (namespace, name) = name.split_once("::").unwrap_or(("", name));
            let mut message = conch_config::parse_text("test", "name: 'x' backend: 'b'").unwrap();
            conch_config::normalize(&mut message);
            let config = Arc::new(conch_config::ResolvedConfig::from_partial(message).unwrap());
            let parts = VersionParts {
                namespace: Arc::from(namespace),
                ..crate::testing::parts(name, *version, &config)
            };
            let model = Arc::new(ModelVersion::new(parts));
            let entry = VersionEntry {
                state: state.clone(),
                model: Some(model),
            };
            let id = ModelId {
                namespace: Arc::from(namespace),
                name: Arc::from(name),
            };
            models.entry(id).or_default().insert(*version, entry);
        }
        Snapshot::new(models)
    }

    #[test]
    fn only_ready_versions_are_found() {
        let snapshot = snapshot(&[
            ("b", 1, VersionState::Ready),
            ("b", 2, VersionState::Ready),
            ("b", 3, VersionState::Unloading),
            ("b", 4, VersionState::Loading),
            ("a", 7, VersionState::Ready),
        ]);
        assert_eq!(snapshot.find("b", None).unwrap().version, 2);
        assert_eq!(snapshot.find("b", Some(1)).unwrap().version, 1);
        for version in [3, 4] {
            let error = snapshot.find("b", Some(version)).unwrap_err();
            assert_eq!(error.code, Code::Unavailable);
            assert_eq!(
                error.message,
                format!("Request for unknown model: 'b' version {version} is not at ready state")
            );
        }
        assert_eq!(snapshot.ready_versions("b").unwrap(), [1, 2]);
        assert_eq!(
            snapshot.ready_versions("c").unwrap_err().code,
            Code::NotFound
        );
        let all: Vec<_> = snapshot
            .ready_models()
            .into_iter()
            .map(|model| (&*model.name, model.version))
            .collect();
        assert_eq!(all, [("a", 7), ("b", 1), ("b", 2)]);
    }

    #[test]
    fn a_name_must_mean_one_model() {
        let gone = VersionState::Unavailable(UNLOADED.to_owned());
        let snapshot = snapshot(&[
            ("r::a", 1, VersionState::Ready),
            ("s::a", 2, VersionState::Ready),
            ("r::b", 1, gone.clone()),
            ("s::b", 2, VersionState::Ready),
            ("r::c", 1, gone),
            ("s::c", 2, VersionState::Unloading),
        ]);
        let error = snapshot.find("a", Some(1)).unwrap_err();
        assert_eq!(error.code, Code::InvalidArg);
        assert_eq!(
            error.message,
            "There are 2 identifiers of model 'a' in global map, model namespace must be provided \
             to resolve ambiguity."
        );
        assert_eq!(snapshot.find("b", None).unwrap().version, 2);
        assert_eq!(snapshot.find("c", None).unwrap_err().code, Code::NotFound);
        let snapshot = snapshot.with_namespaces(true);
        let absent = snapshot.find("c", None).unwrap_err();
        assert_eq!(absent.code, Code::NotFound);
        assert_eq!(
            absent.message,
            "Identifier of model 'c' is not found in global map"
        );
        let unknown = snapshot.find("d", None).unwrap_err();
        assert_eq!(unknown.code, Code::InvalidArg);
        assert_eq!(
            unknown.message,
            "Request for unknown model: 'd' is not found"
        );
        let all: Vec<_> = snapshot
            .ready_models()
            .into_iter()
            .map(|model| (&*model.namespace, &*model.name))
            .collect();
        assert_eq!(all, [("r", "a"), ("s", "a"), ("s", "b")]);
    }

    #[test]
    fn readers_see_what_was_published_last() {
        let registry = Registry::default();
        let mut reader = registry.reader();
        assert!(reader.load().find("a", None).is_err());
        registry.publish(snapshot(&[("a", 1, VersionState::Ready)]));
        let kept = Arc::clone(reader.load().find("a", None).unwrap());
        assert!(Arc::ptr_eq(reader.load(), &registry.snapshot()));
        registry.publish(Snapshot::default());
        assert!(reader.load().find("a", None).is_err());
        assert_eq!(kept.version, 1, "a found version outlives its entry");
    }
}
