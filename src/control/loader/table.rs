//! The table of all models with their states, and its publication to the data plane.
//!
//! One lock; every change of it ends with a new snapshot in the registry. Threads that unload hold
//! the table, not the lifecycle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conch_engine::execution::progress::LoadProgress;
use conch_engine::execution::queue::draining::DrainingVersion;
use conch_engine::model::registry::{
    ModelId, Registry, Snapshot, UNLOADED, VersionEntry, VersionState, Versions,
};
use conch_engine::{Error, ModelVersion};

use super::UNAVAILABLE;
use super::load_plan::LoadPlan;
use super::loaded::Loaded;
use super::source::ModelSource;
use super::thread::run_on_thread;
use crate::server_metadata::IndexRow;

pub(super) type ModelEntries = BTreeMap<ModelId, ModelEntry>;

/// What is known of one model.
#[derive(Default)]
pub(super) struct ModelEntry {
    /// Why it has no version that could be loaded, as last looked.
    pub(super) failure: Option<LoadFailure>,
    /// All that were ever to be loaded.
    pub(super) versions: BTreeMap<i64, VersionSlot>,
    /// What its versions were made of; none unless the model is to be loaded.
    pub(super) source: Option<ModelSource>,
    /// What it is to be put together by whenever its models change, if it is an ensemble.
    pub(super) blueprint: Option<Box<LoadPlan>>,
    /// How far its files are on their way from a remote repository, while they are.
    pub(super) downloading: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum LoadFailure {
    /// The name appears in several repositories.
    Duplicate,
    /// Its configuration is no good. Upstream's index shows such a model by name only.
    Refused(Error),
    /// It is an ensemble, and does not fit its models, or lacks one.
    Invalid(Error),
    /// It has none of the versions that its policy wants.
    Versionless,
}

/// One version.
pub(super) struct VersionSlot {
    pub(super) state: VersionState,
    /// Present from READY until it is taken down.
    pub(super) loaded: Option<Loaded>,
    /// Present while LOADING: how far that is.
    progress: Option<Arc<LoadProgress>>,
    /// Tells a slot that was filled anew from the one that an unloading thread left.
    serial: u64,
    /// While UNLOADING: another version is there for its requests, and it only stays for its
    /// sequences.
    has_successor: bool,
}

/// A version on its way out of service.
pub(super) struct Unloading {
    loaded: Loaded,
    /// The slot that still shows it; none if another version took its place.
    slot: Option<(ModelId, i64, u64)>,
    /// That version.
    successor: Option<Arc<ModelVersion>>,
    /// What it is for its sequences, if they go on in it.
    draining: Option<Arc<DrainingVersion>>,
}

/// All models of a server with their versions.
pub(super) struct ModelTable {
    models: Mutex<ModelEntries>,
    registry: Arc<Registry>,
    has_namespaces: bool,
    /// Models come and go as they are needed: one on its way does not make the server unfit.
    is_on_demand: bool,
    /// What the strict rule says of `models`; kept apart because shards ask.
    is_all_ready: AtomicBool,
    /// The models that it holds against the server. Locked under `models`; kept, because a change
    /// of one model must not cost a look at all.
    unready: Mutex<BTreeSet<ModelId>>,
    /// Versions that drain or unload.
    unloading: Mutex<Vec<Arc<ModelVersion>>>,
    departed: Condvar,
}

/// See [`ModelTable::show_downloading`].
pub(super) struct Downloading<'b> {
    table: &'b ModelTable,
    id: ModelId,
}

impl Drop for Downloading<'_> {
    fn drop(&mut self) {
        let mut models = self.table.lock();
        if let Some(entry) = models.get_mut(&self.id) {
            entry.downloading = None;
            if entry.is_blank() {
                models.remove(&self.id);
            }
        }
        self.table.note_readiness_of(&models, &self.id);
    }
}

impl VersionSlot {
    pub(super) fn loading(progress: &Arc<LoadProgress>) -> VersionSlot {
        VersionSlot {
            state: VersionState::Loading,
            loaded: None,
            progress: Some(Arc::clone(progress)),
            serial: 0,
            has_successor: false,
        }
    }

    pub(super) fn ready(loaded: Loaded) -> VersionSlot {
        VersionSlot {
            state: VersionState::Ready,
            loaded: Some(loaded),
            progress: None,
            serial: 0,
            has_successor: false,
        }
    }

    pub(super) fn unavailable(reason: String) -> VersionSlot {
        VersionSlot {
            state: VersionState::Unavailable(reason),
            loaded: None,
            progress: None,
            serial: 0,
            has_successor: false,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == VersionState::Ready
    }

    /// Whether it is ready and its device answers.
    pub(super) fn serves(&self) -> bool {
        self.is_ready() && self.fault().is_none()
    }

    /// Why a version that is loaded serves no more: its device does not answer.
    pub(super) fn fault(&self) -> Option<Error> {
        self.loaded
            .as_ref()
            .filter(|_| self.is_ready())?
            .version()
            .fault()
    }

    /// The state that the repository index shows.
    pub(super) fn shown_state(&self) -> &'static str {
        match self.fault() {
            Some(_) => UNAVAILABLE,
            None => self.state.name(),
        }
    }

