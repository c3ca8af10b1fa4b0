//! Changing what is loaded: at start, by request, and by what lies on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use conch_engine::model::registry::{ModelId, VersionState};
use conch_engine::{Code, Error, truncated};
use conch_log as log;

use super::files::OverrideFiles;
use super::load_plan::LoadPlan;
use super::locks::LocksClosed;
use super::table::LoadFailure;
use super::{Lifecycle, source, stopping};
use crate::load_overrides::Overrides;
use crate::options::ControlMode;
use crate::repository::{RepositoryScan, misplaced};

/// Stands for all models in the list of startup models.
const EVERYTHING: &str = "*";
/// Models that the last line of a failed start names; all of them are in the table of models.
const FAILURES_SHOWN_MAX: usize = 3;
/// Misplaced models that are looked for and told of.
const HINTS_MAX: usize = 8;

impl Lifecycle {
    /// Loads the models that are to be there from the start. Returns the error that names those
    /// that failed, if any did. Blocks until the last one is ready or has failed.
    ///
    /// # Errors
    /// The server cannot serve: INVALID_ARG if the startup models are a contradiction, INTERNAL if
    /// a local repository does not exist.
    pub(crate) fn start(&self) -> Result<Option<Error>, Error> {
        let wanted = &self.options.startup_models;
        let has_all = wanted.iter().any(|name| name == EVERYTHING);
        let is_explicit = self.options.model_control_mode == ControlMode::Explicit;
        self.repositories().check_local()?;
        if is_explicit && has_all && wanted.iter().any(|name| name != EVERYTHING) {
            return Err(Error::invalid(
                "Wildcard model name '*' must be the ONLY startup model if specified at all.",
            ));
        }
        let is_polled = if is_explicit && !has_all {
            let names: BTreeSet<String> = wanted.iter().cloned().collect();
            self.load_named(&names, &mut Vec::new())?
        } else {
            self.synchronize()
        };
        let is_up = is_polled && self.is_everything_up();
        self.log_misplaced(!is_explicit || has_all);
        Ok((!is_up).then(|| self.start_failure()))
    }

    /// Tells the log of models that were put where nothing looks for them. A repository that serves
    /// nothing is looked at if `all_models` were to be loaded.
    fn log_misplaced(&self, all_models: bool) {
        let repositories = self.repositories().local();
        let mut hints = Vec::new();
        {
            let models = self.table.lock();
            for repository in &repositories {
                let serves = models.values().any(|entry| {
                    let source = entry.source.as_ref();
                    entry.has_ready()
                        && source.is_some_and(|source| source.path.starts_with(repository))
                });
                if all_models && !serves {
                    hints.extend(misplaced::of_repository(repository));
                }
            }
            if hints.is_empty() {
                let failed = models.iter().filter(|(_, entry)| entry.failure.is_some());
                let paths = failed.flat_map(|(id, _)| {
                    let paths = repositories.iter().map(|path| path.join(&*id.name));
                    paths.filter(|path| path.is_dir())
                });
                hints.extend(
                    paths
                        .take(HINTS_MAX)
                        .filter_map(|path| misplaced::of_model(&path)),
                );
            }
        }
        for hint in hints.iter().take(HINTS_MAX) {
            log::warning!("{hint}");
        }
    }

    /// Why the start failed: each model that is not up, with its reason, and at most
    /// [`FAILURES_SHOWN_MAX`] of them.
    fn start_failure(&self) -> Error {
        let summary = self.summary();
        let mut failures: Vec<String> = summary
            .iter()
            .filter(|[_, _, status]| status != VersionState::Ready.name())
            .map(|[name, version, status]| {
                let reason = status.strip_prefix("UNAVAILABLE: ").unwrap_or(status);
                match version.as_str() {
                    "-" => format!("model '{name}': {reason}"),
                    version => format!("model '{name}', version {version}: {reason}"),
                }
            })
            .collect();
        for name in &self.options.startup_models {
            if name != EVERYTHING && !summary.iter().any(|[known, ..]| known == name) {
                failures.push(format!("model '{name}' is in no model repository"));
            }
        }
        if failures.is_empty() {
            failures.push(String::from(
                "a model repository could not be read, see the log",
            ));
        }
        let more = failures.len().saturating_sub(FAILURES_SHOWN_MAX);
        failures.truncate(FAILURES_SHOWN_MAX);
        let mut message = format!("failed to load all models: {}", failures.join("; "));
        if more > 0 {
            message.push_str(&format!("; and {more} more, see the table of models"));
        }
        Error::internal(message)
    }

