//! Loads, serves and unloads model versions, and knows where each stands.
//!
//! ```text
//! (unknown) ──load──► LOADING ──all of the model's versions up──► READY ──stop──► UNLOADING ──► UNAVAILABLE (unloaded)
//!                        └──────any failed──────► UNAVAILABLE (reason; `unloaded` for the ones that had come up)
//! ```
//!
//! Control threads only: loading and unloading block for as long as backends do. The data plane sees the outcome through the registry,
//! whose snapshots are published from here, under one lock.

mod change;
mod load;
mod stop;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_memory::{Budget, Pool};

use crate::core::Cores;
use crate::registry::{Registry, Snapshot, State, VersionEntry};
use crate::server::{IndexRow, Options};
use crate::timekeeper::Timekeeper;
use crate::topology::{Placement, Topology};
use crate::{BackendHost, Error, Model, ModelVersion, log, repository};

/// The models of a server, whatever their state.
pub(crate) struct Lifecycle {
    options: Options,
    host: Arc<dyn BackendHost>,
    registry: Arc<Registry>,
    pool: Arc<Pool>,
    budget: Arc<Budget>,
    placement: Placement,
    models: Mutex<Models>,
    /// What the strict rule says of `models`; kept apart because shards ask.
    is_all_ready: AtomicBool,
    /// Held while a backend is opened: opening is serial.
    opening: Mutex<()>,
}

type Models = BTreeMap<Arc<str>, Entry>;

/// What became of a model directory.
enum Entry {
    /// The name appears in several repositories.
    Duplicate,
    /// Its configuration is no good. Upstream's index shows such a model by name only.
    Refused(Error),
    /// Its versions; none if its directory has none that the policy wants.
    Versions {
        versions: BTreeMap<i64, Slot>,
        problem: Option<Error>,
    },
}

/// One version.
struct Slot {
    state: State,
    /// Present from READY until it is unloaded.
    loaded: Option<Loaded>,
}

/// A version that is up. Its parts go in the order of the fields: instances on their threads, then the model in its backend.
struct Loaded {
    cores: Cores,
    model: Arc<dyn Model>,
    version: Arc<ModelVersion>,
}

impl Loaded {
    /// Drains and drops the instances, then the model. Blocks as long as the backend does.
    fn unload(self) {
        let Loaded {
            cores,
            model,
            version,
        } = self;
        cores.stop();
        drop(model);
        log::info!(
            "successfully unloaded '{}' version {}",
            version.name,
            version.version
        );
    }
}

impl Lifecycle {
    pub(crate) fn new(
        options: &Options,
        host: Arc<dyn BackendHost>,
        registry: Arc<Registry>,
        pool: Arc<Pool>,
        budget: Arc<Budget>,
        timekeeper: Arc<Timekeeper>,
    ) -> Lifecycle {
        Lifecycle {
            placement: Placement::new(
                &Topology::detect(),
                &options.shard_cpus,
                options.lowers_core_priority,
                timekeeper,
            ),
            options: options.clone(),
            host,
            registry,
            pool,
            budget,
            models: Mutex::default(),
            is_all_ready: AtomicBool::new(true),
            opening: Mutex::default(),
        }
    }

    /// Loads every model of the repositories; returns whether nothing went wrong anywhere. Blocks until the last is ready or has failed.
    pub(crate) fn load_all(&self) -> bool {
        let scan = repository::scan(&self.options.model_repositories);
        let mut candidates = Vec::new();
        for (name, paths) in &scan.models {
            let name: Arc<str> = Arc::from(name.as_str());
            let [path] = paths.as_slice() else {
                log::error!(
                    "failed to poll model '{name}': not unique across all model repositories"
                );
                self.models().insert(name, Entry::Duplicate);
                continue;
            };
            let Options {
                model_config_name,
                auto_complete,
                ..
            } = &self.options;
            match repository::read_candidate(&name, path, model_config_name, *auto_complete) {
                Ok(candidate) => candidates.push((name, candidate)),
                Err(error) => {
                    log::error!(
                        "Poll failed for model directory '{name}': {}",
                        error.message
                    );
                    self.models().insert(name, Entry::Refused(error));
                }
            }
        }
        self.load(candidates);
        let is_all_up = self.models().values().all(|entry| match entry {
            Entry::Duplicate | Entry::Refused(_) => false,
            Entry::Versions { versions, problem } => {
                problem.is_none() && versions.values().all(|slot| slot.state == State::Ready)
            }
        });
        scan.is_complete && is_all_up
    }

