//! Resolves the steps of ensembles to models, and thereby the models that each model needs.

use std::collections::{BTreeMap, BTreeSet};

use conch_config::{EnsembleStep, ModelConfig};
use conch_engine::model::registry::ModelId;

use super::Lifecycle;
use super::load_plan::LoadPlan;
use super::table::ModelEntries;

impl Lifecycle {
    /// The order in which models are loaded: each after those that it needs; what is needed in a
    /// circle comes last.
    pub(super) fn stages(&self, plans: BTreeMap<ModelId, LoadPlan>) -> Vec<Vec<LoadPlan>> {
        let needs: BTreeMap<ModelId, Vec<ModelId>> = {
            let models = self.table.lock();
            let known = models.iter().filter(|(_, entry)| entry.is_known());
            let ids = known.map(|(id, _)| id).chain(plans.keys());
            let steps = StepModels::among(ids, self.options.namespacing);
            let needs = plans.iter().map(|(id, plan)| {
                let needs = steps.of(id, &plan.candidate.config).into_iter();
                (id.clone(), needs.cloned().collect())
            });
            needs.collect()
        };
        let mut waiting = plans;
        let mut stages = Vec::new();
        while !waiting.is_empty() {
            let open: BTreeSet<ModelId> = waiting.keys().cloned().collect();
            let (now, later): (BTreeMap<_, _>, BTreeMap<_, _>) =
                waiting.into_iter().partition(|(id, _)| {
                    let mut needs = needs.get(id).into_iter().flatten();
                    needs.all(|needed| !open.contains(needed))
                });
            waiting = later;
            if now.is_empty() {
                stages.push(std::mem::take(&mut waiting).into_values().collect());
            } else {
                stages.push(now.into_values().collect());
            }
        }
        stages
    }
}

/// The models that steps may mean, by name.
pub(super) struct StepModels<'m> {
    ids: BTreeMap<&'m str, Vec<&'m ModelId>>,
    has_namespaces: bool,
}

impl<'m> StepModels<'m> {
    pub(super) fn among(
        ids: impl IntoIterator<Item = &'m ModelId>,
        has_namespaces: bool,
    ) -> StepModels<'m> {
        let mut by_name: BTreeMap<&str, Vec<&ModelId>> = BTreeMap::new();
        for id in ids.into_iter().collect::<BTreeSet<_>>() {
            by_name.entry(&id.name).or_default().push(id);
        }
        StepModels {
            ids: by_name,
            has_namespaces,
        }
    }

    /// The models that the model `id` needs by this configuration, as far as they are there.
    pub(super) fn of(&self, id: &ModelId, config: &ModelConfig) -> Vec<&'m ModelId> {
        let Some(ensembling) = conch_config::ensembling(config) else {
            return Vec::new();
        };
        let steps = ensembling.steps.iter().filter_map(|step| {
            let of_name = self
                .ids
                .get(step.model.as_str())
                .map_or(&[][..], Vec::as_slice);
            choose(|| of_name.iter().copied(), id, step, self.has_namespaces)
        });
        steps.collect()
    }
}

/// Which model needs which, over all that is planned, serves or lies dormant.
pub(super) struct StepGraph<'m> {
    models: &'m ModelEntries,
    planned: &'m BTreeMap<ModelId, ModelConfig>,
    steps: StepModels<'m>,
}

