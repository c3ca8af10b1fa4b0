//! The traits of backends, models and instances. `ffi::host` implements them over Triton's C ABI,
//! tests by fakes.
//!
//! Threads: `BackendHost` and `Backend` calls come from loading threads, serial per backend;
//! `Model` calls are serial per model and may be concurrent across models; `Backend::load_model`
//! and `Model::create_instance` may block for long. `Instance::execute` runs on the instance's own
//! core thread, one call at a time; `Instance::begin` may run on another. `Instance::enqueue` and
//! `Instance::poll` run on the core of a device, beside other models, and never wait. Everything is
//! dropped (finalised) in reverse order of creation: instances, model, backend.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conch_config::{InstanceKind, PreferredGroup, RateLimit, ResolvedConfig as ModelConfig};
use conch_memory::{Budget, Pool};

use crate::cache::ResponseCache;
use crate::model::version::ModelVersion;
use crate::request::inline::Progress;
use crate::{Error, OwnedRequest, PendingResponses, ReadinessCheck};

/// Finds and opens backends.
pub trait BackendHost: Send + Sync {
    /// Opens (or returns the already open) backend of a model.
    ///
    /// # Errors
    /// In upstream's words: no library found, cannot be loaded, entry point missing, or what its
    /// Initialize returned.
    fn open(&self, spec: &BackendSpec) -> Result<Arc<dyn Backend>, Error>;

    /// Looks for what [`BackendHost::open`] would open, and opens nothing. Reads directories.
    ///
    /// # Errors
    /// As [`BackendHost::open`], if no library is found.
    fn find(&self, _spec: &BackendSpec) -> Result<(), Error> {
        Ok(())
    }

    /// Name, library path and configuration (JSON) of every open backend, for the start-up table.
    fn list(&self) -> Vec<(String, String, String)>;

    /// Opens the response cache that the server is to use, if it is to use one. Called once, before
    /// any model is loaded. What it copies for requests counts against `budget`.
    ///
    /// # Errors
    /// In upstream's words: more than one cache, no library found, cannot be loaded, or what its
    /// CacheInitialize returned.
    fn open_cache(&self, _budget: &Arc<Budget>) -> Result<Option<Arc<dyn ResponseCache>>, Error> {
        Ok(None)
    }

    /// Finalises all backends in reverse order of their initialisation, and the cache. No model is
    /// loaded any more.
    fn finalize_all(&self);
}

/// Which backend library a model wants, and where to look for it.
#[derive(Clone, Debug)]
pub struct BackendSpec {
    /// For messages.
    pub model_name: String,
    pub backend: String,
    /// `runtime:` of the configuration; empty means `libtriton_<backend>.so`.
    pub runtime: String,
    pub model_path: PathBuf,
    pub version: i64,
}

/// How many threads may be inside a backend's Execute. Instances that keep batches in flight
/// ([`Instance::depth_max`]) on a GPU are driven by its core, whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionPolicy {
    /// One thread per instance.
    Blocking,
    /// One thread per device serves all its instances.
    DeviceBlocking,
}

/// One loaded backend library.
pub trait Backend: Send + Sync {
    fn name(&self) -> &str;
    fn execution_policy(&self) -> ExecutionPolicy;
    fn preferred_groups(&self) -> &[PreferredGroup];
    /// Whether instances of one model may be initialised concurrently.
    fn allows_parallel_instances(&self) -> bool;

    /// Adds to a model's configuration what follows from the kind of this backend, before the model
    /// is initialised. Reads directories.
    fn complete_config(&self, _config: &mut conch_config::ModelConfig) {}

    /// Initialises a model version; the backend may complete its configuration meanwhile.
    fn load_model(self: Arc<Self>, context: LoadContext) -> Result<Arc<dyn Model>, Error>;
}

/// What a backend learns of the model it is to load.
pub struct LoadContext {
    pub name: Arc<str>,
    pub version: i64,
    /// The model's directory (not the version's).
    pub path: PathBuf,
    /// Normalised as far as is known; complete unless `may_complete`.
    pub config: Arc<conch_config::ResolvedConfig>,
    /// Whether the backend may call ModelSetConfig. The callback checks and applies a proposed
    /// configuration.
    pub may_complete: bool,
    /// Where output buffers come from, and what bounds them: the server's own.
    pub pool: Arc<Pool>,
    pub budget: Arc<Budget>,
}

/// A model version inside its backend.
pub trait Model: Send + Sync {
    /// The configuration after the backend completed it.
    fn config(&self) -> Arc<ModelConfig>;

