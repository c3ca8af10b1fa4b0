//! Ensembles in the life of models: they come up when their models are there, go when one of those
//! goes, and come back with it.
//!
//! An ensemble that was to be loaded is remembered by its plan (its *blueprint*), whether it serves
//! or lies dormant. Whenever models changed, those that need them are put together anew, the inner
//! ones first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use conch_config::{ComposingModels, Ensembling, ModelConfig, Scheduling};
use conch_engine::ensemble::Ensemble;
use conch_engine::model::labels::Labels;
use conch_engine::model::registry::{ModelId, UNLOADED, VersionState};
use conch_engine::{Error, ModelVersion, VersionParts};
use conch_log as log;

use super::load_plan::LoadPlan;
use super::loaded::Loaded;
use super::step_graph::{StepGraph, locate};
use super::table::{LoadFailure, ModelEntries, ModelEntry};
use super::{Lifecycle, source};

impl LoadPlan {
    pub(super) fn is_ensemble(&self) -> bool {
        self.candidate.scheduling == Scheduling::Ensemble
    }
}

/// Far beyond what pipelines run: a request of an ensemble whose ensembles each run the next one
/// twice doubles with each of them.
const RUNS_MAX: u64 = 1 << 16;

impl Lifecycle {
    /// Completes the plans of ensembles by what their models are now. Those that do not fit are
    /// taken down; returned is what is left, and what is wrong with the others.
    pub(super) fn assemble(&self, plans: Vec<LoadPlan>) -> (Vec<LoadPlan>, Vec<(ModelId, Error)>) {
        let mut failures = Vec::new();
        let planned: BTreeMap<ModelId, ModelConfig> = plans
            .iter()
            .filter(|plan| plan.is_ensemble())
            .map(|plan| (plan.id.clone(), plan.candidate.config.clone()))
            .collect();
        // Most loads bring no ensemble, and the graph is that of all models.
        let wide: BTreeSet<ModelId> = if planned.is_empty() {
            BTreeSet::new()
        } else {
            let models = self.table.lock();
            let steps = StepGraph::new(&models, &planned, self.options.namespacing);
            steps.wider_than(RUNS_MAX).into_iter().cloned().collect()
        };
        let mut sound = Vec::with_capacity(plans.len());
        for mut plan in plans {
            if !plan.is_ensemble() {
                sound.push(plan);
                continue;
            }
            let blueprint = plan.clone();
            let claimed = if wide.contains(&plan.id) {
                Err(Error::invalid(format!(
                    "a request of ensemble '{}', or of one that it is part of, runs more than \
                     {RUNS_MAX} steps",
                    plan.id
                )))
            } else {
                self.claim_steps(&plan, &planned)
            };
            if let Err(error) = claimed {
                log::error!("{error}");
                // What serves under this name needs no circle, and goes on.
                let serves = self
                    .table
                    .lock()
                    .get(&plan.id)
                    .is_some_and(ModelEntry::has_ready);
                if !serves {
                    self.lay_dormant(blueprint, &error);
                }
                failures.push((plan.id, error));
                continue;
            }
            match self.composed(&plan) {
                Ok(config) => {
                    plan.candidate.config = config;
                    sound.push(plan);
                }
                Err(error) => {
                    log::error!("{error}");
                    self.lay_dormant(blueprint, &error);
                    failures.push((plan.id, error));
                }
            }
        }
        (sound, failures)
    }

    /// Notes what an ensemble is to be made of, unless it would need itself. Look and note are one
    /// step under the board's lock: of two loads at a time that close a circle together, the second
    /// is refused.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words for a circle, through whatever is planned, serves or lies
    /// dormant.
    fn claim_steps(
        &self,
        plan: &LoadPlan,
        planned: &BTreeMap<ModelId, ModelConfig>,
    ) -> Result<(), Error> {
        let mut models = self.table.lock();
        let steps = StepGraph::new(&models, planned, self.options.namespacing);
        if let Some(last) = steps.circle_through(&plan.id, &plan.candidate.config) {
            return Err(circular(&plan.id, &last));
        }
        let entry = models.entry(plan.id.clone()).or_default();
        entry.blueprint = Some(Box::new(plan.clone()));
        Ok(())
    }

