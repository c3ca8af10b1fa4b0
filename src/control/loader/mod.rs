//! Loads, serves and unloads model versions, and knows where each stands.
//!
//! ```text
//!                      all of the model's                              drained,
//!             load     versions are up           take down             gone
//! (unknown) ────────► LOADING ────────► READY ────────────► UNLOADING ─────────► UNAVAILABLE
//!                        │                                                       (unloaded)
//!                        └── any failed ──► UNAVAILABLE
//!                                           (reason; `unloaded` for those that had come up)
//! ```
//!
//! A version that is READY stays so while its successor loads beside it, and if that fails; the
//! successor takes its place in one step. Control threads only: loading blocks for as long as
//! backends do. The data plane sees the outcome through the registry, whose snapshots are published
//! from [`table`].

mod chain;
mod change;
mod demand;
mod download;
mod ensemble;
mod fault_reload;
mod files;
mod handover;
mod instances;
mod load;
mod load_permits;
mod load_plan;
mod load_timeout;
mod loaded;
mod locks;
mod outcome;
mod overdue_loads;
mod plan;
mod remote_copies;
mod revise;
mod source;
mod step_graph;
mod stop;
mod table;
mod thread;
mod version_change;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use conch_engine::Error;
use conch_engine::cache::{CacheService, ResponseCache};
use conch_engine::execution::rate_limiter::RateLimiter;
use conch_engine::execution::streams::device_cores::DeviceCores;
use conch_engine::gpus::{Gpu, GpuHost};
use conch_engine::model::registry::{ModelId, NOT_READY, Registry, VersionState};
use conch_engine::threads::loader_placement::LoaderPlacement;
use conch_engine::threads::placement::{GpuPlace, Placement};
use conch_engine::threads::timer_thread::TimerThread;
use conch_engine::threads::topology::Topology;
use conch_memory::{Budget, Pool};

use crate::agents::PluginHost;
use crate::options::EngineOptions;
use crate::repository::Repositories;
use crate::server_metadata::IndexRow;
pub(crate) use instances::instance_specs;
use load_permits::LoadPermits;
use locks::ModelLocks;
pub(crate) use outcome::ModelOutcome;
use overdue_loads::OverdueLoads;
use remote_copies::RemoteCopies;
pub(crate) use table::LoadFailure;
use table::ModelTable;
use thread::LoaderThreads;

/// The models of a server, whatever their state.
pub(crate) struct Lifecycle {
    /// For threads that outlive the operation that they load for.
    own: Weak<Lifecycle>,
    options: EngineOptions,
    host: Arc<dyn PluginHost>,
    pool: Arc<Pool>,
    budget: Arc<Budget>,
    topology: Topology,
    placement: Placement,
    gpus: Arc<GpuHost>,
    repositories: Mutex<Repositories>,
    copies: RemoteCopies,
    table: Arc<ModelTable>,
    locks: ModelLocks,
    permits: LoadPermits,
    /// Present if executions are limited.
    limiter: Option<Arc<RateLimiter>>,
    /// Threads that drive instances with batches in flight on GPUs.
    device_cores: Arc<DeviceCores>,
    /// Set before the first model is loaded, if there is a response cache.
    caching: OnceLock<Arc<CacheService>>,
    /// Held while a backend is opened: opening is serial. Another takes its place when an opening
    /// is given up.
    opening: Mutex<Arc<Mutex<()>>>,
    /// Loads that were given up, and go on inside their backends.
    overdue: OverdueLoads,
    /// How often models were loaded again by themselves.
    fault_reloads: Mutex<BTreeMap<ModelId, u32>>,
    /// The server is on its way out: nobody waits for what is still being downloaded.
    is_ending: AtomicBool,
    /// [`Lifecycle::stop`] began.
    is_stopping: AtomicBool,
}

