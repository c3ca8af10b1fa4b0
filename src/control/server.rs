//! The server object: options in, a registry of loaded models out, and an orderly end.
//!
//! Made once by the executable or by an embedder. [`Server::start`] and [`Server::stop`] block for
//! as long as models load and unload; everything else answers from memory.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use conch_engine::Engine;
use conch_engine::Error;
use conch_engine::cache::CacheService;
use conch_engine::flow_control::backlog::StreamBacklog;
use conch_engine::gpus::GpuHost;
use conch_engine::limits::AdmissionLimits;
use conch_engine::model::readiness::{ReadinessAnswer, ReadinessProbe};
use conch_engine::model::registry::{Registry, Snapshot, VersionState};
use conch_engine::model::stats::ModelStatistics;
use conch_engine::shared_memory::Regions;
use conch_engine::threads::loader_placement::LoaderPlacement;
use conch_engine::threads::timer_thread::TimerThread;
use conch_log as log;
use conch_memory::{Budget, Pool};

use crate::agents::PluginHost;
use crate::gpu_watch::GpuWatch;
use crate::loader::Lifecycle;
use crate::metrics::MetricSources;
use crate::metrics::gpu::GpuMeter;
use crate::metrics::process::CpuMeter;
use crate::on_demand::{LoadOutcome, OnDemand};
use crate::options::EngineOptions;
use crate::server_metadata::{EXTENSIONS, IndexRow, ServerMetadata, VERSION};
use crate::serving_state::{Phase, ServingState};
use crate::{metrics, placement_table, start_tables};

/// A running server.
pub struct Server {
    options: EngineOptions,
    metadata: ServerMetadata,
    budget: Arc<Budget>,
    backlog: Arc<StreamBacklog>,
    pool: Arc<Pool>,
    host: Arc<dyn PluginHost>,
    registry: Arc<Registry>,
    lifecycle: Arc<Lifecycle>,
    timer_thread: Arc<TimerThread>,
    gpus: Arc<GpuHost>,
    gpu_meter: GpuMeter,
    _gpu_watch: GpuWatch,
    regions: Arc<Regions>,
    engine: Engine,
    demand: Option<Arc<OnDemand>>,
    state: Arc<ServingState>,
    cpu_meter: CpuMeter,
}

impl Server {
    /// Loads all models of the repositories and returns when each is ready or has failed. Blocks.
    ///
    /// # Errors
    /// INVALID_ARG without a repository; with `exit_on_error`, INTERNAL `failed to load all models`
    /// if one failed: everything is unloaded again then.
    pub fn start(options: EngineOptions, host: Arc<dyn PluginHost>) -> Result<Arc<Server>, Error> {
        check(&options)?;
        let server = Arc::new(Server::assemble(options, host)?);
        let loaded = server.load_models();
        let is_unwanted = server.options.stop_request.load(Ordering::Relaxed);
        let loaded = match is_unwanted {
            true => Err(Error::unavailable("stopped while models were loaded")),
            false => loaded,
        };
        if let Err(error) | Ok(Some(error)) = loaded {
            if server.options.exit_on_error || is_unwanted {
                if let Err(error) = server.stop() {
                    log::error!("{error}");
                }
                return Err(error);
            }
            log::error!("{error}");
        }
        if let Some(demand) = &server.demand {
            demand.trim();
        }
        Ok(server)
    }

    /// All parts of a server, before any model is loaded.
    fn assemble(options: EngineOptions, host: Arc<dyn PluginHost>) -> Result<Server, Error> {
        let registry = Arc::new(Registry::default());
        let pool = Pool::new(options.pool_retain_bytes);
        let budget = match options.memory_reserve_bytes {
            Some(bytes) => Budget::with_reserve(options.memory_limit_bytes, bytes),
            None => Budget::new(options.memory_limit_bytes),
        };
        let timer_thread = Arc::new(TimerThread::default());
        let gpus = GpuHost::of_process(&options.gpu);
        let lifecycle = Lifecycle::new(
            &options,
            Arc::clone(&host),
            Arc::clone(&registry),
            Arc::clone(&pool),
            Arc::clone(&budget),
            Arc::clone(&timer_thread),
            Arc::clone(&gpus),
        );
        // Before backends have threads, so that those see our handler.
        let regions = Regions::start(options.allow_client_shm, options.shm_owners.clone())?;
        if let Some(cache) = host.open_cache(&budget)? {
            lifecycle.use_cache(cache)?;
        }
        let state = Arc::<ServingState>::default();
        let demand = OnDemand::new(&options, &lifecycle, &registry, &state);
        let engine = Engine::new(
            Arc::clone(&registry),
            AdmissionLimits::new(&options.admission),
            demand.clone().map(|demand| demand as _),
        );
        Ok(Server {
            metadata: ServerMetadata {
                name: options.server_id.clone(),
                version: VERSION,
                extensions: EXTENSIONS,
            },
            backlog: StreamBacklog::new(options.stream_patience, options.memory_limit_bytes),
            budget,
            pool,
            host,
            registry,
            demand,
            _gpu_watch: GpuWatch::start(&gpus, &lifecycle),
            lifecycle,
            timer_thread,
            gpu_meter: match options.allow_metrics && options.allow_gpu_metrics {
                true => GpuMeter::start(&gpus, options.metrics_interval),
                false => GpuMeter::default(),
            },
            gpus,
            regions,
            engine,
            state,
            cpu_meter: CpuMeter::start(options.metrics_interval),
            options,
        })
    }