    /// Upstream's strict rule: every model whose configuration was good has versions, and all of them are ready or were unloaded on
    /// purpose. Does not block.
    pub(crate) fn is_all_ready(&self) -> bool {
        self.is_all_ready.load(Ordering::Acquire)
    }

    /// The repository index, by name and version.
    pub(crate) fn index(&self) -> Vec<IndexRow> {
        let nameless = |name: &Arc<str>, state, reason: &str| IndexRow {
            name: name.to_string(),
            version: None,
            state,
            reason: reason.to_owned(),
        };
        let mut rows = Vec::new();
        for (name, entry) in self.models().iter() {
            match entry {
                Entry::Duplicate => rows.push(nameless(name, "UNAVAILABLE", DUPLICATE)),
                Entry::Refused(_) => rows.push(nameless(name, "", "")),
                Entry::Versions { versions, .. } if versions.is_empty() => {
                    rows.push(nameless(name, "", ""))
                }
                Entry::Versions { versions, .. } => {
                    rows.extend(versions.iter().map(|(version, slot)| IndexRow {
                        name: name.to_string(),
                        version: Some(*version),
                        state: slot.state.name(),
                        reason: slot.state.reason().to_owned(),
                    }))
                }
            }
        }
        rows
    }

    /// Name, version and status of every model for the log: unlike the index with the reason of those that have no version.
    pub(crate) fn summary(&self) -> Vec<[String; 3]> {
        let mut rows = Vec::new();
        for (name, entry) in self.models().iter() {
            let without_version = |status: String| [name.to_string(), "-".to_owned(), status];
            match entry {
                Entry::Duplicate => rows.push(without_version(format!("UNAVAILABLE: {DUPLICATE}"))),
                Entry::Refused(error) => {
                    rows.push(without_version(format!("UNAVAILABLE: {error}")))
                }
                Entry::Versions { versions, .. } if versions.is_empty() => {
                    rows.push(without_version(
                        "Not loaded: No model version was found".to_owned(),
                    ));
                }
                Entry::Versions { versions, .. } => {
                    rows.extend(versions.iter().map(|(version, slot)| {
                        let status = match slot.state.reason() {
                            "" => slot.state.name().to_owned(),
                            reason => format!("{}: {reason}", slot.state.name()),
                        };
                        [name.to_string(), version.to_string(), status]
                    }))
                }
            }
        }
        rows
    }

    fn models(&self) -> MutexGuard<'_, Models> {
        // Entries are replaced whole, so a panic elsewhere leaves them sound.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the data plane what `models` holds now.
    fn publish(&self, models: &Models) {
        let mut shown = HashMap::with_capacity(models.len());
        for (name, entry) in models {
            if let Entry::Versions { versions, .. } = entry {
                let entries = versions.iter().map(|(version, slot)| {
                    let model = slot
                        .loaded
                        .as_ref()
                        .map(|loaded| Arc::clone(&loaded.version));
                    (
                        *version,
                        VersionEntry {
                            state: slot.state.clone(),
                            model,
                        },
                    )
                });
                shown.insert(Arc::clone(name), entries.collect());
            }
        }
        self.registry.publish(Snapshot::new(shown));
        let is_all_ready = models.values().all(|entry| match entry {
            Entry::Duplicate | Entry::Refused(_) => true,
            Entry::Versions { versions, .. } => {
                !versions.is_empty()
                    && versions
                        .values()
                        .all(|slot| slot.state == State::Ready || slot.state.reason() == UNLOADED)
            }
        });
        self.is_all_ready.store(is_all_ready, Ordering::Release);
    }
}

const DUPLICATE: &str = "model appears in two or more repositories";
const UNLOADED: &str = "unloaded";
