//! The traits that a backend implements, and the facts that it gets at its start.
//!
//! The server makes one [`Backend`] per library, one [`Model`] per loaded model version, and one
//! [`Instance`] per copy of it, and drops them in reverse order. Calls for one backend come one at
//! a time; models may start at the same time on different threads; instances start one after the
//! other unless [`Attributes::allow_parallel_instances`] was called; an instance executes one batch
//! at a time, different instances at the same time.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::time::Duration;

use conch_abi as abi;

use crate::config::{BackendConfig, ModelConfig};
use crate::device::MemoryManager;
use crate::memory_charge::MemoryCharge;
use crate::server::{Server, ServerScope};
use crate::{Batch, Error};

/// The state that all models of a backend share.
pub trait Backend: Sized + Send + Sync + 'static {
    type Model: Model<Backend = Self>;

    /// # Errors
    /// Any error: the backend, and with it the model that wanted it, is not loaded.
    fn initialize(context: &BackendContext) -> Result<Self, Error>;

    /// Tells the server what it may want to know before it makes instances.
    ///
    /// # Errors
    /// Whatever the server reports.
    fn attributes(&self, _attributes: &mut Attributes<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// One loaded version of a model.
pub trait Model: Sized + Send + Sync + 'static {
    type Backend: Backend<Model = Self>;
    type Instance: Instance<Model = Self>;

    /// # Errors
    /// Any error: the model is not loaded, and the message is its reason.
    fn initialize(backend: &Self::Backend, context: &mut ModelContext) -> Result<Self, Error>;
}

/// One executable copy of a model. It is made, used and dropped on threads of the server's choice,
/// one call at a time.
pub trait Instance: Sized + Send + 'static {
    type Model: Model<Instance = Self>;

    /// # Errors
    /// Any error: the model is not loaded, and the message is its reason.
    fn initialize(model: &Self::Model, context: &InstanceContext) -> Result<Self, Error>;

    /// Executes a batch; may block. See [`Batch`] for who answers what. An instance that takes
    /// over its batches needs none.
    ///
    /// # Errors
    /// Any error that concerns all requests of the batch.
    fn execute(&mut self, _model: &Self::Model, _batch: &Batch<'_>) -> Result<(), Error> {
        Err(Error::unsupported("the instance takes over its batches"))
    }
}

/// How far an execution came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Done,
    /// The instance needs more time than it was given.
    Open,
}

/// An instance that can execute in two parts; [`export_backend!`](crate::export_backend) with
/// `open` lets servers ask for that. A server may then execute on a thread that must not block for
/// long, instead of waking the instance's own.
pub trait OpenInstance: Instance {
    /// As [`Instance::execute`], but blocks for `limit` at most, and computes only shortly. What
    /// takes longer is left open.
    ///
    /// # Errors
    /// Any error that concerns all requests of the batch.
    fn begin(
        &mut self,
        model: &Self::Model,
        batch: &Batch<'_>,
        limit: Duration,
    ) -> Result<Progress, Error>;

    /// Goes on with the batch that was left open, as long as it takes. No other call comes in
    /// between. `batch` has the same requests in the same order.
    ///
    /// # Errors
    /// Any error that concerns all requests of the batch.
    fn end(&mut self, model: &Self::Model, batch: &Batch<'_>) -> Result<(), Error>;
}

/// A model that knows whether it can still serve; [`export_backend!`](crate::export_backend) with
/// `ready` lets servers ask.
pub trait Ready: Model {
    /// Called for each instance on a thread of the server's, at any time, also while instances
    /// execute. The server calls the model not ready if this takes longer than some seconds.
    ///
    /// # Errors
    /// Any error: the instance is not ready, and the message is the reason.
    fn check_ready(&self) -> Result<(), Error>;
}

/// What a backend learns when its library is opened.
pub struct BackendContext {
    pub(crate) raw: NonNull<abi::TRITONBACKEND_Backend>,
    name: String,
    directory: PathBuf,
    config: BackendConfig,
}

impl BackendContext {
    /// # Safety
    /// `raw` is live during the wrapper's life.
    pub(crate) unsafe fn new(raw: *mut abi::TRITONBACKEND_Backend) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null backend"))?;
        let mut name: *const c_char = ptr::null();
        let mut location: *const c_char = ptr::null();
        let mut artifact = 0;
        let mut message = ptr::null_mut();
        // SAFETY: the backend is live, the results writable; the texts live as long as the backend,
        // and the message is the server's.
        unsafe {
            Error::check(abi::TRITONBACKEND_BackendName(raw.as_ptr(), &raw mut name))?;
            Error::check(abi::TRITONBACKEND_BackendArtifacts(
                raw.as_ptr(),
                &raw mut artifact,
                &raw mut location,
            ))?;
            Error::check(abi::TRITONBACKEND_BackendConfig(
                raw.as_ptr(),
                &raw mut message,
            ))?;
            Ok(BackendContext {
                raw,
                name: owned(name),
                directory: PathBuf::from(owned(location)),
                config: BackendConfig::parse(message_json(message)?)?,
            })
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder that holds the backend's library.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn config(&self) -> &BackendConfig {
        &self.config
    }