    /// See [`crate::Server::load_model`].
    pub(crate) fn load_model(&self, name: &str, overrides: Overrides) -> Result<(), Error> {
        check_name(name)?;
        let _charge = overrides.charge(&self.budget)?;
        let names = BTreeSet::from([name.to_owned()]);
        let mut failures = Vec::new();
        let mut cause = String::new();
        let is_polled = if overrides.is_empty() {
            self.load_named(&names, &mut failures)?
        } else {
            let planned = {
                let _turn = self
                    .locks
                    .acquire(names.clone())
                    .map_err(|LocksClosed| stopping())?;
                self.plan_from_request(name, overrides)
            };
            match planned {
                Ok(plans) => {
                    failures = self.load_planned(names, plans)?;
                    true
                }
                Err(error) => {
                    log_poll_failure(name, &error);
                    // What the client sent is not to blame, and it cannot look into the log: a full
                    // disk.
                    if error.code == Code::Internal {
                        cause = format!(": {}", error.message);
                    }
                    false
                }
            }
        };
        failures.retain(|(id, _)| &*id.name == name);
        if !failures.is_empty() {
            let parts: Vec<String> = failures
                .iter()
                .map(|(id, error)| format!("load failed for model '{id}': {}\n", error.message))
                .collect();
            return Err(Error::invalid(parts.concat()));
        }
        if !is_polled {
            return Err(Error::internal(format!(
                "failed to load '{name}', failed to poll from model repository{cause}",
                name = truncated(&name)
            )));
        }
        Ok(())
    }

    /// See [`crate::Server::unload_model`].
    pub(crate) fn unload_model(&self, name: &str, with_dependents: bool) -> Result<(), Error> {
        let mut names = BTreeSet::from([name.to_owned()]);
        loop {
            let lock = self
                .locks
                .acquire(names.clone())
                .map_err(|LocksClosed| stopping())?;
            let going = self.unloaded_with(name, with_dependents);
            let dormant = self.dependents(&going);
            // Others may have to go as well; all of them are ours before any goes.
            if !going.is_subset(&names) || !dormant.is_subset(&names) {
                drop(lock);
                names.extend(going);
                names.extend(dormant);
                continue;
            }
            let ids: Vec<ModelId> = {
                let models = self.table.lock();
                let is_going = |id: &&ModelId| going.contains(&*id.name);
                models.keys().filter(is_going).cloned().collect()
            };
            self.take_down(ids);
            self.follow_up(&going, &BTreeSet::new());
            return Ok(());
        }
    }

    /// See [`crate::Server::poll_repositories`].
    pub(crate) fn poll(&self) -> Result<(), Error> {
        let _turn = self.locks.acquire_all().map_err(|LocksClosed| stopping())?;
        self.synchronize();
        Ok(())
    }

    /// See [`crate::Server::register_repository`].
    pub(crate) fn register_repository(
        &self,
        path: &str,
        mappings: Vec<(String, String)>,
    ) -> Result<(), Error> {
        // On a copy: a remote repository may take long to answer.
        let repositories = self.repositories().clone();
        repositories.check(path)?;
        self.repositories().register(path, mappings)
    }

    /// See [`crate::Server::unregister_repository`].
    pub(crate) fn unregister_repository(&self, path: &str) -> Result<(), Error> {
        self.repositories().unregister(path)
    }

