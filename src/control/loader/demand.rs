//! Sizes and last uses of models for loading on demand, and the unloading of an idle model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use conch_config::Scheduling;
use conch_engine::ModelVersion;
use conch_engine::model::registry::ModelId;
use conch_scheduler::eviction::ResidentModel;

use super::Lifecycle;
use super::table::{ModelEntry, VersionSlot};
use crate::repository::remote;

impl Lifecycle {
    /// What the files of model `name` take; none if there is no such model in a repository. Reads
    /// directories, or asks the store that they lie in.
    pub(crate) fn file_bytes(&self, name: &str) -> Option<u64> {
        let is_name =
            !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
        let repositories = self.repositories().clone();
        let located = is_name.then(|| repositories.locate(name));
        let [(_, path)] = located?.ok()?.try_into().ok()?;
        if let Some(uri) = remote::uri(&path) {
            // What cannot be listed is for the load to say.
            let listing = self.options.remote.list(&[uri]).pop();
            return Some(listing.map_or(0, |listing| {
                listing.map_or(0, |listing| listing.total_bytes())
            }));
        }
        let mut left = ENTRIES_MAX;
        Some(bytes_below(&path, &mut left, DEPTH_MAX))
    }

    /// The names of all models that take memory.
    pub(crate) fn loaded_names(&self) -> Vec<Arc<str>> {
        let models = self.table.lock();
        let loaded = models
            .iter()
            .filter(|(_, entry)| versions(entry).next().is_some());
        loaded.map(|(id, _)| Arc::clone(&id.name)).collect()
    }

    /// What the backend says that the loaded versions of model `name` take.
    pub(crate) fn reported_bytes(&self, name: &str) -> u64 {
        let models = self.table.lock();
        let entry = models.get(&ModelId::plain(name));
        let versions = entry.into_iter().flat_map(versions);
        let usage = versions.flat_map(|version| version.statistics.totals().memory_usage);
        usage.fold(0, |sum, usage| sum.saturating_add(usage.bytes))
    }

    /// All models that take memory. `size_of` says how much if it is known, `is_busy` whether one
    /// must stay for another reason.
    pub(crate) fn residents(
        &self,
        size_of: &dyn Fn(&str) -> Option<u64>,
        is_busy: &dyn Fn(&str) -> bool,
    ) -> Vec<ResidentModel> {
        let models = self.table.lock();
        let mut residents = Vec::new();
        let needed: BTreeSet<&str> = models
            .values()
            .filter_map(|entry| entry.source.as_ref())
            .flat_map(|source| source.needs.iter().map(String::as_str))
            .collect();
        for (id, entry) in models.iter() {
            let loaded: Vec<&Arc<ModelVersion>> = versions(entry).collect();
            if loaded.is_empty() {
                continue;
            }
            let used = loaded.iter().map(|version| version.last_used_ms()).max();
            let is_plain = entry.source.as_ref().is_some_and(|source| source.is_plain);
            residents.push(ResidentModel {
                name: Arc::clone(&id.name),
                bytes: size_of(&id.name).unwrap_or(0),
                used: used.unwrap_or(0),
                is_needed: !is_plain
                    || loaded.iter().any(|version| has_sequences(version))
                    || needed.contains(&*id.name)
                    || is_busy(&id.name)
                    || loaded.iter().any(|version| version.live_count() > 0),
                is_leaving: false,
            });
        }
        let unloading: BTreeMap<Arc<str>, ()> = self
            .table
            .unloading()
            .iter()
            .map(|version| (Arc::clone(&version.name), ()))
            .collect();
        for name in unloading.into_keys() {
            residents.push(ResidentModel {
                bytes: size_of(&name).unwrap_or(0),
                name,
                used: 0,
                is_needed: false,
                is_leaving: true,
            });
        }
        residents
    }

    /// Takes model `name` out of service if none of its versions has a live request; false if one
    /// has, or somebody changes the model now.
    pub(crate) fn evict_idle(&self, name: &str) -> bool {
        let Some(_turn) = self.locks.try_acquire(BTreeSet::from([name.to_owned()])) else {
            return false;
        };
        let id = ModelId::plain(name);
        let unloading = {
            let mut models = self.table.lock();
            let Some(entry) = models.get_mut(&id) else {
                return false;
            };
            let all: Vec<Arc<ModelVersion>> = versions(entry).map(Arc::clone).collect();
            if !retire_idle(&all) {
                return false;
            }
            entry.source = None;
            entry.blueprint = None;
            let unloading = entry.take_all_down(&id);
            self.table.publish(&models);
            unloading
        };
        self.table.unload_later(unloading);
        true
    }
}

fn versions(entry: &ModelEntry) -> impl Iterator<Item = &Arc<ModelVersion>> {
    let loaded = entry
        .versions
        .values()
        .filter_map(|slot: &VersionSlot| slot.loaded.as_ref());
    loaded.map(|loaded| loaded.version())
}

/// Its sequences live on between their requests, and would end with it.
fn has_sequences(version: &ModelVersion) -> bool {
    matches!(version.config.scheduling, Scheduling::Sequence(..))
}

/// All of them, or none.
fn retire_idle(versions: &[Arc<ModelVersion>]) -> bool {
    for (index, version) in versions.iter().enumerate() {
        if !version.retire_if_idle() {
            for retired in versions.iter().take(index) {
                retired.revive();
            }
            return false;
        }
    }
    true
}

/// Models have tens of files, some thousands.
const ENTRIES_MAX: usize = 100_000;
const DEPTH_MAX: usize = 32;

fn bytes_below(path: &Path, left: &mut usize, depth_left: usize) -> u64 {
    *left = left.saturating_sub(1);
    let Ok(metadata) = fs::metadata(path) else {
        return 0;
    };
    if !metadata.is_dir() {
        return metadata.len();
    }
    if *left == 0 || depth_left == 0 {
        return 0;
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.fold(0, |sum, entry| {
        sum.saturating_add(bytes_below(&entry.path(), left, depth_left - 1))
    })
}
