//! Models that come when they are asked for, within a budget of memory: those that were used least
//! lately go for them.
//!
//! Opt-in, in explicit mode. A request for a model that lies in a repository and is not loaded
//! waits (its shard does not) while a control thread makes room and loads the model. Each request
//! of such a server has a *permit* before it is looked at: a place among its model's live requests,
//! so that the model stays from there to the answer. Only a model without live requests goes, by
//! one compare-and-swap: nobody in flight is dropped.
//!
//! What a model takes is what its backend reports, else the size of its files. What leaves counts
//! until it is gone.

mod call;
mod work;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use conch_engine::model::version::Rejected;
use conch_engine::{Code, Error, InFlightPermit, ModelLoads, Registry, truncated};

use crate::loader::Lifecycle;
use crate::options::{ControlMode, EngineOptions, OnDemandSettings};
use crate::serving_state::ServingState;

pub use call::LoadFuture;

/// The models that are loaded when they are asked for.
pub struct OnDemand {
    loader: Arc<Lifecycle>,
    registry: Arc<Registry>,
    serving: Arc<ServingState>,
    own: Weak<OnDemand>,
    settings: OnDemandSettings,
    thread_count_max: usize,
    state: Mutex<OnDemandState>,
    /// Requests that wait; raised under the lock of `state`.
    waiting_count: Arc<AtomicUsize>,
    /// A model has come, or has gone.
    changed: Condvar,
}

#[derive(Default)]
struct OnDemandState {
    /// Who waits for each model that is to be loaded, or is being loaded.
    awaited: HashMap<Arc<str>, Vec<Arc<call::LoadShared>>>,
    /// Those of them that no thread has taken on.
    line: VecDeque<Arc<str>>,
    thread_count: usize,
    /// For what is being loaded.
    reserved: BTreeMap<Arc<str>, u64>,
    /// What each model took when it was loaded last.
    sizes: HashMap<Arc<str>, u64>,
    /// What could not be loaded a moment ago.
    failures: HashMap<Arc<str>, (Error, Instant)>,
}

/// What becomes of a request for a model.
pub enum LoadOutcome {
    /// It is there; the reservation keeps it. None if the model has no place for the request, or
    /// not the version: admission says so.
    Here(Option<InFlightPermit>),
    /// It is on its way.
    Coming(LoadFuture),
}

/// A model that could not be loaded is not tried again before: each try may read gigabytes.
const FAILURE_KEPT: Duration = Duration::from_secs(5);
/// Failures that are kept.
const FAILURES_MAX: usize = 1024;

impl OnDemand {
    /// # Errors
    /// INVALID_ARG where models come otherwise, or their names mean several.
    pub(crate) fn check(options: &EngineOptions) -> Result<(), Error> {
        if options.demand.is_none() {
            return Ok(());
        }
        if options.model_control_mode != ControlMode::Explicit {
            return Err(Error::invalid(
                "a budget for the memory of models needs --model-control-mode=explicit",
            ));
        }
        if options.namespacing {
            return Err(Error::invalid(
                "a budget for the memory of models excludes --model-namespacing",
            ));
        }
        Ok(())
    }

    /// Loads through `loader`, which keeps to `options`; none unless these say so.
    pub(crate) fn new(
        options: &EngineOptions,
        loader: &Arc<Lifecycle>,
        registry: &Arc<Registry>,
        serving: &Arc<ServingState>,
    ) -> Option<Arc<OnDemand>> {
        let settings = options.demand.clone()?;
        Some(Arc::new_cyclic(|own| OnDemand {
            own: Weak::clone(own),
            loader: Arc::clone(loader),
            registry: Arc::clone(registry),
            serving: Arc::clone(serving),
            settings,
            thread_count_max: options.model_load_thread_count.max(1),
            state: Mutex::default(),
            waiting_count: Arc::default(),
            changed: Condvar::new(),
        }))
    }

    pub fn settings(&self) -> &OnDemandSettings {
        &self.settings
    }