    /// Brings all models into line with what lies in the repositories: takes down what is gone, and
    /// loads what is new or changed. Of what has to be downloaded, each is loaded as soon as it is
    /// here, but for ensembles and their models. Returns whether all could be read. One that cannot
    /// be read stays as it is.
    pub(crate) fn synchronize(&self) -> bool {
        let repositories = self.repositories().clone();
        let scan = repositories.scan();
        let is_sound = AtomicBool::new(scan.unreadable.is_empty());
        let mut found = Vec::new();
        let mut going = self.gone(&scan);
        for (id, paths) in &scan.models {
            let [path] = paths.as_slice() else {
                log::error!(
                    "failed to poll model '{id}': not unique across all model repositories"
                );
                self.note_failure(id, LoadFailure::Duplicate);
                going.push(id.clone());
                is_sound.store(false, Ordering::Relaxed);
                continue;
            };
            found.push((id.clone(), path.clone()));
        }
        let changed: BTreeSet<String> = going.iter().map(|id| id.name.to_string()).collect();
        let changed = Mutex::new(changed);
        if !going.is_empty() {
            self.take_down(going);
        }
        if scan.unreadable.is_empty() {
            self.copies.retain(|id| scan.models.contains_key(id));
        }
        let agent_turn = Mutex::default();
        let plan = |id: &ModelId, arrival| match self.plan_arrived(id, arrival, true, &agent_turn) {
            Ok(plan) => {
                let mut changed = changed.lock().unwrap_or_else(PoisonError::into_inner);
                changed.extend(plan.iter().map(|plan| plan.id.name.to_string()));
                plan
            }
            Err(error) => {
                log_poll_failure(&id.to_string(), &error);
                self.note_failure(id, LoadFailure::Refused(error));
                is_sound.store(false, Ordering::Relaxed);
                None
            }
        };
        let plans = Mutex::new(BTreeMap::new());
        let postpone = |plan: LoadPlan| {
            let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
            plans.insert(plan.id.clone(), plan);
        };
        // An ensemble is not to meet its models as they are now for as long as others are on their
        // way.
        let stands_alone = |plan: &LoadPlan| {
            let name = BTreeSet::from([plan.id.name.to_string()]);
            plan.source.needs.is_empty() && self.dependents(&name).is_empty()
        };
        let arrivals = self.arrive_each(&found, false, |index, arrival| {
            match plan(&found[index].0, arrival.map(Some)) {
                Some(plan) if stands_alone(&plan) => drop(self.bring_up(vec![plan])),
                Some(plan) => postpone(plan),
                None => {}
            }
        });
        let arrived = found.iter().zip(arrivals);
        let arrived = arrived.filter(|(_, arrival)| !matches!(arrival, Ok(None)));
        self.loader_threads("poll")
            .for_each(arrived, |((id, _), arrival)| {
                plan(id, arrival).into_iter().for_each(postpone);
            });
        self.bring_up_in_order(
            plans.into_inner().unwrap_or_else(PoisonError::into_inner),
            changed.into_inner().unwrap_or_else(PoisonError::into_inner),
        );
        is_sound.into_inner()
    }

    /// The models that were to be loaded and lie nowhere any more.
    fn gone(&self, scan: &RepositoryScan) -> Vec<ModelId> {
        let models = self.table.lock();
        let gone = models.iter().filter(|(id, entry)| {
            // A repository that cannot be read now (a mount that is gone for a moment) does not
            // lose its models.
            let is_hidden = |path: &Path| {
                let mut unreadable = scan.unreadable.iter();
                unreadable.any(|(repository, _)| path.starts_with(repository))
            };
            let source = entry.source.as_ref();
            !scan.models.contains_key(id) && source.is_some_and(|source| !is_hidden(&source.path))
        });
        gone.map(|(id, _)| id.clone()).collect()
    }

    /// Loads models by name, and first those that they need. Returns whether all that were asked
    /// for could be read; what failed to load is added to `failures`.
    ///
    /// # Errors
    /// UNAVAILABLE if the server is stopping.
    fn load_named(
        &self,
        asked: &BTreeSet<String>,
        failures: &mut Vec<(ModelId, Error)>,
    ) -> Result<bool, Error> {
        self.load_if(asked, || true, failures)
    }