    /// Has one thread per device execute all its instances, for backends whose executions only
    /// start device work.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn execute_per_device(&self) -> Result<(), Error> {
        // SAFETY: the backend is live.
        unsafe {
            Error::check(abi::TRITONBACKEND_BackendSetExecutionPolicy(
                self.raw.as_ptr(),
                abi::TRITONBACKEND_EXECUTION_DEVICE_BLOCKING,
            ))
        }
    }
}

/// What a backend may tell the server about itself.
pub struct Attributes<'a> {
    raw: NonNull<abi::TRITONBACKEND_BackendAttribute>,
    call: PhantomData<&'a mut ()>,
}

impl<'a> Attributes<'a> {
    /// # Safety
    /// `raw` is live and used by nobody else during `'a`.
    pub(crate) unsafe fn new(raw: *mut abi::TRITONBACKEND_BackendAttribute) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null backend attributes"))?;
        Ok(Attributes {
            raw,
            call: PhantomData,
        })
    }

    /// Allows the server to start the instances of a model at the same time.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn allow_parallel_instances(&mut self) -> Result<(), Error> {
        // SAFETY: live, and borrowed uniquely.
        unsafe {
            Error::check(
                abi::TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
                    self.raw.as_ptr(),
                    true,
                ),
            )
        }
    }

    /// Names an instance group for models whose configuration has none; groups are tried in the
    /// order of the calls.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn prefer(&mut self, kind: Kind, count: u64, device_ids: &[u64]) -> Result<(), Error> {
        // SAFETY: live, and borrowed uniquely; the ids are copied.
        unsafe {
            Error::check(
                abi::TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
                    self.raw.as_ptr(),
                    kind.to_raw(),
                    count,
                    device_ids.as_ptr(),
                    device_ids.len() as u64,
                ),
            )
        }
    }
}

/// What a backend learns of a model that is being loaded.
pub struct ModelContext {
    pub(crate) raw: NonNull<abi::TRITONBACKEND_Model>,
    name: String,
    version: u64,
    directory: PathBuf,
    config: ModelConfig,
    server: ServerScope,
}