    /// Sees to it that a model is there, or is being loaded. Does not block for longer than
    /// moments.
    ///
    /// # Errors
    /// EXHAUSTED if too many requests wait; why the model could not be loaded a moment ago;
    /// UNAVAILABLE as the server stops.
    pub fn ensure(
        self: &Arc<Self>,
        name: &str,
        version: Option<i64>,
    ) -> Result<LoadOutcome, Error> {
        match find(&self.registry, name, version) {
            RegistryLookup::Permitted(permit) => return Ok(LoadOutcome::Here(Some(permit))),
            RegistryLookup::Refusing => return Ok(LoadOutcome::Here(None)),
            RegistryLookup::Absent => {}
        }
        self.serving.check()?;
        self.begin_load(name, version).map(LoadOutcome::Coming)
    }

    /// Has the model loaded, which is not there. Does not block for longer than moments.
    ///
    /// # Errors
    /// EXHAUSTED if too many requests wait; why the model could not be loaded a moment ago.
    fn begin_load(self: &Arc<Self>, name: &str, version: Option<i64>) -> Result<LoadFuture, Error> {
        let mut state = self.lock();
        if let Some((error, since)) = state.failures.get(name) {
            if since.elapsed() < FAILURE_KEPT {
                return Err(error.clone());
            }
            state.failures.remove(name);
        }
        if self.waiting_count.load(Ordering::Relaxed) >= self.settings.waiting_max {
            return Err(Error::exhausted(format!(
                "as many requests wait for models as may ({}), try again later",
                self.settings.waiting_max
            )));
        }
        let (call, shared) = LoadFuture::new(&self.waiting_count, version);
        match state.awaited.get_mut(name) {
            Some(calls) => calls.push(shared),
            None => {
                let name: Arc<str> = Arc::from(name);
                state.awaited.insert(Arc::clone(&name), vec![shared]);
                state.line.push_back(name);
                if state.thread_count < self.thread_count_max {
                    state.thread_count += 1;
                    drop(state);
                    self.start_thread();
                }
            }
        }
        Ok(call)
    }

    /// What a caller is told that cannot wait.
    pub fn later(name: &str) -> Error {
        Error::unavailable(format!(
            "Request for unknown model: '{name}' is not loaded now, its load has begun, \
             try again later",
            name = truncated(&name)
        ))
    }

    /// What a request is told whose patience is over.
    pub fn too_late(&self, name: &str) -> Error {
        Error::unavailable(format!(
            "model '{name}' was not loaded within {} s",
            self.settings.patience.as_secs(),
            name = truncated(&name)
        ))
    }

    fn lock(&self) -> MutexGuard<'_, OnDemandState> {
        // Each change is one insertion or removal, so a panic elsewhere leaves it sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the registry holds of a model.
enum RegistryLookup {
    Absent,
    /// It is loaded, and takes no request (of that version).
    Refusing,
    Permitted(InFlightPermit),
}

fn find(registry: &Registry, name: &str, version: Option<i64>) -> RegistryLookup {
    let snapshot = registry.snapshot();
    match snapshot.find(name, version) {
        Ok(model) => match InFlightPermit::new(model) {
            Ok(permit) => RegistryLookup::Permitted(permit),
            Err(Rejected::Full | Rejected::OverModelLimit) => RegistryLookup::Refusing,
            // It has just gone.
            Err(Rejected::Retired) => RegistryLookup::Absent,
        },
        // Another version is there: a load would not bring this one.
        Err(_) => match snapshot.ready_versions(name) {
            Ok(versions) if !versions.is_empty() => RegistryLookup::Refusing,
            _ => RegistryLookup::Absent,
        },
    }
}

impl ModelLoads for OnDemand {
    fn permit(&self, name: &str, version: Option<i64>) -> Result<Option<InFlightPermit>, Error> {
        let own = self.own.upgrade().ok_or_else(|| OnDemand::later(name))?;
        match own.ensure(name, version)? {
            LoadOutcome::Here(permit) => Ok(permit),
            LoadOutcome::Coming(_) => Err(OnDemand::later(name)),
        }
    }
}

impl OnDemandState {
    fn note_failure(&mut self, name: &Arc<str>, error: &Error) {
        if self.failures.len() >= FAILURES_MAX {
            self.failures
                .retain(|_, (_, since)| since.elapsed() < FAILURE_KEPT);
        }
        // What does not lie in a repository is found out quickly, and by whatever name.
        if self.failures.len() < FAILURES_MAX && error.code != Code::NotFound {
            self.failures
                .insert(Arc::clone(name), (error.clone(), Instant::now()));
        }
    }
}

impl fmt::Debug for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Demand")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