    /// As [`Lifecycle::load_named`], but loads nothing unless `is_wanted` says so. It is asked each
    /// time the locks of the models are taken, until the load begins.
    pub(super) fn load_if(
        &self,
        asked: &BTreeSet<String>,
        mut is_wanted: impl FnMut() -> bool,
        failures: &mut Vec<(ModelId, Error)>,
    ) -> Result<bool, Error> {
        let mut names = asked.clone();
        // Keeps what was downloaded from one round to the next.
        let mut _previous;
        loop {
            let lock = self
                .locks
                .acquire(names.clone())
                .map_err(|LocksClosed| stopping())?;
            if !is_wanted() {
                return Ok(true);
            }
            let (plans, is_polled) = self.plan_named(asked);
            let changed: BTreeSet<String> = plans.keys().map(|id| id.name.to_string()).collect();
            let dependents = self.dependents(&changed);
            if !changed.is_subset(&names) || !dependents.is_subset(&names) {
                _previous = plans;
                drop(lock);
                names.extend(changed);
                names.extend(dependents);
                continue;
            }
            failures.extend(self.bring_up_in_order(plans, changed));
            return Ok(is_polled);
        }
    }

    /// Loads what a request describes, and first what that needs.
    ///
    /// # Errors
    /// UNAVAILABLE if the server is stopping.
    fn load_planned(
        &self,
        mut names: BTreeSet<String>,
        described: Vec<LoadPlan>,
    ) -> Result<Vec<(ModelId, Error)>, Error> {
        let needs: BTreeSet<String> = described
            .iter()
            .flat_map(|plan| plan.source.needs.iter().cloned())
            .collect();
        loop {
            let lock = self
                .locks
                .acquire(names.clone())
                .map_err(|LocksClosed| stopping())?;
            // What cannot be read is missed when the ensemble is put together.
            let (mut plans, _) = self.plan_all(&BTreeSet::new(), &needs);
            plans.extend(described.iter().map(|plan| (plan.id.clone(), plan.clone())));
            let changed: BTreeSet<String> = plans.keys().map(|id| id.name.to_string()).collect();
            let dependents = self.dependents(&changed);
            if !changed.is_subset(&names) || !dependents.is_subset(&names) {
                drop(lock);
                names.extend(changed);
                names.extend(dependents);
                continue;
            }
            return Ok(self.bring_up_in_order(plans, changed));
        }
    }

    /// What has to be loaded for `asked`, and whether all of it could be read.
    fn plan_named(&self, asked: &BTreeSet<String>) -> (BTreeMap<ModelId, LoadPlan>, bool) {
        self.plan_all(asked, asked)
    }

    /// What has to be loaded for `wanted`, some of which was `asked` for by name.
    fn plan_all(
        &self,
        asked: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
    ) -> (BTreeMap<ModelId, LoadPlan>, bool) {
        let mut plans = BTreeMap::new();
        let mut is_polled = true;
        let mut seen = wanted.clone();
        let mut open: Vec<String> = wanted.iter().cloned().collect();
        while !open.is_empty() {
            let mut found = Vec::new();
            for name in std::mem::take(&mut open) {
                let repositories = self.repositories().clone();
                match repositories.locate(&name) {
                    Ok(located) => found.extend(located),
                    Err(error) => {
                        log::error!("{}", error.message);
                        is_polled &= !asked.contains(&name);
                    }
                }
            }
            // One that serves no more is loaded again, though its files are as they were.
            let is_forced = found
                .iter()
                .any(|(id, _)| asked.contains(&*id.name) && self.has_fault(id));
            for ((id, _), arrival) in found.iter().zip(self.arrive(&found, is_forced)) {
                let is_asked = asked.contains(&*id.name);
                let planned = self.plan_arrived(id, arrival, is_asked, &Mutex::default());
                let needs = match planned.map(|plan| plan.or_else(|| self.dormant(id))) {
                    Ok(Some(plan)) => {
                        let needs = plan.source.needs.clone();
                        plans.insert(id.clone(), plan);
                        needs
                    }
                    // It stays as it is, but is not any more there only for another's sake. What it
                    // needs may have changed.
                    Ok(None) => {
                        self.note_explicit(id, is_asked);
                        self.needs_of(id)
                    }
                    Err(error) => {
                        log_poll_failure(&id.to_string(), &error);
                        is_polled &= !is_asked;
                        continue;
                    }
                };
                open.extend(
                    needs
                        .into_iter()
                        .filter(|needed| seen.insert(needed.clone())),
                );
            }
        }
        (plans, is_polled)
    }