    /// Loads the models that are to be there at the start, and logs what there is. The result is
    /// that of [`Lifecycle::start`].
    fn load_models(&self) -> Result<Option<Error>, Error> {
        let loaded = self.lifecycle.start();
        start_tables::log_summary(
            &self.host.agents().list(),
            &self.host.list(),
            &self.lifecycle.summary(),
        );
        start_tables::log_options(&self.options, &self.metadata, self.caching().is_some());
        let (topology, placement) = self.lifecycle.placement();
        placement_table::log_placement(&self.options, topology, placement);
        if loaded.is_err() {
            self.state.set_unfit();
            self.registry.publish(Snapshot::closed());
        }
        loaded
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Where responses of decoupled models wait for slow readers.
    pub fn backlog(&self) -> &Arc<StreamBacklog> {
        &self.backlog
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Deadlines of requests that have no shard.
    pub fn timer_thread(&self) -> &Arc<TimerThread> {
        &self.timer_thread
    }

    /// Where threads run that change models ([`Server::load_model`] and its like).
    pub fn loader_placement(&self) -> &LoaderPlacement {
        self.lifecycle.loader_placement()
    }

    /// Memory that clients share with the server.
    pub fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// What brings models in that are asked for, if they come that way.
    pub fn demand(&self) -> Option<&Arc<OnDemand>> {
        self.demand.as_ref()
    }

    /// What lets requests into the models.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn metadata(&self) -> &ServerMetadata {
        &self.metadata
    }

    /// Whether the process serves at all: also while it drains.
    pub fn is_live(&self) -> bool {
        self.state.phase() < Phase::Stopping && !self.state.is_unfit()
    }

    /// # Errors
    /// UNAVAILABLE in upstream's words if no model is served: the server stops, or its start
    /// failed.
    pub fn check_serving(&self) -> Result<(), Error> {
        self.state.check()
    }

    /// Sees to it that a model is there, or is being loaded, where models are loaded on demand.
    /// Does not block for longer than moments.
    ///
    /// # Errors
    /// EXHAUSTED if too many requests wait; why the model could not be loaded a moment ago;
    /// UNAVAILABLE as the server stops.
    pub fn ensure_loaded(&self, name: &str, version: Option<i64>) -> Result<LoadOutcome, Error> {
        match &self.demand {
            Some(demand) => demand.ensure(name, version),
            None => Ok(LoadOutcome::Here(None)),
        }
    }

    /// Whether new traffic is wanted. Under strict readiness that needs every model ready (or
    /// unloaded on purpose), and the backends of the ready ones to agree. Does not block.
    pub fn readiness(&self) -> ReadinessAnswer {
        if self.state.phase() != Phase::Serving || self.state.is_unfit() {
            return ReadinessAnswer::Known(false);
        }
        if !self.options.strict_readiness {
            return ReadinessAnswer::Known(true);
        }
        if !self.lifecycle.is_all_ready() {
            return ReadinessAnswer::Known(false);
        }
        match self.registry.snapshot().inspected() {
            [] => ReadinessAnswer::Known(true),
            models => ReadinessAnswer::Asked(ReadinessProbe::about_all(models)),
        }
    }

    /// Whether a version (or the highest ready one) serves, and its backend agrees. Does not block.
    ///
    /// # Errors
    /// The lookup's.
    pub fn model_readiness(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<ReadinessAnswer, Error> {
        self.check_serving()?;
        let snapshot = self.registry.snapshot();
        let model = snapshot.find(name, version)?;
        Ok(if model.fault().is_some() {
            ReadinessAnswer::Known(false)
        } else if model.probes.has_hooks() {
            ReadinessAnswer::Asked(ReadinessProbe::about(model))
        } else {
            ReadinessAnswer::Known(true)
        })
    }

    /// Whether [`Server::stop`] began.
    pub fn is_stopping(&self) -> bool {
        self.state.phase() >= Phase::Stopping
    }

    /// Whether the end has begun, though requests are still served: [`Server::begin_drain`] was
    /// called, or [`Server::stop`].
    pub fn is_draining(&self) -> bool {
        self.state.phase() >= Phase::Draining
    }

    /// Turns readiness off at once, so that balancers stop sending, and ends downloads of models;
    /// everything else goes on.
    pub fn begin_drain(&self) {
        self.lifecycle.begin_end();
        self.state.advance(Phase::Draining);
    }

    /// Waits for requests in flight, unloads all models, and finalises the backends; blocks up to
    /// `exit_timeout`. A second call returns at once.
    ///
    /// # Errors
    /// INTERNAL if the time did not suffice; what still runs then must end with the process.
    pub fn stop(&self) -> Result<(), Error> {
        self.stop_within(self.options.exit_timeout)
    }

    /// [`Server::stop`] with what is left of a budget that other parts shared.
    ///
    /// # Errors
    /// As [`Server::stop`].
    pub fn stop_within(&self, budget: Duration) -> Result<(), Error> {
        if !self.state.advance(Phase::Stopping) {
            return Ok(());
        }
        let deadline = Instant::now() + budget;
        self.lifecycle.stop(budget)?;
        finalize_within(
            &self.host,
            self.caching(),
            deadline.saturating_duration_since(Instant::now()),
        )
    }

    /// Logs which models have requests in flight, in upstream's words; `seconds` are left until the
    /// exit waits no longer.
    pub fn log_in_flight(&self, seconds: u64) {
        self.lifecycle.log_in_flight(seconds);
    }

    /// The repository index, by name and version. `ready_only` keeps the ready versions.
    pub fn index(&self, ready_only: bool) -> Vec<IndexRow> {
        let mut rows = self.lifecycle.index();
        if ready_only {
            rows.retain(|row| row.state == VersionState::Ready.name());
        }
        rows
    }

    /// All metrics in Prometheus text format 0.0.4.
    pub fn metrics_text(&self) -> String {
        self.metrics_text_with(&[])
    }

    /// As [`Server::metrics_text`], with families of whoever serves them.
    pub fn metrics_text_with(&self, more: &[metrics::FamilySamples]) -> String {
        metrics::render(&MetricSources {
            options: &self.options,
            snapshot: &self.registry.snapshot(),
            cache: self.caching().map(|cache| &**cache),
            budget: &self.budget,
            cpu_meter: &self.cpu_meter,
            gpus: &self.gpus,
            gpu_meter: &self.gpu_meter,
            more,
        })
    }

    /// The families of backends and embedders alone, as [`Server::metrics_text`] has them.
    pub fn custom_metrics_text(&self) -> String {
        metrics::render_custom(&self.options)
    }

    /// Numbers of one ready version, of all ready versions of a model, or of all models.
    ///
    /// # Errors
    /// The lookup's, if a name was given.
    pub fn statistics(
        &self,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Error> {
        let snapshot = self.registry.snapshot();
        let models = match (name, version) {
            (None, _) => snapshot.ready_models(),
            (Some(name), Some(_)) => vec![snapshot.find(name, version)?],
            (Some(name), None) => {
                snapshot.find(name, None)?;
                snapshot
                    .ready_models()
                    .into_iter()
                    .filter(|model| &*model.name == name)
                    .collect()
            }
        };
        Ok(models
            .into_iter()
            .map(|model| model.model_statistics())
            .collect())
    }

    /// The response cache, if there is one.
    pub(crate) fn caching(&self) -> Option<&Arc<CacheService>> {
        self.lifecycle.caching()
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }
}

/// Refuses options that exclude each other.
fn check(options: &EngineOptions) -> Result<(), Error> {
    if options.model_repositories.is_empty() {
        return Err(Error::invalid("--model-repository must be specified"));
    }
    if options.executions_max.is_some() && options.limits_rate {
        return Err(Error::invalid(
            "executions are shared among models, or limited by resources: not both",
        ));
    }
    OnDemand::check(options)
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("id", &self.options.server_id)
            .field("phase", &self.state.phase())
            .finish()
    }
}

/// Finalises the backends and the cache on a thread of its own, because one may take for ever.
fn finalize_within(
    host: &Arc<dyn PluginHost>,
    caching: Option<&Arc<CacheService>>,
    budget: Duration,
) -> Result<(), Error> {
    let (done_sender, done) = mpsc::channel();
    let host = Arc::clone(host);
    let caching = caching.map(Arc::clone);
    let started = thread::Builder::new()
        .name("finalize".to_owned())
        .spawn(move || {
            // Before the cache is finalised: they may be inside it.
            if let Some(caching) = caching {
                caching.stop();
            }
            host.finalize_all();
            // The receiver is gone if the time was up.
            let _ = done_sender.send(());
        });
    match started {
        Ok(_)
            if done.recv_timeout(budget.max(FINALIZE_BUDGET_MIN))
                == Err(mpsc::RecvTimeoutError::Timeout) =>
        {
            Err(Error::internal(
                "Exit timeout expired. Exiting immediately.",
            ))
        }
        Ok(_) => Ok(()),
        Err(cause) => Err(Error::internal(format!(
            "cannot start a thread to finalize the backends: {cause}"
        ))),
    }
}

/// Backends get this long to finalise even if models used the whole budget up: they may have state
/// to write.
const FINALIZE_BUDGET_MIN: Duration = Duration::from_millis(500);
