//! Hands sequences over when a version is replaced: they go on in the old version, where the new
//! one allows it.

use std::sync::Arc;

use conch_config::Scheduling;
use conch_engine::ModelVersion;
use conch_engine::execution::queue::ModelQueue;
use conch_engine::execution::queue::draining::{DrainingVersion, DrainingVersions};
use conch_engine::model::registry::ModelId;

use super::Lifecycle;
use super::loaded::Loaded;
use super::table::VersionSlot;
use super::version_change::VersionChange;

impl Lifecycle {
    /// Makes draining versions of the versions of model `id` that `changes` take the place of, for
    /// those that come. Call it before these are published.
    ///
    /// The successor of a version is the one of its number. Requests that name no version go to the
    /// highest: if the highest goes, the successor is also what is the highest then, if that comes
    /// with `changes`.
    pub(super) fn hand_over(
        &self,
        id: &ModelId,
        kept: &[i64],
        changes: &[(i64, VersionChange)],
    ) -> Vec<Arc<DrainingVersion>> {
        let coming = |number: i64| {
            changes.iter().find_map(|(other, change)| match change {
                VersionChange::Loaded(loaded) if *other == number => Some(loaded),
                _ => None,
            })
        };
        let staying = |number: &i64| {
            kept.contains(number)
                || changes.iter().any(|(other, change)| {
                    other == number && matches!(change, VersionChange::Revised(_))
                })
        };
        let highest = kept.iter().chain(changes.iter().map(|(number, _)| number));
        let highest = highest.max().and_then(|number| coming(*number));
        let going: Vec<(i64, Arc<ModelVersion>, Option<Arc<ModelQueue>>)> = {
            let models = self.table.lock();
            let slots = models.get(id).map(|entry| &entry.versions);
            let ready = slots
                .into_iter()
                .flatten()
                .filter(|(_, slot)| VersionSlot::is_ready(slot));
            let queued = ready.filter_map(|(number, slot)| {
                let loaded = slot.loaded.as_ref()?;
                Some((
                    *number,
                    Arc::clone(loaded.version()),
                    loaded.queue().cloned(),
                ))
            });
            queued.collect()
        };
        let was_highest = going.last().map(|(number, ..)| *number);
        let mut draining_versions = Vec::new();
        for (number, version, queue) in going.iter().filter(|(number, ..)| !staying(number)) {
            let of_number = coming(*number);
            let of_highest = highest.filter(|_| was_highest == Some(*number));
            let is_other = |successor: &&Loaded| {
                of_number.is_none_or(|other| other.serial() != successor.serial())
            };
            let heirs: Vec<&Arc<ModelQueue>> = of_number
                .into_iter()
                .chain(of_highest.filter(is_other))
                .filter(|successor| continues(version, successor.version()))
                .filter_map(Loaded::queue)
                .collect();
            if heirs.is_empty() {
                continue;
            }
            let draining = queue
                .as_ref()
                .and_then(|queue| DrainingVersion::new(version, queue));
            let Some(draining) = draining else {
                continue;
            };
            for successor in heirs {
                DrainingVersions::inherit(successor, &draining);
            }
            draining_versions.push(draining);
        }
        draining_versions
    }
}

/// Whether requests that go to `successor` may go on to `version` instead: who sent them has looked
/// whether it has sequences, and whether it answers more than once.
fn continues(version: &ModelVersion, successor: &ModelVersion) -> bool {
    let is_sequential = |config: &conch_config::ResolvedConfig| {
        matches!(config.scheduling, Scheduling::Sequence(_))
    };
    is_sequential(&version.config)
        && is_sequential(&successor.config)
        && version.config.is_decoupled == successor.config.is_decoupled
}