    /// What the index says beside the state.
    pub(super) fn reason(&self) -> String {
        match (&self.progress, self.fault()) {
            (Some(progress), _) => progress.text(),
            (None, Some(fault)) => fault.to_string(),
            (None, None) => self.state.reason().to_owned(),
        }
    }
}

impl ModelEntry {
    /// Takes the loaded version of this number out of service, if there is one.
    pub(super) fn take_down(&mut self, id: &ModelId, version: i64) -> Option<Unloading> {
        let slot = self.versions.get_mut(&version)?;
        let loaded = slot.loaded.take()?;
        let serial = loaded.serial();
        slot.state = VersionState::Unloading;
        slot.serial = serial;
        Some(Unloading {
            loaded,
            slot: Some((id.clone(), version, serial)),
            successor: None,
            draining: None,
        })
    }

    /// Puts a new version into the place of the old one.
    pub(super) fn replace(&mut self, version: i64, loaded: Loaded) -> Option<Unloading> {
        let successor = Arc::clone(loaded.version());
        let old = self
            .versions
            .insert(version, VersionSlot::ready(loaded))?
            .loaded?;
        successor.succeed(old.version());
        Some(Unloading {
            loaded: old,
            slot: None,
            successor: Some(successor),
            draining: None,
        })
    }

    /// A version on its way out goes on as the one of `draining_versions` that it is, if any.
    pub(super) fn accompany(
        &mut self,
        unloading: &mut Unloading,
        draining_versions: &[Arc<DrainingVersion>],
    ) {
        let version = unloading.loaded.version();
        unloading.draining = draining_versions
            .iter()
            .find(|draining| draining.is(version))
            .cloned();
        if unloading.draining.is_some()
            && let Some((_, number, _)) = &unloading.slot
            && let Some(slot) = self.versions.get_mut(number)
        {
            slot.has_successor = true;
        }
    }

    /// Takes all its versions out of service.
    pub(super) fn take_all_down(&mut self, id: &ModelId) -> Vec<Unloading> {
        let versions: Vec<i64> = self.versions.keys().copied().collect();
        versions
            .into_iter()
            .filter_map(|version| self.take_down(id, version))
            .collect()
    }

    /// What the data plane sees of it; none if it is not to be found.
    fn shown(&self) -> Option<Versions> {
        if self.versions.is_empty() && !matches!(self.failure, Some(LoadFailure::Versionless)) {
            return None;
        }
        let entries = self.versions.iter().map(|(version, slot)| {
            let loaded = slot.loaded.as_ref();
            let model = loaded.map(|loaded| Arc::clone(loaded.version()));
            let state = slot.state.clone();
            (*version, VersionEntry { state, model })
        });
        Some(entries.collect())
    }

    pub(super) fn has_ready(&self) -> bool {
        self.versions.values().any(VersionSlot::is_ready)
    }

    /// Neither is anything known of it, nor is anything wanted.
    fn is_blank(&self) -> bool {
        self.failure.is_none()
            && self.versions.is_empty()
            && self.source.is_none()
            && self.blueprint.is_none()
            && self.downloading.is_none()
    }
}

