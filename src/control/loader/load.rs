//! Bringing versions up: all of a model, or none.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use conch_config::{ModelConfig, Scheduling};
use conch_engine::execution::cores;
use conch_engine::execution::cores::InstancePlan;
use conch_engine::execution::progress::LoadProgress;
use conch_engine::execution::queue::ModelQueue;
use conch_engine::model::labels::Labels;
use conch_engine::model::registry::{ModelId, UNLOADED};
use conch_engine::model::states::InitialStates;
use conch_engine::request::context::Executor;
use conch_engine::{Backend, BackendSpec, Error, LoadContext, Model, ModelVersion, VersionParts};
use conch_log as log;

use super::instances::{instance_plan, instance_specs};
use super::load_plan::LoadPlan;
use super::loaded::{Instances, Loaded};
use super::table::{LoadFailure, ModelEntry, Unloading, VersionSlot};
use super::version_change::VersionChange;
use super::{Lifecycle, revise};
use crate::repository::model_directory::choose_versions;

/// A backend, and a model that it has initialised.
type BackendModel = (Arc<dyn Backend>, Arc<dyn Model>);

/// A model whose versions are being loaded.
struct Loading {
    plan: LoadPlan,
    versions: Vec<i64>,
    /// Versions that are ready and stay as they are.
    kept: Vec<i64>,
    /// Of each version.
    progress: BTreeMap<i64, Arc<LoadProgress>>,
    outcomes: Mutex<Vec<(i64, Result<VersionChange, Error>)>>,
}