impl ModelContext {
    /// # Safety
    /// `raw` is live during the wrapper's life, and that of the scope taken out of it.
    pub(crate) unsafe fn new(raw: *mut abi::TRITONBACKEND_Model) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("null model"))?;
        let mut name: *const c_char = ptr::null();
        let mut location: *const c_char = ptr::null();
        let mut artifact = 0;
        let mut version = 0;
        // SAFETY: the model is live, the results writable; the texts live as long as the model.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelName(raw.as_ptr(), &raw mut name))?;
            Error::check(abi::TRITONBACKEND_ModelVersion(
                raw.as_ptr(),
                &raw mut version,
            ))?;
            Error::check(abi::TRITONBACKEND_ModelRepository(
                raw.as_ptr(),
                &raw mut artifact,
                &raw mut location,
            ))?;
            if artifact != abi::TRITONBACKEND_ARTIFACT_FILESYSTEM {
                return Err(Error::unsupported(format!(
                    "unsupported artifact type for model '{}'",
                    owned(name)
                )));
            }
            Ok(ModelContext {
                raw,
                name: owned(name),
                version,
                directory: PathBuf::from(owned(location)),
                config: model_config(raw)?,
                server: ServerScope::of(raw)?,
            })
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// The folder of the model.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The folder of the version.
    pub fn version_directory(&self) -> PathBuf {
        self.directory.join(self.version.to_string())
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The server that loads the model, to call other models of it: valid until the model ends.
    pub fn server(&self) -> Server {
        self.server.server()
    }

    /// Memory that the model's backend holds for it, within the server's limit; none is held yet.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn memory_charge(&self) -> Result<MemoryCharge, Error> {
        // SAFETY: the model is live as long as its context.
        unsafe { MemoryCharge::new(self.raw.as_ptr()) }
    }

    /// What ends the use of the server on drop.
    pub(crate) fn into_server_scope(self) -> ServerScope {
        self.server
    }

    /// Whether the backend is asked to fill in what the configuration leaves out.
    ///
    /// # Errors
    /// Whatever the server reports.
    pub fn may_complete(&self) -> Result<bool, Error> {
        let mut may_complete = false;
        // SAFETY: the model is live, the result writable.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelAutoCompleteConfig(
                self.raw.as_ptr(),
                &raw mut may_complete,
            ))?;
        }
        Ok(may_complete)
    }

    /// Proposes a completed configuration, and reads back what the server made of it. The server
    /// takes the batch size, inputs, outputs, decoupledness, and the choice of scheduler if none
    /// was made.
    ///
    /// # Errors
    /// Whatever the server reports, such as a proposal that contradicts the configuration.
    pub fn complete(&mut self, config: &ModelConfig) -> Result<(), Error> {
        let text = config.json().to_string();
        let mut message = ptr::null_mut();
        // SAFETY: the text is copied; the message is ours and deleted below; the model is live.
        unsafe {
            Error::check(abi::TRITONSERVER_MessageNewFromSerializedJson(
                &raw mut message,
                text.as_ptr().cast(),
                text.len(),
            ))?;
            let accepted = Error::check(abi::TRITONBACKEND_ModelSetConfig(
                self.raw.as_ptr(),
                1,
                message,
            ));
            let deleted = Error::check(abi::TRITONSERVER_MessageDelete(message));
            accepted.and(deleted)?;
            self.config = model_config(self.raw)?;
        }
        Ok(())
    }
}

/// What kind of device an instance runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Auto,
    Cpu,
    Gpu,
    Model,
}

impl Kind {
    /// As in upstream's log.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Auto => "AUTO",
            Kind::Cpu => "CPU",
            Kind::Gpu => "GPU",
            Kind::Model => "MODEL",
        }
    }

    fn to_raw(self) -> abi::TRITONSERVER_InstanceGroupKind {
        match self {
            Kind::Auto => abi::TRITONSERVER_INSTANCEGROUPKIND_AUTO,
            Kind::Cpu => abi::TRITONSERVER_INSTANCEGROUPKIND_CPU,
            Kind::Gpu => abi::TRITONSERVER_INSTANCEGROUPKIND_GPU,
            Kind::Model => abi::TRITONSERVER_INSTANCEGROUPKIND_MODEL,
        }
    }

    fn from_raw(kind: abi::TRITONSERVER_InstanceGroupKind) -> Kind {
        match kind {
            abi::TRITONSERVER_INSTANCEGROUPKIND_CPU => Kind::Cpu,
            abi::TRITONSERVER_INSTANCEGROUPKIND_GPU => Kind::Gpu,
            abi::TRITONSERVER_INSTANCEGROUPKIND_MODEL => Kind::Model,
            _ => Kind::Auto,
        }
    }
}

/// What an instance learns of itself.
#[derive(Clone, Debug)]
pub struct InstanceContext {
    pub name: String,
    pub kind: Kind,
    pub device_id: i32,
    /// A passive instance never executes.
    pub is_passive: bool,
    /// Names of optimization profiles, which mean what the backend has them mean.
    pub profiles: Vec<String>,
    /// Further devices, by kind (`KIND_NVDLA`) and number.
    pub secondary_devices: Vec<(String, i64)>,
    /// Name and settings of the host policy under which it runs: `{"<name>": {"<setting>":
    /// "<value>"}}`.
    pub host_policy: serde_json::Value,
    /// For instances on GPUs.
    pub(crate) memory_manager: Option<MemoryManager>,
}