    /// The configuration of an ensemble, completed by those of its models.
    ///
    /// # Errors
    /// INVALID_ARG in upstream's words for a model that is not there, or that it does not fit.
    fn composed(&self, plan: &LoadPlan) -> Result<ModelConfig, Error> {
        let id = &plan.id;
        let mut config = plan.candidate.config.clone();
        let ensembling = conch_config::ensembling(&config)
            .ok_or_else(|| Error::internal(format!("'{id}' is no ensemble")))?;
        let models = self.table.lock();
        let mut missing: BTreeSet<&str> = BTreeSet::new();
        let mut found: Vec<&ModelId> = Vec::new();
        for step in &ensembling.steps {
            match locate(&models, id, step, self.options.namespacing) {
                Some(of_step) => found.push(of_step),
                None => {
                    missing.insert(&step.model);
                }
            }
        }
        if !missing.is_empty() {
            let missing: Vec<&str> = missing.into_iter().collect();
            return Err(Error::invalid(format!(
                "ensemble {id} contains models that are not available or ambiguous: {}",
                missing.join(", ")
            )));
        }
        let mut parts: Vec<(String, &ModelId, Arc<conch_config::ResolvedConfig>)> = Vec::new();
        for (step, of_step) in ensembling.steps.iter().zip(found) {
            let version = ready_version(&models, id, of_step, step.version)?;
            parts.push((of_step.to_string(), of_step, Arc::clone(&version.config)));
        }
        let composing: Vec<ComposingModels<'_>> = parts
            .iter()
            .map(|(label, id, config)| ComposingModels {
                namespace: &id.namespace,
                label,
                config: &config.message,
            })
            .collect();
        conch_config::compose(&mut config, &id.to_string(), &composing)?;
        Ok(config)
    }

    /// Takes an ensemble down that cannot be without what is gone; it comes back with it.
    fn lay_dormant(&self, blueprint: LoadPlan, error: &Error) {
        let id = blueprint.id.clone();
        let mut unloading = Vec::new();
        {
            let mut models = self.table.lock();
            let entry = models.entry(id.clone()).or_default();
            entry.failure = Some(LoadFailure::Invalid(error.clone()));
            entry.source = Some(blueprint.source.clone().following(entry.source.as_ref()));
            entry.blueprint = Some(Box::new(blueprint));
            unloading.extend(entry.take_all_down(&id));
            self.table.publish(&models);
        }
        self.table.unload_later(unloading);
    }

    /// Makes one version of an ensemble whose plan is complete.
    pub(super) fn load_ensemble(
        &self,
        plan: &LoadPlan,
        version: i64,
        started: Instant,
    ) -> Result<Loaded, Error> {
        let LoadPlan { id, candidate, .. } = plan;
        let config = Arc::new(conch_config::ResolvedConfig::from_message(
            candidate.config.clone(),
        )?);
        let ensembling = conch_config::ensembling(&config.message)
            .ok_or_else(|| Error::internal(format!("'{id}' is no ensemble")))?;
        self.check_metrics(&config)?;
        let mut labels = Labels::read(&config, &candidate.path)?;
        self.borrow_labels(&config, &ensembling, &mut labels);
        let ensemble = Ensemble::new(
            &config,
            &ensembling,
            self.table.registry(),
            &self.placement.timer_thread,
        );
        if ensembling.inflight_max > 0 {
            log::info!(
                "Ensemble model '{}' configured with max_inflight_requests: {}",
                id.name,
                ensembling.inflight_max
            );
        }
        let entry = Arc::new(ModelVersion::new(VersionParts {
            namespace: Arc::clone(&id.namespace),
            name: Arc::clone(&id.name),
            version,
            core_count: 1,
            live_max: self.options.queue_requests_max,
            // The bound of all models holds for the models of its steps.
            requests_max: None,
            observed: self.options.observed(),
            labels,
            states: None,
            executor: self.cached(Arc::clone(&ensemble) as _, id, &config, version),
            config,
        }));
        entry.set_load_duration(started.elapsed());
        Ok(Loaded::of_ensemble(ensemble, entry, plan.resources.clone()))
    }

    /// Outputs without labels have those of the outputs that they are.
    fn borrow_labels(
        &self,
        config: &conch_config::ResolvedConfig,
        ensembling: &Ensembling,
        labels: &mut conch_engine::model::labels::Labels,
    ) {
        let models = self.table.lock();
        for step in &ensembling.steps {
            for (theirs, tensor) in &step.outputs {
                let Some((_, output)) = config.output(tensor) else {
                    continue;
                };
                let id = ModelId {
                    namespace: step.namespace.as_str().into(),
                    name: step.model.as_str().into(),
                };
                let entry = models.get(&id);
                let model = entry.and_then(|entry| entry.ready(step.version));
                if let Some(source) = model.map(|model| model.labels()) {
                    labels.borrow(&output.name, source, theirs);
                }
            }
        }
    }