    /// Loads each model after those that it needs, and puts together anew what needs one of
    /// `changed`.
    fn bring_up_in_order(
        &self,
        plans: BTreeMap<ModelId, LoadPlan>,
        changed: BTreeSet<String>,
    ) -> Vec<(ModelId, Error)> {
        let planned = plans.keys().cloned().collect();
        let mut failures = Vec::new();
        for stage in self.stages(plans) {
            failures.extend(self.bring_up(stage));
        }
        self.follow_up(&changed, &planned);
        failures
    }

    pub(super) fn plan_from_request(
        &self,
        name: &str,
        overrides: Overrides,
    ) -> Result<Vec<LoadPlan>, Error> {
        if overrides.files.is_empty() {
            let repositories = self.repositories().clone();
            let located = repositories.locate(name)?;
            let arrivals = self.arrive(&located, true).into_iter().zip(&located);
            let plans = arrivals.filter_map(|(arrival, (id, _))| match arrival {
                Ok(Some(arrival)) => Some(self.plan_overridden(id, arrival, &overrides)),
                Ok(None) => None,
                Err(error) => Some(Err(error)),
            });
            return plans.collect();
        }
        if overrides.config.is_none() {
            return Err(Error::invalid(
                "Load parameter 'config' must be specified for model file override",
            ));
        }
        let files = OverrideFiles::write(&overrides.files)?;
        let id = ModelId::plain(name);
        self.plan_from_files(&id, files, &overrides)
            .map(|plan| vec![plan])
    }

    /// The names of all models that are unloaded with `name`.
    fn unloaded_with(&self, name: &str, with_dependents: bool) -> BTreeSet<String> {
        let models = self.table.lock();
        let sources = models
            .iter()
            .filter_map(|(id, entry)| Some((&*id.name, entry.source.as_ref()?)));
        source::unloaded(&sources.collect::<Vec<_>>(), name, with_dependents)
    }

    /// Upstream's rule for a start without errors: each model has versions, and all are ready.
    fn is_everything_up(&self) -> bool {
        self.table.lock().values().all(|entry| {
            entry.failure.is_none()
                && entry.has_ready()
                && entry.versions.values().all(|slot| slot.is_ready())
        })
    }

    /// For the log's table. A model that serves goes on, whatever its directory looks like now.
    fn note_failure(&self, id: &ModelId, failure: LoadFailure) {
        let mut models = self.table.lock();
        let entry = models.entry(id.clone()).or_default();
        if entry.versions.is_empty() {
            entry.failure = Some(failure);
            self.table.note_readiness_of(&models, id);
        }
    }

    /// The names of the models that a loaded ensemble is made of.
    fn needs_of(&self, id: &ModelId) -> BTreeSet<String> {
        let models = self.table.lock();
        let source = models.get(id).and_then(|entry| entry.source.as_ref());
        source.map_or_else(BTreeSet::new, |source| source.needs.clone())
    }

    fn note_explicit(&self, id: &ModelId, is_explicit: bool) {
        let mut models = self.table.lock();
        let source = models.get_mut(id).and_then(|entry| entry.source.as_mut());
        if let Some(source) = source {
            source.is_explicit |= is_explicit;
        }
    }
}

/// In upstream's words: a name that could lead out of a repository is none.
fn check_name(name: &str) -> Result<(), Error> {
    let trimmed = name.trim();
    if trimmed.is_empty() {
        return Err(Error::invalid(
            "Model name cannot be empty. Please enter a valid name to deploy.",
        ));
    }
    if trimmed == ".." || trimmed == "." || trimmed.contains(['/', '\0']) {
        return Err(Error::invalid(format!(
            "invalid model name '{name}', model name must not contain path traversal characters",
            name = truncated(&name)
        )));
    }
    Ok(())
}

fn log_poll_failure(name: &str, error: &Error) {
    log::error!(
        "Poll failed for model directory '{name}': {}",
        error.message
    );
}
