//! Bringing versions up: all of a model, or none.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use conch_config::{Gpus, Scheduling};

use super::{Entry, Lifecycle, Loaded, Slot, UNLOADED};
use crate::instances::instance_specs;
use crate::registry::State;
use crate::repository::{Candidate, choose_versions};
use crate::{BackendSpec, Error, LoadContext, ModelVersion, core, log};

/// A model whose versions are being loaded.
struct Loading {
    name: Arc<str>,
    candidate: Candidate,
    version_count: usize,
    outcomes: Mutex<Vec<(i64, Result<Loaded, Error>)>>,
}

impl Lifecycle {
    /// Loads models, several at a time. Each turns ready, or fails, when the last of its versions is done.
    pub(super) fn load(&self, candidates: Vec<(Arc<str>, Candidate)>) {
        let mut jobs = VecDeque::new();
        for (name, candidate) in candidates {
            let chosen = choose_versions(&name, &candidate.path, &candidate.version_policy);
            let mut models = self.models();
            let versions = match chosen {
                Ok(versions) => versions,
                Err(error) => {
                    log::error!("failed to load model '{name}': {}", error.message);
                    models.insert(
                        name,
                        Entry::Versions {
                            versions: Default::default(),
                            problem: Some(error),
                        },
                    );
                    self.publish(&models);
                    continue;
                }
            };
            let slots = versions.iter().map(|version| {
                (
                    *version,
                    Slot {
                        state: State::Loading,
                        loaded: None,
                    },
                )
            });
            models.insert(
                Arc::clone(&name),
                Entry::Versions {
                    versions: slots.collect(),
                    problem: None,
                },
            );
            let loading = Arc::new(Loading {
                name,
                candidate,
                version_count: versions.len(),
                outcomes: Mutex::default(),
            });
            for version in versions {
                log::info!("loading: {}:{version}", loading.name);
                jobs.push_back((Arc::clone(&loading), version));
            }
        }
        self.publish(&self.models());
        let thread_count = self
            .options
            .model_load_thread_count
            .clamp(1, jobs.len().max(1));
        let jobs = Mutex::new(jobs);
        let work = || {
            while let Some((loading, version)) = next(&jobs) {
                let outcome = self.load_with_retries(&loading, version);
                self.conclude(&loading, version, outcome);
            }
        };
        thread::scope(|scope| {
            for index in 1..thread_count {
                let started = thread::Builder::new()
                    .name(format!("load-{index}"))
                    .spawn_scoped(scope, work);
                if let Err(cause) = started {
                    log::warning!("loading with fewer threads than asked for: {cause}");
                    break;
                }
            }
            // This thread is one of them, so the work is done even if no other could be started.
            work();
        });
    }

    fn load_with_retries(&self, loading: &Loading, version: i64) -> Result<Loaded, Error> {
        let mut attempts_left = self.options.model_load_retry_count;
        loop {
            let attempt = catch_unwind(AssertUnwindSafe(|| self.load_version(loading, version)));
            let outcome = attempt
                .unwrap_or_else(|_| Err(Error::internal("panic while the model was loaded")));
            match outcome {
                Err(error) if attempts_left > 0 => {
                    attempts_left -= 1;
                    log::warning!(
                        "failed to load '{}' version {version}, trying again: {error}",
                        loading.name
                    );
                }
                outcome => return outcome,
            }
        }
    }