impl Lifecycle {
    /// Loads models, several at a time. Each turns ready, or fails, when the last of its versions
    /// is done: what was ready before serves until then, and on if the load fails. Returns what
    /// failed, in upstream's words.
    pub(super) fn bring_up(&self, plans: Vec<LoadPlan>) -> Vec<(ModelId, Error)> {
        let (plans, failures) = self.assemble(plans);
        let failures = Mutex::new(failures);
        let mut jobs = Vec::new();
        let mut shown = Vec::new();
        for plan in plans {
            let candidate = &plan.candidate;
            let chosen = choose_versions(&plan.id.name, &candidate.path, &candidate.version_policy);
            let versions = match chosen {
                Ok(versions) => versions,
                Err(error) => {
                    log::error!("failed to load model '{}': {}", plan.id, error.message);
                    push(&failures, (plan.id.clone(), error));
                    self.note_versionless(&plan.id);
                    self.add_spare_copy(&plan.id, plan.resources.copy.as_ref());
                    continue;
                }
            };
            let (kept, progress) = self.show_loading(&plan, &versions);
            let versions: Vec<i64> = progress.keys().copied().collect();
            if versions.is_empty() {
                self.swap_in(&plan, &kept, Vec::new());
                continue;
            }
            shown.push(plan.id.clone());
            let loading = Arc::new(Loading {
                plan,
                versions,
                kept,
                progress,
                outcomes: Mutex::default(),
            });
            for version in &loading.versions {
                log::info!("loading: {}:{version}", loading.plan.id);
                jobs.push((Arc::clone(&loading), *version));
            }
        }
        self.publish_loading(&shown);
        self.loader_threads("load")
            .for_each(jobs, |(loading, version)| {
                let outcome = self.permits.run(|| match self.is_ending() {
                    true => Err(super::stopping()),
                    false => self.load_with_retries(&loading, version),
                });
                if let Some(error) = self.conclude(&loading, version, outcome) {
                    push(&failures, (loading.plan.id.clone(), error));
                }
            });
        failures
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A model without any version that could be loaded: what is ready stays.
    fn note_versionless(&self, id: &ModelId) {
        let mut models = self.table.lock();
        let entry = models.entry(id.clone()).or_default();
        if entry.versions.is_empty() {
            entry.failure = Some(LoadFailure::Versionless);
            self.table.publish_one(&models, id);
        }
    }

    /// One snapshot for all: each costs as much as there are models.
    fn publish_loading(&self, ids: &[ModelId]) {
        let models = self.table.lock();
        match ids {
            [] => {}
            [only] => self.table.publish_one(&models, only),
            _ => self.table.publish(&models),
        }
    }

    /// Tells the versions that can stay from those that are to be loaded, and notes the latter as
    /// LOADING, except where a version serves meanwhile. [`Lifecycle::publish_loading`] shows them.
    fn show_loading(
        &self,
        plan: &LoadPlan,
        versions: &[i64],
    ) -> (Vec<i64>, BTreeMap<i64, Arc<LoadProgress>>) {
        let mut models = self.table.lock();
        let entry = models.entry(plan.id.clone()).or_default();
        entry.failure = None;
        // What agents do to a model is theirs to say.
        let source = entry
            .source
            .as_ref()
            .filter(|_| plan.resources.agents.is_none())
            // An ensemble is put together anew, as its models may be others.
            .filter(|_| !plan.is_ensemble());
        let slot_of = |version: &i64| entry.versions.get(version);
        let is_ready = |version: &i64| slot_of(version).is_some_and(VersionSlot::is_ready);
        // One that serves no more is loaded again, though its files are as they were.
        let serves = |version: &i64| slot_of(version).is_some_and(VersionSlot::serves);
        let (kept, loading): (Vec<i64>, Vec<i64>) = versions.iter().partition(|version| {
            serves(version)
                && source.is_some_and(|source| source.is_unchanged_in(&plan.source, **version))
        });
        let absent: Vec<i64> = loading
            .iter()
            .filter(|version| !is_ready(version))
            .copied()
            .collect();
        let progress: BTreeMap<i64, Arc<LoadProgress>> = loading
            .into_iter()
            .map(|version| (version, Arc::default()))
            .collect();
        for version in absent {
            if let Some(progress) = progress.get(&version) {
                progress.reach("waiting for other loads");
                entry
                    .versions
                    .insert(version, VersionSlot::loading(progress));
            }
        }
        (kept, progress)
    }

    fn load_with_retries(&self, loading: &Loading, version: i64) -> Result<VersionChange, Error> {
        let plan = &loading.plan;
        let progress = loading.progress.get(&version).cloned().unwrap_or_default();
        let retry_count = self.options.model_load_retry_count;
        let mut attempts_left = retry_count;
        loop {
            let outcome = match self.options.model_load_timeout {
                // An ensemble has no backend that could hang.
                Some(timeout) if !plan.is_ensemble() => {
                    self.attempt_within(timeout, plan, version, &progress)
                }
                _ => self.attempt(plan, version, &progress),
            };
            match outcome {
                Err(error) if attempts_left > 0 && !self.overdue.has(&plan.id, version) => {
                    attempts_left -= 1;
                    progress.begin_attempt(
                        (retry_count - attempts_left).saturating_add(1),
                        retry_count.saturating_add(1),
                    );
                    log::warning!(
                        "failed to load '{}' version {version}, trying again: {error}",
                        plan.id
                    );
                }
                outcome => return outcome,
            }
        }
    }

    /// One attempt, for as long as it takes. A panic in it is an error.
    pub(super) fn attempt(
        &self,
        plan: &LoadPlan,
        version: i64,
        progress: &Arc<LoadProgress>,
    ) -> Result<VersionChange, Error> {
        let attempt = catch_unwind(AssertUnwindSafe(|| {
            match self.revise_version(plan, version)? {
                Some(revised) => Ok(VersionChange::Revised(revised)),
                None => self
                    .load_version(plan, version, progress)
                    .map(VersionChange::Loaded),
            }
        }));
        attempt.unwrap_or_else(|_| Err(Error::internal("panic while the model was loaded")))
    }

    /// Refuses buckets that no histogram can have, where there is one, and tells of families whose
    /// options have no effect.
    ///
    /// # Errors
    /// INVALID_ARG.
    pub(super) fn check_metrics(&self, config: &conch_config::ResolvedConfig) -> Result<(), Error> {
        for family in conch_config::fixed_families(&config.message) {
            log::warning!(
                "Metric family '{family}' in 'metric_identifier' is not a customizable metric in \
                 Triton core."
            );
        }
        if self.options.histogram_latencies {
            conch_config::validate_first_response_buckets(&config.message)?;
        }
        Ok(())
    }

    /// Opens the backend, initialises the model and its instances. What was made until an error is
    /// dropped again.
    fn load_version(
        &self,
        plan: &LoadPlan,
        version: i64,
        progress: &Arc<LoadProgress>,
    ) -> Result<Loaded, Error> {
        let started = Instant::now();
        if plan.is_ensemble() {
            return self.load_ensemble(plan, version, started);
        }
        let id = &plan.id;
        let (backend, model) = self.load_model_of(plan, version, progress)?;
        let config = model.config();
        conch_config::validate_io(&config.message)?;
        // The backend may have proposed the scheduler.
        check_scheduling(&id.name, &config.scheduling)?;
        check_deadline_order(&id.name, &config)?;
        self.check_metrics(&config)?;
        let specs = instance_specs(&id.name, &config.instance_groups)?;
        let instance_counts = cores::instance_counts(&specs, backend.execution_policy());
        let labels = Labels::read(&config, &plan.candidate.path)?;
        let states = InitialStates::of(&config, &plan.candidate.path, &self.budget)?;
        let queue = ModelQueue::new(
            &config,
            &instance_counts,
            Arc::clone(&self.placement.timer_thread),
            model.batch_strategy(),
        )?;
        let entry = Arc::new(ModelVersion::new(VersionParts {
            namespace: Arc::clone(&id.namespace),
            name: Arc::clone(&id.name),
            version,
            core_count: specs.iter().filter(|spec| !spec.is_passive).count(),
            live_max: self.options.queue_requests_max,
            requests_max: self.options.admission.model_max,
            observed: self.options.observed(),
            labels,
            states: states.map(|start| (start, Arc::clone(&self.pool))),
            executor: self.cached(Arc::clone(&queue) as _, id, &config, version),
            config,
        }));
        model.bind(&entry);
        let instance_plan = InstancePlan {
            progress: Arc::clone(progress),
            ..instance_plan(self, plan, &entry, &entry.config, &*backend)?
        };
        let cores = cores::start_cores(&entry, &queue, &model, instance_plan, &self.placement)?;
        entry.set_load_duration(started.elapsed());
        self.watch_fault(&queue, &entry);
        let instances = Instances {
            cores: Arc::new(cores),
            model,
            backend,
        };
        Ok(Loaded::new(instances, entry, plan.resources.clone()))
    }

    /// Opens the backend of a version and initialises its model there.
    fn load_model_of(
        &self,
        plan: &LoadPlan,
        version: i64,
        progress: &LoadProgress,
    ) -> Result<BackendModel, Error> {
        let LoadPlan { id, candidate, .. } = plan;
        check_scheduling(&id.name, &candidate.scheduling)?;
        let spec = BackendSpec {
            model_name: id.name.to_string(),
            backend: candidate.config.backend.clone(),
            runtime: candidate.config.runtime.clone(),
            model_path: candidate.path.clone(),
            version,
        };
        progress.reach(format_args!("opening backend '{}'", spec.backend));
        let backend = {
            let opening = Arc::clone(&self.opening.lock().unwrap_or_else(PoisonError::into_inner));
            let _serial = opening.lock().unwrap_or_else(PoisonError::into_inner);
            self.host.open(&spec)?
        };
        let mut config = candidate.config.clone();
        backend.complete_config(&mut config);
        conch_config::resolve_instance_groups(
            &mut config,
            backend.preferred_groups(),
            &self.gpus.for_config(),
        )?;
        check_model_files(id, &candidate.path, version, &config)?;
        progress.reach("initializing the model");
        let model = Arc::clone(&backend).load_model(LoadContext {
            name: Arc::clone(&id.name),
            version,
            path: candidate.path.clone(),
            config: Arc::new(conch_config::ResolvedConfig::from_partial(config)?),
            may_complete: self.options.auto_complete,
            pool: Arc::clone(&self.pool),
            budget: Arc::clone(&self.budget),
        })?;
        Ok((backend, model))
    }

    /// `executor` behind the response cache, if there is one and the configuration wants it.
    pub(super) fn cached(
        &self,
        executor: Arc<dyn Executor>,
        id: &ModelId,
        config: &conch_config::ResolvedConfig,
        version: i64,
    ) -> Arc<dyn Executor> {
        match self.caching() {
            Some(caching) => caching.in_front_of(executor, &id.namespace, config, version),
            None => executor,
        }
    }

    /// Notes one version's outcome; the last one decides about the model. Returns why it failed, if
    /// it did.
    fn conclude(
        &self,
        loading: &Loading,
        version: i64,
        outcome: Result<VersionChange, Error>,
    ) -> Option<Error> {
        let id = &loading.plan.id;
        if let Err(error) = &outcome {
            log::error!("failed to load '{id}' version {version}: {error}");
        }
        let outcomes = {
            let mut outcomes = loading
                .outcomes
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            outcomes.push((version, outcome));
            if outcomes.len() < loading.versions.len() {
                return None;
            }
            std::mem::take(&mut *outcomes)
        };
        if outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
            let changes = outcomes
                .into_iter()
                .filter_map(|(version, outcome)| Some((version, outcome.ok()?)))
                .collect();
            self.swap_in(&loading.plan, &loading.kept, changes);
            return None;
        }
        Some(self.abandon(&loading.plan, outcomes))
    }