impl InstanceContext {
    /// # Safety
    /// `raw` is live during the call.
    pub(crate) unsafe fn new(raw: *mut abi::TRITONBACKEND_ModelInstance) -> Result<Self, Error> {
        let mut name: *const c_char = ptr::null();
        let mut kind = 0;
        let mut device_id = 0;
        let mut is_passive = false;
        // SAFETY: the instance is live, the results writable, the name NUL-terminated.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceName(raw, &raw mut name))?;
            Error::check(abi::TRITONBACKEND_ModelInstanceKind(raw, &raw mut kind))?;
            Error::check(abi::TRITONBACKEND_ModelInstanceDeviceId(
                raw,
                &raw mut device_id,
            ))?;
            Error::check(abi::TRITONBACKEND_ModelInstanceIsPassive(
                raw,
                &raw mut is_passive,
            ))?;
            let kind = Kind::from_raw(kind);
            let memory_manager = match kind {
                Kind::Gpu => Some(MemoryManager::of(raw)?),
                _ => None,
            };
            Ok(InstanceContext {
                name: owned(name),
                kind,
                device_id,
                is_passive,
                profiles: profiles(raw)?,
                secondary_devices: secondary_devices(raw)?,
                host_policy: host_policy(raw)?,
                memory_manager,
            })
        }
    }
}

/// # Safety
/// `raw` is live during the call.
unsafe fn profiles(raw: *mut abi::TRITONBACKEND_ModelInstance) -> Result<Vec<String>, Error> {
    let mut count = 0;
    // SAFETY: the instance is live, the result writable.
    unsafe {
        Error::check(abi::TRITONBACKEND_ModelInstanceProfileCount(
            raw,
            &raw mut count,
        ))?;
    }
    let profile = |index| {
        let mut name: *const c_char = ptr::null();
        // SAFETY: as above; the name is NUL-terminated and lives as long as the instance.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceProfileName(
                raw,
                index,
                &raw mut name,
            ))?;
            Ok(owned(name))
        }
    };
    (0..count).map(profile).collect()
}

/// # Safety
/// `raw` is live during the call.
unsafe fn secondary_devices(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> Result<Vec<(String, i64)>, Error> {
    let mut count = 0;
    // SAFETY: the instance is live, the result writable.
    unsafe {
        Error::check(abi::TRITONBACKEND_ModelInstanceSecondaryDeviceCount(
            raw,
            &raw mut count,
        ))?;
    }
    let device = |index| {
        let mut kind: *const c_char = ptr::null();
        let mut id = 0;
        // SAFETY: as above; the kind is NUL-terminated and lives as long as the instance.
        unsafe {
            Error::check(abi::TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
                raw,
                index,
                &raw mut kind,
                &raw mut id,
            ))?;
            Ok((owned(kind), id))
        }
    };
    (0..count).map(device).collect()
}

/// # Safety
/// `raw` is live during the call.
unsafe fn host_policy(
    raw: *mut abi::TRITONBACKEND_ModelInstance,
) -> Result<serde_json::Value, Error> {
    let mut message = ptr::null_mut();
    // SAFETY: the instance is live, the result writable; the message is the server's and lives as
    // long as the instance.
    let text = unsafe {
        Error::check(abi::TRITONBACKEND_ModelInstanceHostPolicy(
            raw,
            &raw mut message,
        ))?;
        message_json(message)?
    };
    serde_json::from_slice(text)
        .map_err(|error| Error::internal(format!("host policy is no JSON: {error}")))
}

/// # Safety
/// `model` is live during the call.
unsafe fn model_config(model: NonNull<abi::TRITONBACKEND_Model>) -> Result<ModelConfig, Error> {
    let mut message = ptr::null_mut();
    // SAFETY: the model is live; the message is ours and deleted after its text was parsed.
    unsafe {
        Error::check(abi::TRITONBACKEND_ModelConfig(
            model.as_ptr(),
            1,
            &raw mut message,
        ))?;
        let config = message_json(message).and_then(ModelConfig::parse);
        Error::check(abi::TRITONSERVER_MessageDelete(message))?;
        config
    }
}

/// The text of a message, which lives as long as the message.
///
/// # Safety
/// `message` is live during `'m`.
unsafe fn message_json<'m>(message: *mut abi::TRITONSERVER_Message) -> Result<&'m [u8], Error> {
    let mut base: *const c_char = ptr::null();
    let mut byte_count = 0usize;
    // SAFETY: the message is live, the results writable; the text has the length given and lives as
    // long as the message.
    unsafe {
        Error::check(abi::TRITONSERVER_MessageSerializeToJson(
            message,
            &raw mut base,
            &raw mut byte_count,
        ))?;
        if base.is_null() || byte_count == 0 {
            return Ok(&[]);
        }
        Ok(std::slice::from_raw_parts(base.cast(), byte_count))
    }
}

/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