    /// Tells the model which registry entry it serves, once, after its configuration is final and
    /// before the first instance.
    fn bind(&self, version: &Arc<ModelVersion>);

    /// The configuration changed while the model serves: other instances, another version policy.
    fn reconfigure(&self, _config: &Arc<ModelConfig>) {}

    /// The model's own strategy of batching, if it has one. Called once, after [`Model::bind`] and
    /// before the first instance.
    fn batch_strategy(&self) -> Option<Box<dyn BatchStrategy>> {
        None
    }

    /// Initialises an instance. Called on the thread that will execute it.
    fn create_instance(self: Arc<Self>, spec: InstanceSpec) -> Result<Box<dyn Instance>, Error>;
}

/// A model's own say in which requests are executed together, beyond sizes and shapes. Called by
/// whichever core of the model forms a batch, under its scheduler's lock: by one thread at a time,
/// while no other forms one. So it must be quick, above all.
pub trait BatchStrategy: Send {
    /// A batch begins to form. A look over the queue that ends in waiting for more requests ends
    /// its batch, too.
    fn begin(&mut self);

    /// Whether `request`, the next one in order, joins the batch; the first one that does not ends
    /// it. The request comes back as it was.
    fn includes(&mut self, request: OwnedRequest) -> (OwnedRequest, bool);

    /// The batch is formed, or given up.
    fn end(&mut self);
}

#[derive(Clone, Debug, PartialEq)]
pub struct InstanceSpec {
    pub name: String,
    pub kind: InstanceKind,
    pub device_id: i32,
    pub host_policy: String,
    pub is_passive: bool,
    pub profiles: Vec<String>,
    pub secondary_devices: Vec<(String, i64)>,
    pub rate_limit: RateLimit,
}

/// Requests executed by one call.
pub type Batch = Vec<OwnedRequest>;

/// One executable copy of a model. `Send`: it is created on its core's thread, used there, or by
/// another thread in its place, and dropped there.
pub trait Instance: Send {
    /// Executes the batch, leaving it empty. Every request is answered exactly once through its
    /// completion: those released during the call by way of `pending` (flushed by the caller after
    /// this returns), others later from foreign threads. Blocks as long as the backend does.
    fn execute(&mut self, batch: &mut Batch, pending: &mut PendingResponses);

    /// Whether [`Instance::begin`] may be called, on whatever thread, and does nothing that takes
    /// long but wait.
    fn can_begin(&self) -> bool {
        false
    }

    /// As [`Instance::execute`], but waits for `limit` at most. A batch that is left open keeps the
    /// instance: nothing but [`Instance::end`] may be called next.
    fn begin(
        &mut self,
        batch: &mut Batch,
        pending: &mut PendingResponses,
        limit: Duration,
    ) -> Progress {
        let _ = limit;
        self.execute(batch, pending);
        Progress::Done
    }

    /// Goes on with the batch that was left open, to its end, as [`Instance::execute`] does.
    fn end(&mut self, pending: &mut PendingResponses) {
        let _ = pending;
    }

    /// How many batches may be in flight at once, if the instance need not block: then
    /// [`Instance::enqueue`] and [`Instance::poll`] may be called in place of
    /// [`Instance::execute`]. Does not change.
    fn depth_max(&self) -> Option<NonZeroUsize> {
        None
    }

    /// Enqueues the batch, leaving it empty, and does not wait for it. Returns whether it is in
    /// flight now: a batch that could not be enqueued is answered.
    fn enqueue(&mut self, batch: &mut Batch, pending: &mut PendingResponses) -> bool {
        self.execute(batch, pending);
        false
    }

    /// Answers the batches that are done, in order, and returns how many are in flight. Does not
    /// wait.
    ///
    /// # Errors
    /// What the backend returned; nothing is known of its batches then.
    fn poll(&mut self, pending: &mut PendingResponses) -> Result<usize, Error> {
        let _ = pending;
        Ok(0)
    }

    /// Answers all requests in flight with `error`, [abandons](crate::Request::abandon) them and
    /// keeps their memory. The device may go on with them, so the caller neither calls the instance
    /// again nor drops it.
    fn abandon(&mut self, error: &Error, pending: &mut PendingResponses) {
        let _ = (error, pending);
    }

    /// The backend's readiness hook, where it has one. Asked for once, after the instance was
    /// created.
    fn readiness_check(&self) -> Option<Arc<dyn ReadinessCheck>> {
        None
    }
}