    /// Puts the new versions and instances into service and takes the old ones out, but for those
    /// that are kept, in one step.
    fn swap_in(&self, plan: &LoadPlan, kept: &[i64], changes: Vec<(i64, VersionChange)>) {
        let draining_versions = self.hand_over(&plan.id, kept, &changes);
        let mut unloading = Vec::new();
        let mut leaving = Vec::new();
        {
            let mut models = self.table.lock();
            let entry = models.entry(plan.id.clone()).or_default();
            let mut old: Vec<i64> = entry.versions.keys().copied().collect();
            old.retain(|version| !kept.contains(version));
            for (version, change) in changes {
                old.retain(|other| *other != version);
                match change {
                    VersionChange::Loaded(loaded) => {
                        unloading.extend(entry.replace(version, loaded))
                    }
                    VersionChange::Revised(revised) => leaving.extend(revised.commit()),
                }
            }
            for version in kept {
                let slot = entry.versions.get(version);
                if let Some(loaded) = slot.and_then(|slot| slot.loaded.as_ref()) {
                    revise::show_policy(loaded, &plan.source.config);
                }
            }
            for version in old {
                unloading.extend(entry.take_down(&plan.id, version));
            }
            for one in &mut unloading {
                entry.accompany(one, &draining_versions);
            }
            entry.source = Some(plan.source.clone().following(entry.source.as_ref()));
            entry.failure = None;
            if !plan.is_ensemble() {
                // It may have been an ensemble until now.
                entry.blueprint = None;
            }
            self.table.publish_one(&models, &plan.id);
        }
        self.copies.forget(&plan.id);
        self.table.unload_later(unloading);
        for gone in leaving {
            // As upstream, a load ends when the instances that it takes away are finalised. Nothing
            // is ever sent.
            let _ = gone.recv();
        }
        if let Some(agents) = &plan.resources.agents {
            agents.complete_load();
        }
        log::info!("successfully loaded '{}'", plan.id);
    }