impl Lifecycle {
    pub(crate) fn new(
        options: &EngineOptions,
        host: Arc<dyn PluginHost>,
        registry: Arc<Registry>,
        pool: Arc<Pool>,
        budget: Arc<Budget>,
        timer_thread: Arc<TimerThread>,
        gpus: Arc<GpuHost>,
    ) -> Arc<Lifecycle> {
        let topology = Topology::detect();
        if !options.shard_cpus.is_empty() {
            timer_thread.start();
        }
        Arc::new_cyclic(|own| Lifecycle {
            own: Weak::clone(own),
            placement: Placement::new(
                &topology,
                &options.shard_cpus,
                options.lowers_core_priority,
                timer_thread,
                &gpu_places(&gpus),
            )
            .with_policies(options.host_policies.clone()),
            topology,
            gpus,
            repositories: Mutex::new(
                Repositories::new(&options.model_repositories, options.namespacing)
                    .with_remote(Arc::clone(&options.remote)),
            ),
            copies: RemoteCopies::default(),
            table: ModelTable::new(registry, options.namespacing, options.demand.is_some()),
            locks: ModelLocks::default(),
            permits: LoadPermits::new(options.model_load_thread_count),
            limiter: match options.executions_max {
                Some(executions_max) => Some(RateLimiter::sharing(executions_max)),
                None => options
                    .limits_rate
                    .then(|| RateLimiter::new(options.rate_capacities.clone())),
            },
            device_cores: Arc::default(),
            options: options.clone(),
            host,
            pool,
            budget,
            caching: OnceLock::new(),
            opening: Mutex::default(),
            overdue: OverdueLoads::default(),
            fault_reloads: Mutex::default(),
            is_ending: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Lets models loaded from now on use `cache`.
    ///
    /// # Errors
    /// INTERNAL if its threads cannot be started.
    pub(crate) fn use_cache(&self, cache: Arc<dyn ResponseCache>) -> Result<(), Error> {
        let caching = CacheService::start(cache, &self.placement)?;
        self.caching.get_or_init(|| caching);
        Ok(())
    }

    /// The machine's CPUs, and where the cores run.
    pub(crate) fn placement(&self) -> (&Topology, &Placement) {
        (&self.topology, &self.placement)
    }

    /// Where threads that change models run.
    pub(crate) fn loader_placement(&self) -> &LoaderPlacement {
        &self.placement.loader
    }

    /// The server's response cache.
    pub(crate) fn caching(&self) -> Option<&Arc<CacheService>> {
        self.caching.get()
    }

    /// Ends what is being downloaded; models that serve go on.
    pub(crate) fn begin_end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// What the data plane sees of the models.
    pub(crate) fn registry(&self) -> &Registry {
        self.table.registry()
    }

    /// Whether [`Lifecycle::stop`] began: no model is loaded any more.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed) || self.options.stop_request.load(Ordering::Relaxed)
    }

    /// Those that work on models, called `name`.
    fn loader_threads(&self, name: &'static str) -> LoaderThreads<'_> {
        LoaderThreads {
            count_max: self.permits.thread_count,
            name,
            placement: &self.placement.loader,
        }
    }

    /// See [`ModelTable::is_all_ready`].
    pub(crate) fn is_all_ready(&self) -> bool {
        self.table.is_all_ready()
    }

    /// See [`ModelTable::changing`].
    pub(crate) fn changing(&self) -> Vec<IndexRow> {
        self.table.changing()
    }

    /// The repository index, by name and version: the models that lie in the repositories now,
    /// loaded or not. Reads directories. As upstream, it lacks models that are loaded but lie
    /// nowhere.
    pub(crate) fn index(&self) -> Vec<IndexRow> {
        let repositories = self.repositories().clone();
        let scan = repositories.scan();
        let models = self.table.lock();
        let mut rows = Vec::new();
        for (id, paths) in &scan.models {
            let nameless = |state, reason: &str| IndexRow {
                name: id.name.to_string(),
                version: None,
                state,
                reason: reason.to_owned(),
            };
            if paths.len() > 1 {
                rows.push(nameless(UNAVAILABLE, DUPLICATE));
                continue;
            }
            let entry = models.get(id);
            let downloading = entry.and_then(|entry| entry.downloading.as_deref());
            match entry {
                Some(entry)
                    if entry.has_ready()
                        || entry.downloading.is_none() && !entry.versions.is_empty() =>
                {
                    rows.extend(entry.versions.iter().map(|(version, slot)| IndexRow {
                        name: id.name.to_string(),
                        version: Some(*version),
                        state: slot.shown_state(),
                        reason: match downloading {
                            Some(progress) if slot.is_ready() => format!("successor is {progress}"),
                            _ => slot.reason(),
                        },
                    }));
                }
                _ => match downloading {
                    Some(progress) => rows.push(nameless(VersionState::Loading.name(), progress)),
                    None => rows.push(nameless("", "")),
                },
            }
        }
        rows
    }

    /// Name, version and status of every model for the log: unlike the index with the reason of
    /// those that have no version.
    pub(crate) fn summary(&self) -> Vec<[String; 3]> {
        let mut rows = Vec::new();
        for (id, entry) in self.table.lock().iter() {
            let without_version = |status: String| [id.to_string(), "-".to_owned(), status];
            match &entry.failure {
                Some(LoadFailure::Duplicate) => {
                    rows.push(without_version(format!("{UNAVAILABLE}: {DUPLICATE}")));
                }
                Some(LoadFailure::Refused(error) | LoadFailure::Invalid(error)) => {
                    rows.push(without_version(format!("{UNAVAILABLE}: {error}")));
                }
                Some(LoadFailure::Versionless) => rows.push(without_version(
                    "Not loaded: No model version was found".to_owned(),
                )),
                None => rows.extend(entry.versions.iter().map(|(version, slot)| {
                    let status = match slot.state.reason() {
                        "" => slot.state.name().to_owned(),
                        reason => format!("{}: {reason}", slot.state.name()),
                    };
                    [id.to_string(), version.to_string(), status]
                })),
            }
        }
        rows
    }

    fn repositories(&self) -> MutexGuard<'_, Repositories> {
        // Each change is one insertion or removal, so a panic elsewhere leaves them sound.
        self.repositories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

const UNAVAILABLE: &str = "UNAVAILABLE";
pub(crate) const DUPLICATE: &str = "model appears in two or more repositories";

pub(super) fn stopping() -> Error {
    Error::unavailable(NOT_READY)
}

/// The GPUs as placement sees them.
fn gpu_places(gpus: &GpuHost) -> Vec<GpuPlace> {
    let place = |gpu: &Gpu| GpuPlace {
        device_id: gpu.device_id(),
        name: gpu.properties.name.clone(),
        pci_address: gpu.properties.pci_address.clone(),
    };
    gpus.gpus().iter().map(place).collect()
}