    /// Opens the backend, initialises the model and its instances. What was made until an error is dropped again.
    fn load_version(&self, loading: &Loading, version: i64) -> Result<Loaded, Error> {
        let started = Instant::now();
        let Loading {
            name, candidate, ..
        } = loading;
        check_scheduling(name, &candidate.scheduling)?;
        let spec = BackendSpec {
            model_name: name.to_string(),
            backend: candidate.config.backend.clone(),
            runtime: candidate.config.runtime.clone(),
            model_path: candidate.path.clone(),
            version,
        };
        let backend = {
            let _serial = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
            self.host.open(&spec)?
        };
        let mut config = candidate.config.clone();
        conch_config::resolve_instance_groups(
            &mut config,
            backend.preferred_groups(),
            &Gpus::default(),
        )?;
        let model = Arc::clone(&backend).load_model(LoadContext {
            name: Arc::clone(name),
            version,
            path: candidate.path.clone(),
            config: Arc::new(conch_config::Model::from_partial(config)?),
            may_complete: self.options.auto_complete,
            pool: Arc::clone(&self.pool),
            budget: Arc::clone(&self.budget),
        })?;
        let config = model.config();
        conch_config::validate_io(&config.message)?;
        // The backend may have proposed the scheduler.
        check_scheduling(name, &config.scheduling)?;
        if config
            .message
            .model_warmup
            .iter()
            .any(|sample| sample.batch_size > 0)
        {
            log::warning!("the model_warmup of model '{name}' is not run");
        }
        let specs = instance_specs(name, &config.instance_groups)?;
        let core_count = specs.iter().filter(|spec| !spec.is_passive).count();
        let entry = Arc::new(ModelVersion::new(
            Arc::clone(name),
            version,
            config,
            core_count,
            self.options.queue_requests_max,
        ));
        model.bind(&entry);
        let cores = core::start_cores(
            &entry,
            &model,
            specs,
            backend.execution_policy(),
            is_parallel(&*backend),
            &self.placement,
        )?;
        entry.set_load_duration(started.elapsed());
        Ok(Loaded {
            cores,
            model,
            version: entry,
        })
    }

    /// Notes one version's outcome; the last one decides about the model.
    fn conclude(&self, loading: &Loading, version: i64, outcome: Result<Loaded, Error>) {
        let name = &loading.name;
        if let Err(error) = &outcome {
            log::error!("failed to load '{name}' version {version}: {error}");
        }
        let mut outcomes = loading
            .outcomes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        outcomes.push((version, outcome));
        if outcomes.len() < loading.version_count {
            return;
        }
        let outcomes = std::mem::take(&mut *outcomes);
        let is_up = outcomes.iter().all(|(_, outcome)| outcome.is_ok());
        let mut surplus = Vec::new();
        let slots = outcomes.into_iter().map(|(version, outcome)| {
            let slot = match outcome {
                Ok(loaded) if is_up => Slot {
                    state: State::Ready,
                    loaded: Some(loaded),
                },
                Ok(loaded) => {
                    surplus.push(loaded);
                    Slot {
                        state: State::Unavailable(UNLOADED.to_owned()),
                        loaded: None,
                    }
                }
                Err(error) => Slot {
                    state: State::Unavailable(error.to_string()),
                    loaded: None,
                },
            };
            (version, slot)
        });
        let versions = slots.collect();
        {
            let mut models = self.models();
            models.insert(
                Arc::clone(name),
                Entry::Versions {
                    versions,
                    problem: None,
                },
            );
            self.publish(&models);
        }
        if is_up {
            log::info!("successfully loaded '{name}'");
        } else {
            surplus.into_iter().for_each(Loaded::unload);
            log::info!("failed to load '{name}'");
        }
    }
}

fn next<T>(jobs: &Mutex<VecDeque<T>>) -> Option<T> {
    jobs.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}

/// Whether this server can schedule the model at all.
fn check_scheduling(name: &str, scheduling: &Scheduling) -> Result<(), Error> {
    match scheduling {
        Scheduling::Default | Scheduling::Dynamic(_) => Ok(()),
        Scheduling::Sequence => Err(Error::unsupported(format!(
            "model '{name}' uses sequence_batching, which this server does not support"
        ))),
        Scheduling::Ensemble => Err(Error::unsupported(format!(
            "model '{name}' is an ensemble, which this server does not support"
        ))),
    }
}

/// Whether instances of one model are made concurrently: the operator's word, else the backend's.
fn is_parallel(backend: &dyn crate::Backend) -> bool {
    match std::env::var_os("TRITON_PARALLEL_INSTANCE_LOADING") {
        Some(value) => value == "1",
        None => backend.allows_parallel_instances(),
    }
}