impl ModelTable {
    pub(super) fn new(
        registry: Arc<Registry>,
        has_namespaces: bool,
        is_on_demand: bool,
    ) -> Arc<ModelTable> {
        Arc::new(ModelTable {
            models: Mutex::default(),
            registry,
            has_namespaces,
            is_on_demand,
            is_all_ready: AtomicBool::new(true),
            unready: Mutex::default(),
            unloading: Mutex::default(),
            departed: Condvar::new(),
        })
    }

    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ModelEntries> {
        // Entries are replaced whole, so a panic elsewhere leaves them sound.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Upstream's strict rule: every model whose configuration was good has versions, and all of
    /// them serve or were unloaded on purpose. Does not block.
    pub(super) fn is_all_ready(&self) -> bool {
        self.is_all_ready.load(Ordering::Acquire)
    }

    /// Shows the data plane what `models` holds now.
    pub(super) fn publish(&self, models: &ModelEntries) {
        let shown = models
            .iter()
            .filter_map(|(id, entry)| Some((id.clone(), entry.shown()?)));
        self.registry
            .publish(Snapshot::new(shown).with_namespaces(self.has_namespaces));
        self.note_readiness(models);
    }

    /// [`ModelTable::publish`] after a change of one model.
    pub(super) fn publish_one(&self, models: &ModelEntries, id: &ModelId) {
        if self.has_namespaces {
            // Others may have its name.
            return self.publish(models);
        }
        let mut snapshot = (*self.registry.snapshot()).clone();
        snapshot.replace(&id.name, models.get(id).and_then(ModelEntry::shown));
        self.registry.publish(snapshot);
        self.note_readiness_of(models, id);
    }

    /// The device of a version does not answer any more.
    pub(super) fn note_fault(&self) {
        self.note_readiness(&self.lock());
    }

    fn note_readiness(&self, models: &ModelEntries) {
        let are_unready = models.iter().filter(|(_, entry)| !self.is_fit(entry));
        let mut unready = self.unready();
        *unready = are_unready.map(|(id, _)| id.clone()).collect();
        self.is_all_ready
            .store(unready.is_empty(), Ordering::Release);
    }

    /// [`ModelTable::note_readiness`] after a change of one model.
    pub(super) fn note_readiness_of(&self, models: &ModelEntries, id: &ModelId) {
        let mut unready = self.unready();
        if models.get(id).is_none_or(|entry| self.is_fit(entry)) {
            unready.remove(id);
        } else if !unready.contains(id) {
            unready.insert(id.clone());
        }
        self.is_all_ready
            .store(unready.is_empty(), Ordering::Release);
    }

    /// Whether the strict rule has nothing against a model.
    fn is_fit(&self, entry: &ModelEntry) -> bool {
        !matches!(entry.failure, Some(LoadFailure::Versionless))
            && (entry.downloading.is_none() || entry.has_ready() || self.is_on_demand)
            && entry.versions.values().all(|slot| match slot.state {
                VersionState::Ready => slot.fault().is_none(),
                VersionState::Loading => self.is_on_demand,
                VersionState::Unloading => slot.has_successor || self.is_on_demand,
                VersionState::Unavailable(ref reason) => reason == UNLOADED,
            })
    }

    fn unready(&self) -> MutexGuard<'_, BTreeSet<ModelId>> {
        // A set of names is sound at any time.
        self.unready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The versions that are being loaded or unloaded, and the models whose files are on their way.
    pub(super) fn changing(&self) -> Vec<IndexRow> {
        let models = self.lock();
        let mut rows = Vec::new();
        for (id, entry) in models.iter() {
            let row = |version, state: &VersionState, reason| IndexRow {
                name: id.name.to_string(),
                version,
                state: state.name(),
                reason,
            };
            if let Some(progress) = &entry.downloading {
                rows.push(row(None, &VersionState::Loading, progress.clone()));
            }
            let slots = entry.versions.iter();
            let changing = slots.filter(|(_, slot)| {
                matches!(slot.state, VersionState::Loading | VersionState::Unloading)
            });
            rows.extend(
                changing.map(|(version, slot)| row(Some(*version), &slot.state, slot.reason())),
            );
        }
        rows
    }

    /// Shows that files of a model are on their way, until the value is dropped.
    pub(super) fn show_downloading(&self, id: &ModelId) -> Downloading<'_> {
        let mut models = self.lock();
        models.entry(id.clone()).or_default().downloading = Some(String::new());
        // Requests do not see it, but whether the server is ready.
        self.note_readiness_of(&models, id);
        Downloading {
            table: self,
            id: id.clone(),
        }
    }

    /// Says how far they are.
    pub(super) fn set_downloading(&self, id: &ModelId, progress: String) {
        if let Some(entry) = self.lock().get_mut(id)
            && entry.downloading.is_some()
        {
            entry.downloading = Some(progress);
        }
    }

    /// Drains and unloads versions that were taken out of the registry, each on a thread of its
    /// own, because a backend may take for ever. Returns at once.
    pub(super) fn unload_later(self: &Arc<Self>, unloading: Vec<Unloading>) {
        for one in &unloading {
            one.loaded.retire();
            if one.draining.is_none() {
                // Nobody is left who would send them anything.
                one.loaded.give_up_draining();
            }
        }
        for one in unloading {
            self.unloading().push(Arc::clone(one.loaded.version()));
            let table = Arc::clone(self);
            run_on_thread("unload", move || table.unload(one));
        }
    }

    /// Versions that are not gone yet.
    pub(super) fn unloading(&self) -> MutexGuard<'_, Vec<Arc<ModelVersion>>> {
        self.unloading
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another version is gone, at most so long.
    pub(super) fn await_unload(&self, patience: Duration) {
        let unloading = self.unloading();
        let count = unloading.len();
        if count == 0 {
            return;
        }
        let waited = self
            .departed
            .wait_timeout_while(unloading, patience, |unloading| unloading.len() >= count);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn unload(&self, unloading: Unloading) {
        let version = Arc::clone(unloading.loaded.version());
        // A panicking backend must not make a stop wait for it.
        let unload = std::panic::AssertUnwindSafe(|| {
            if let Some(draining) = unloading.draining {
                draining.drain();
            }
            unloading.loaded.unload();
        });
        let _ = std::panic::catch_unwind(unload);
        version.mark_gone();
        if let Some(successor) = unloading.successor {
            successor.inherit();
        }
        if let Some((id, number, serial)) = unloading.slot {
            let mut models = self.lock();
            let slot = models
                .get_mut(&id)
                .and_then(|entry| entry.versions.get_mut(&number));
            if let Some(slot) = slot
                && slot.state == VersionState::Unloading
                && slot.serial == serial
            {
                slot.state = VersionState::Unavailable(UNLOADED.to_owned());
                self.publish_one(&models, &id);
            }
        }
        self.unloading()
            .retain(|other| !Arc::ptr_eq(other, &version));
        self.departed.notify_all();
    }
}