    /// The plan of an ensemble that is to be loaded but lacks something, or did when it was last
    /// put together.
    pub(super) fn dormant(&self, id: &ModelId) -> Option<LoadPlan> {
        let models = self.table.lock();
        let entry = models.get(id).filter(|entry| !entry.has_ready())?;
        entry.blueprint.as_ref().map(|plan| (**plan).clone())
    }

    /// The names of the ensembles that need one of `changed`, near or far.
    pub(super) fn dependents(&self, changed: &BTreeSet<String>) -> BTreeSet<String> {
        let models = self.table.lock();
        let needs: Vec<(&str, &BTreeSet<String>)> = models
            .iter()
            .filter_map(|(id, entry)| Some((&*id.name, &entry.blueprint.as_ref()?.source.needs)))
            .collect();
        source::dependents(&needs, changed)
    }

    /// Puts the ensembles together anew that need one of `changed`, but for those that were
    /// `planned` themselves.
    pub(super) fn follow_up(&self, changed: &BTreeSet<String>, planned: &BTreeSet<ModelId>) {
        let names = self.dependents(changed);
        let plans: BTreeMap<ModelId, LoadPlan> = {
            let models = self.table.lock();
            let is_due = |id: &ModelId| names.contains(&*id.name) && !planned.contains(id);
            models
                .iter()
                .filter(|(id, _)| is_due(id))
                .filter_map(|(id, entry)| Some((id.clone(), (**entry.blueprint.as_ref()?).clone())))
                .collect()
        };
        for stage in self.stages(plans) {
            // Each has said in the log what is wrong with it.
            let _ = self.bring_up(stage);
        }
    }
}

/// The version of a step's model whose configuration counts: the highest. The one that the step
/// wants must be there, too.
fn ready_version<'m>(
    models: &'m ModelEntries,
    ensemble: &ModelId,
    id: &ModelId,
    wanted: Option<i64>,
) -> Result<&'m Arc<ModelVersion>, Error> {
    let depends =
        |how: String| Error::invalid(format!("ensemble '{ensemble}' depends on '{id}' {how}"));
    let entry = models
        .get(id)
        .ok_or_else(|| depends("which has no loaded version.".to_owned()))?;
    if let Some(LoadFailure::Invalid(error)) = &entry.failure {
        return Err(depends(format!(
            "which is not valid. Model '{id}' failed with error: {}",
            error.message
        )));
    }
    let Some(highest) = entry.ready(None) else {
        return Err(depends(match entry.failure(id) {
            Some(reason) => format!(
                "which has no loaded version. Model '{id}' loading failed with error: {reason}"
            ),
            None => "which has no loaded version.".to_owned(),
        }));
    };
    match wanted {
        Some(version) if entry.ready(Some(version)).is_none() => Err(depends(format!(
            "whose required version {version} is not loaded."
        ))),
        _ => Ok(highest),
    }
}

impl ModelEntry {
    /// Whether it is loaded, or was to be.
    pub(super) fn is_known(&self) -> bool {
        self.source.is_some()
            || matches!(
                self.failure,
                Some(LoadFailure::Invalid(_) | LoadFailure::Versionless)
            )
    }

    /// The ready version of this number, or the highest.
    fn ready(&self, version: Option<i64>) -> Option<&Arc<ModelVersion>> {
        let mut slots = self.versions.iter().rev();
        let (_, slot) = slots.find(|(number, slot)| {
            slot.is_ready() && version.is_none_or(|version| version == **number)
        })?;
        slot.loaded.as_ref().map(Loaded::version)
    }

    /// Why it has no ready version.
    fn failure(&self, id: &ModelId) -> Option<String> {
        if let Some(LoadFailure::Versionless) = self.failure {
            return Some(format!(
                "at least one version must be available under the version policy of model '{}'",
                id.name
            ));
        }
        let failed = self
            .versions
            .iter()
            .filter_map(|(version, slot)| match &slot.state {
                VersionState::Unavailable(reason) if reason != UNLOADED => Some(format!(
                    "version {version} is at UNAVAILABLE state: {reason};"
                )),
                _ => None,
            });
        let failed: String = failed.collect();
        (!failed.is_empty()).then_some(failed)
    }
}

fn circular(id: &ModelId, last: &ModelId) -> Error {
    Error::invalid(format!(
        "circular dependency between ensembles: {id} -> ... -> {last} -> {id}"
    ))
}