    /// Takes down again what came up beside a failure; what was ready before goes on.
    fn abandon(
        &self,
        plan: &LoadPlan,
        outcomes: Vec<(i64, Result<VersionChange, Error>)>,
    ) -> Error {
        let mut message = String::new();
        let mut surplus = Vec::new();
        {
            let mut models = self.table.lock();
            let entry = models.entry(plan.id.clone()).or_default();
            for (version, outcome) in outcomes {
                let reason = match outcome {
                    Ok(change) => {
                        surplus.push(change);
                        UNLOADED.to_owned()
                    }
                    Err(error) => {
                        let reason = plan.without_temporary_path(&error.to_string());
                        message += &format!("version {version} is at UNAVAILABLE state: {reason};");
                        reason
                    }
                };
                show_failure(entry, version, reason);
            }
            // What it needs was loaded for it.
            entry
                .source
                .get_or_insert_with(|| plan.source.clone().of_failure());
            self.table.publish_one(&models, &plan.id);
        }
        surplus.into_iter().for_each(VersionChange::undo);
        self.add_spare_copy(&plan.id, plan.resources.copy.as_ref());
        log::info!("failed to load '{}'", plan.id);
        Error::invalid(message)
    }

    /// Takes models out of service; their versions drain and unload meanwhile.
    pub(super) fn take_down(&self, ids: impl IntoIterator<Item = ModelId>) {
        let mut unloading: Vec<Unloading> = Vec::new();
        let ids: Vec<ModelId> = ids.into_iter().collect();
        for id in &ids {
            self.copies.forget(id);
        }
        {
            let mut models = self.table.lock();
            for id in ids {
                if let Some(entry) = models.get_mut(&id) {
                    entry.source = None;
                    entry.blueprint = None;
                    unloading.extend(entry.take_all_down(&id));
                }
            }
            self.table.publish(&models);
        }
        self.table.unload_later(unloading);
    }
}

