//! A model version inside its backend: what `TRITONBACKEND_Model*` points to.
//!
//! Lives from ModelInitialize (whose failure is followed by ModelFinalize, as upstream has it)
//! until its last instance is gone.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use conch_abi as abi;
use conch_engine::model::stats::{MemoryOwner, MemoryUsage};
use conch_engine::{Error, LoadContext, ModelVersion};
use conch_log as log;
use conch_memory::Budget;

use super::backend::LoadedBackend;
use super::facts::ModelFacts;
use super::server::ServerHandle;
use super::strategy::CustomBatcher;
use crate::boundary::{HandleTag, as_handle, c_string, handles};
use crate::guard;

handles! {
    TRITONBACKEND_Model => LoadedModel, "model", tagged;
}

/// One initialised model version.
#[repr(C)]
pub(crate) struct LoadedModel {
    tag: HandleTag<abi::TRITONBACKEND_Model>,
    context: LoadContext,
    c_name: CString,
    c_path: CString,
    backend: Arc<LoadedBackend>,
    server: Arc<ServerHandle>,
    state: AtomicPtr<c_void>,
    config: Mutex<Arc<conch_config::ResolvedConfig>>,
    /// During ModelInitialize, the only time at which the backend may change the configuration.
    is_initializing: AtomicBool,
    bound: OnceLock<FinalConfig>,
    /// How requests are batched, if the model has a library for that.
    strategy: OnceLock<CustomBatcher>,
    /// Reported before the model was bound.
    early_usage: Mutex<Vec<(MemoryOwner, MemoryUsage)>>,
}

/// What is known once the configuration is final.
struct FinalConfig {
    version: Weak<ModelVersion>,
    facts: Arc<ModelFacts>,
}

impl LoadedModel {
    /// Initialises a model version. Blocks as long as the backend does.
    ///
    /// # Errors
    /// What the backend returned.
    pub(crate) fn load(
        backend: Arc<LoadedBackend>,
        server: Arc<ServerHandle>,
        context: LoadContext,
    ) -> Result<Arc<LoadedModel>, Error> {
        let model = Arc::new(LoadedModel {
            tag: HandleTag::default(),
            c_name: c_string(&context.name),
            c_path: c_string(&context.path.to_string_lossy()),
            state: AtomicPtr::new(ptr::null_mut()),
            config: Mutex::new(Arc::clone(&context.config)),
            is_initializing: AtomicBool::new(true),
            bound: OnceLock::new(),
            strategy: OnceLock::new(),
            early_usage: Mutex::default(),
            context,
            backend,
            server,
        });
        if let Some(initialize) = model.backend.entry_points().model_initialize {
            // SAFETY: the entry point of this model's backend, with the model's handle.
            unsafe { guard::call1(initialize, as_handle::<abi::TRITONBACKEND_Model>(&model)) }?;
        }
        model.is_initializing.store(false, Ordering::Release);
        let directories = [
            model.context.path.join(model.context.version.to_string()),
            model.context.path.clone(),
            model.backend.own_directory().to_owned(),
        ];
        // SAFETY: the model is initialised, and finalises the batcher before itself.
        let strategy = unsafe {
            CustomBatcher::load(
                as_handle(&*model),
                &model.c_name,
                &model.current_config(),
                &directories,
            )
        }?;
        if let Some(strategy) = strategy {
            model.strategy.get_or_init(|| strategy);
        }
        Ok(model)
    }

    pub(crate) fn c_name(&self) -> &CString {
        &self.c_name
    }

    pub(crate) fn c_path(&self) -> &CString {
        &self.c_path
    }

    pub(crate) fn version(&self) -> i64 {
        self.context.version
    }

    pub(crate) fn server(&self) -> &Arc<ServerHandle> {
        &self.server
    }

    pub(crate) fn backend(&self) -> &Arc<LoadedBackend> {
        &self.backend
    }

    pub(crate) fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }

    pub(super) fn strategy(&self) -> Option<&CustomBatcher> {
        self.strategy.get()
    }

    pub(crate) fn may_complete(&self) -> bool {
        self.context.may_complete
    }

    pub(crate) fn current_config(&self) -> Arc<conch_config::ResolvedConfig> {
        Arc::clone(&lock(&self.config))
    }

    /// Takes over a configuration that the backend proposes.
    ///
    /// # Errors
    /// INVALID_ARG outside ModelInitialize or if the result breaks a rule, INTERNAL if it would
    /// change the scheduling choice.
    pub(crate) fn propose_config(&self, json: &str) -> Result<(), Error> {
        if !self.is_initializing.load(Ordering::Acquire) {
            return Err(Error::invalid(
                "TRITONBACKEND_ModelSetConfig may be called only during \
                 TRITONBACKEND_ModelInitialize",
            ));
        }
        let proposal = conch_config::from_json(json)?;
        let mut config = lock(&self.config);
        let merged = conch_config::merge_proposal(&config.message, proposal)?;
        *config = Arc::new(conch_config::ResolvedConfig::from_partial(merged)?);
        Ok(())
    }

    /// Counts memory that the backend says it uses for the model (owner 0) or an instance.
    pub(crate) fn report_memory(&self, owner: MemoryOwner, usage: MemoryUsage) {
        // Under the lock of the early reports, so that none falls between it and `bind`.
        let mut early = lock(&self.early_usage);
        match self.bound.get() {
            None => early.push((owner, usage)),
            Some(bound) => {
                if let Some(version) = bound.version.upgrade() {
                    version.statistics.report_memory(owner, usage);
                }
            }
        }
    }

    /// Binds the model to the version that it serves.
    pub(super) fn bind(&self, version: &Arc<ModelVersion>) {
        let facts = ModelFacts::new(
            &version.config,
            self.backend.name().to_owned(),
            Arc::clone(&self.context.pool),
            Arc::clone(&self.context.budget),
        );
        let mut early = lock(&self.early_usage);
        self.bound.get_or_init(|| FinalConfig {
            version: Arc::downgrade(version),
            facts: Arc::new(facts),
        });
        for (owner, usage) in early.drain(..) {
            version.statistics.report_memory(owner, usage);
        }
    }

    /// Takes over a configuration that changed without a reload.
    pub(super) fn reconfigure(&self, config: &Arc<conch_config::ResolvedConfig>) {
        *lock(&self.config) = Arc::clone(config);
    }

    /// The registry's entry; none if it is gone, or not there yet.
    pub(crate) fn registered(&self) -> Option<Arc<ModelVersion>> {
        self.bound.get()?.version.upgrade()
    }

    /// The server's memory limit.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.context.budget
    }

    pub(crate) fn facts(&self) -> Result<&Arc<ModelFacts>, Error> {
        let bound = self
            .bound
            .get()
            .ok_or_else(|| Error::internal("the model is not bound to its version yet"))?;
        Ok(&bound.facts)
    }
}

impl Drop for LoadedModel {
    fn drop(&mut self) {
        // Before the model of which it knows.
        drop(self.strategy.take());
        let Some(finalize) = self.backend.entry_points().model_finalize else {
            return;
        };
        // SAFETY: the entry point of this model's backend, with the model's handle; instances hold
        // the model, so none is left.
        let result = unsafe { guard::call1(finalize, as_handle::<abi::TRITONBACKEND_Model>(self)) };
        if let Err(error) = result {
            log::error!(
                "failed finalizing model '{}' version {}: {error}",
                self.context.name,
                self.context.version
            );
        }
    }
}

/// Control plane only, except for reports of memory use, which are rare.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
