//! Looks at model repositories without serving them.
//!
//! [`examine`] runs the loader, all of it, with stand-ins for plug-ins (`stand_in`): what it
//! refuses is what a server refuses, in the same words. Nothing is opened but the files of the
//! models. [`Server::check_models`](crate::Server::check_models) loads models, each on its own.
//! Blocks; the caller's thread, and those of the loader.

mod judgement;
mod loading;
mod report;
mod stand_in;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use conch_engine::gpus::GpuHost;
use conch_engine::model::registry::{ModelId, Registry};
use conch_engine::threads::timer_thread::TimerThread;
use conch_memory::{Budget, Pool};

use crate::agents::PluginHost;
use crate::loader::Lifecycle;
use crate::options::{ControlMode, EngineOptions};
use crate::repository::{Repositories, check_local, misplaced, remote};
use stand_in::StandInHost;

pub use report::{CheckFault, CheckReport, CheckState, ModelReport};

/// Stands for all models in the list of startup models.
const EVERYTHING: &str = "*";

/// Looks at all models of the repositories, or at the startup models and what they need. No plug-in
/// is opened: those of `host` are only looked for.
pub fn examine(options: &EngineOptions, host: Arc<dyn PluginHost>) -> CheckReport {
    let mut report = CheckReport {
        repositories: options.model_repositories.clone(),
        ..CheckReport::default()
    };
    let mut readable = Vec::new();
    for repository in &options.model_repositories {
        match remote::uri(repository).map_or_else(|| check_local(repository), |_| Ok(())) {
            Ok(()) => readable.push(repository.clone()),
            Err(error) => {
                let fault = CheckFault::of(repository, error.message);
                report.errors.push(fault);
            }
        }
    }
    let options = EngineOptions {
        model_repositories: readable,
        model_control_mode: ControlMode::None,
        demand: None,
        model_load_retry_count: 0,
        model_load_timeout: None,
        ..options.clone()
    };
    let repositories = Repositories::new(&options.model_repositories, options.namespacing)
        .with_remote(Arc::clone(&options.remote));
    let scan = repositories.scan();
    for (repository, cause) in &scan.unreadable {
        report.errors.push(CheckFault::of(repository, cause));
    }
    let lifecycle = with_stand_ins(&options, host);
    lifecycle.synchronize();
    let mut needs = BTreeMap::new();
    for (id, paths) in &scan.models {
        let [path] = paths.as_slice() else {
            report.models.push(judgement::duplicate(id, paths));
            continue;
        };
        let outcome = lifecycle.outcome(id);
        let needed = outcome.config.as_ref().map(conch_config::needed_models);
        needs.insert(id.name.to_string(), needed.unwrap_or_default());
        let place = ModelPlace::new(id, path, &options);
        let examined = outcome.config.as_ref();
        let judged = judgement::judge(&place, &outcome, examined);
        report.models.push(judged);
    }
    // Nothing is lost if it does not end in time: its threads wait for nothing.
    let _ = lifecycle.stop(options.exit_timeout);
    for repository in &options.model_repositories {
        let fault = no_model(repository, &report.models);
        report.errors.extend(fault);
    }
    keep_wanted(&mut report, &options.startup_models, &needs);
    report
}

/// A model of a repository, and how its configuration is to be read.
struct ModelPlace<'p> {
    id: &'p ModelId,
    directory: &'p Path,
    config_name: &'p str,
    expands: bool,
}

impl<'p> ModelPlace<'p> {
    fn new(id: &'p ModelId, directory: &'p Path, options: &'p EngineOptions) -> ModelPlace<'p> {
        ModelPlace {
            id,
            directory,
            config_name: &options.model_config_name,
            expands: options.expands_config,
        }
    }
}

/// The loader of a server without GPUs that opens no plug-in.
fn with_stand_ins(options: &EngineOptions, host: Arc<dyn PluginHost>) -> Arc<Lifecycle> {
    Lifecycle::new(
        options,
        Arc::new(StandInHost { real: host }),
        Arc::new(Registry::default()),
        Pool::new(options.pool_retain_bytes),
        Budget::new(options.memory_limit_bytes),
        Arc::new(TimerThread::default()),
        GpuHost::without_driver(&options.gpu),
    )
}

/// What is wrong with a repository of which no model is good, if that can be seen.
fn no_model(repository: &Path, models: &[ModelReport]) -> Option<CheckFault> {
    let mut own = models
        .iter()
        .filter(|model| model.repository == repository)
        .peekable();
    let is_empty = own.peek().is_none();
    if own.any(ModelReport::is_good) {
        return None;
    }
    let hint = match remote::uri(repository) {
        None => misplaced::of_repository(repository),
        Some(uri) => is_empty.then(|| format!("there is no model in repository '{uri}'")),
    };
    hint.map(|hint| CheckFault::of(repository, hint))
}

/// Leaves the models that a server would load at its start, if the options name them.
fn keep_wanted(
    report: &mut CheckReport,
    startup_models: &[String],
    needs: &BTreeMap<String, BTreeSet<String>>,
) {
    if startup_models.is_empty() || startup_models.iter().any(|name| name == EVERYTHING) {
        return;
    }
    for name in startup_models {
        let mut known = report.models.iter();
        if !known.any(|model| model.name == *name) {
            report.errors.push(CheckFault {
                message: format!(
                    "failed to poll model '{name}': model not found in any model repository."
                ),
                ..CheckFault::default()
            });
        }
    }
    let mut wanted: BTreeSet<&str> = startup_models.iter().map(String::as_str).collect();
    let mut open: Vec<&str> = wanted.iter().copied().collect();
    while let Some(name) = open.pop() {
        let needed = needs.get(name).into_iter().flatten();
        open.extend(
            needed
                .map(String::as_str)
                .filter(|name| wanted.insert(name)),
        );
    }
    report.models.retain(|model| wanted.contains(&*model.name));
}