fn show_failure(entry: &mut ModelEntry, version: i64, reason: String) {
    let slot = entry.versions.get(&version);
    if !slot.is_some_and(VersionSlot::is_ready) {
        entry
            .versions
            .insert(version, VersionSlot::unavailable(reason));
    }
}

fn push<T>(list: &Mutex<Vec<T>>, item: T) {
    list.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(item);
}

/// Refuses a model file that is a FIFO, a socket or a device: the backend that opens it by its path
/// could wait for ever.
fn check_model_files(
    id: &ModelId,
    path: &Path,
    version: i64,
    config: &ModelConfig,
) -> Result<(), Error> {
    let directory = path.join(version.to_string());
    let is_model = |name: &str| {
        let named = config.default_model_filename.as_str();
        let others = config.cc_model_filenames.values();
        name == named
            || named.is_empty() && name.starts_with("model.")
            || others.into_iter().any(|other| other == name)
    };
    for entry in std::fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .flatten()
    {
        if !entry.file_name().to_str().is_some_and(is_model) {
            continue;
        }
        let file = entry.path();
        // A directory may be a model, and what is not there is for the backend to tell.
        let kind = std::fs::metadata(&file);
        if kind.is_ok_and(|kind| !kind.is_file() && !kind.is_dir()) {
            return Err(Error::invalid(format!(
                "unable to load model '{id}', version {version}: '{}' is no regular file",
                entry.file_name().to_string_lossy()
            )));
        }
    }
    Ok(())
}

/// Whether this server can schedule the model at all.
fn check_scheduling(name: &str, scheduling: &Scheduling) -> Result<(), Error> {
    match scheduling {
        Scheduling::Default | Scheduling::Dynamic(_) | Scheduling::Sequence(_) => Ok(()),
        // A backend may not propose one.
        Scheduling::Ensemble => Err(Error::invalid(format!(
            "model '{name}' has a backend, so it is no ensemble"
        ))),
    }
}

/// The order of deadlines is one of the dynamic batcher, and not the order of arrival.
fn check_deadline_order(name: &str, config: &conch_config::ResolvedConfig) -> Result<(), Error> {
    if !config.own.is_by_deadline {
        return Ok(());
    }
    let parameter = conch_config::DEADLINE_ORDER;
    match &config.scheduling {
        Scheduling::Dynamic(settings) if !settings.is_preserving_order => Ok(()),
        Scheduling::Dynamic(_) => Err(Error::invalid(format!(
            "parameter '{parameter}' of model '{name}' excludes preserve_ordering"
        ))),
        _ => Err(Error::invalid(format!(
            "parameter '{parameter}' of model '{name}' needs dynamic_batching"
        ))),
    }
}