impl<'m> StepGraph<'m> {
    pub(super) fn new(
        models: &'m ModelEntries,
        planned: &'m BTreeMap<ModelId, ModelConfig>,
        has_namespaces: bool,
    ) -> StepGraph<'m> {
        let known = models.iter().filter(|(_, entry)| entry.is_known());
        let ids = known.map(|(id, _)| id).chain(planned.keys());
        StepGraph {
            models,
            planned,
            steps: StepModels::among(ids, has_namespaces),
        }
    }

    /// The model by which `start` needs itself once it has this configuration, if it does.
    pub(super) fn circle_through(&self, start: &ModelId, config: &ModelConfig) -> Option<ModelId> {
        let mut seen: BTreeSet<&ModelId> = BTreeSet::new();
        let mut open: Vec<(&ModelId, Vec<&ModelId>)> = vec![(start, self.steps.of(start, config))];
        while let Some((id, steps)) = open.pop() {
            for step in steps {
                if step == start {
                    return Some(id.clone());
                }
                if seen.insert(step) {
                    open.push((step, self.needs(step)));
                }
            }
        }
        None
    }

    /// The planned ensembles by which a request of some ensemble, theirs or another, would run more
    /// than `count_max` steps, those of the ensembles in it included. A circle counts once.
    pub(super) fn wider_than(&self, count_max: u64) -> BTreeSet<&'m ModelId> {
        let known = self.models.iter().filter(|(_, entry)| entry.is_known());
        let roots = known.map(|(id, _)| id).chain(self.planned.keys());
        let mut counts: BTreeMap<&'m ModelId, u64> = BTreeMap::new();
        let mut entered: BTreeSet<&ModelId> = BTreeSet::new();
        let mut wide = BTreeSet::new();
        for root in roots {
            let mut open = vec![root];
            while let Some(&id) = open.last() {
                let steps = self.intended(id);
                let unknown = steps.iter().copied();
                let unknown: Vec<_> = unknown.filter(|step| !counts.contains_key(step)).collect();
                if entered.insert(id) && !unknown.is_empty() {
                    open.extend(unknown.into_iter().filter(|step| !entered.contains(step)));
                    continue;
                }
                let runs = steps.iter().map(|step| {
                    let inside = counts.get(step).copied().unwrap_or(0);
                    inside.saturating_add(1)
                });
                let count = runs.fold(0, u64::saturating_add);
                counts.insert(id, count);
                open.pop();
            }
            if counts.get(root).is_some_and(|count| *count > count_max) {
                wide.insert(root);
            }
        }
        let of_planned = wide.iter().filter_map(|id| self.planned.get_key_value(*id));
        let mut refused: BTreeSet<&'m ModelId> = of_planned.map(|(id, _)| id).collect();
        // One that serves cannot be to blame: what it runs is.
        let mut open: Vec<_> = wide
            .into_iter()
            .filter(|id| !self.planned.contains_key(*id))
            .collect();
        let mut seen: BTreeSet<&ModelId> = open.iter().copied().collect();
        while let Some(id) = open.pop() {
            for step in self.intended(id) {
                refused.extend(self.planned.get_key_value(step).map(|(id, _)| id));
                if seen.insert(step) {
                    open.push(step);
                }
            }
        }
        refused
    }

    /// What `id` needs by its plan, or else by what it was last to be made of, or else by what
    /// serves.
    fn intended(&self, id: &ModelId) -> Vec<&'m ModelId> {
        let entry = self.models.get(id);
        let planned = self.planned.get(id);
        let blueprint = || {
            let plan = entry?.blueprint.as_ref()?;
            Some(&plan.candidate.config)
        };
        if let Some(config) = planned.or_else(blueprint) {
            return self.steps.of(id, config);
        }
        let mut loaded = entry
            .into_iter()
            .flat_map(|entry| entry.versions.values())
            .filter_map(|slot| slot.loaded.as_ref());
        loaded.next().map_or_else(Vec::new, |loaded| {
            self.steps.of(id, &loaded.version().config.message)
        })
    }

    /// What `id` needs: by its plan, or else by what it was last to be made of; and by what serves,
    /// which goes on if a load fails.
    fn needs(&self, id: &ModelId) -> Vec<&'m ModelId> {
        let entry = self.models.get(id);
        let blueprint = entry.and_then(|entry| entry.blueprint.as_ref());
        let intended = match (self.planned.get(id), blueprint) {
            (Some(config), _) => Some(config),
            (None, Some(plan)) => Some(&plan.candidate.config),
            (None, None) => None,
        };
        let mut found = intended.map_or_else(Vec::new, |config| self.steps.of(id, config));
        let slots = entry.into_iter().flat_map(|entry| entry.versions.values());
        for loaded in slots.filter_map(|slot| slot.loaded.as_ref()) {
            found.extend(self.steps.of(id, &loaded.version().config.message));
        }
        found
    }
}

/// The model that a step means, among those that are loaded or were to be: in the namespace it
/// names, or else in the ensemble's own, or else the only one of the name.
pub(super) fn locate<'m>(
    models: &'m ModelEntries,
    ensemble: &ModelId,
    step: &EnsembleStep,
    has_namespaces: bool,
) -> Option<&'m ModelId> {
    let of_name = || {
        models
            .iter()
            .filter(|(id, entry)| *id.name == *step.model && entry.is_known())
            .map(|(id, _)| id)
    };
    choose(of_name, ensemble, step, has_namespaces)
}

/// The one that a step means of the models with the name that it gives.
fn choose<'m, I: Iterator<Item = &'m ModelId>>(
    of_name: impl Fn() -> I,
    ensemble: &ModelId,
    step: &EnsembleStep,
    has_namespaces: bool,
) -> Option<&'m ModelId> {
    if !has_namespaces {
        return of_name().next();
    }
    if !step.namespace.is_empty() {
        return of_name().find(|id| *id.namespace == *step.namespace);
    }
    let own = of_name().find(|id| id.namespace == ensemble.namespace);
    own.or_else(|| {
        let mut of_name = of_name();
        of_name.next().filter(|_| of_name.next().is_none())
    })
}
