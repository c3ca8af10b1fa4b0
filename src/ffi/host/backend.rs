//! A loaded backend: what `TRITONBACKEND_Backend*` points to, and its life.
//!
//! ```text
//! open ─► Initialize ─► GetBackendAttribute ─► (models) ─► Finalize ─► [close]
//!            │ error          │ error
//!            └────────────────┴──────────────► Finalize ─► close
//! ```
//!
//! Finalize follows a failed Initialize, too: backends free there what they made before they
//! failed, as upstream has it. Nothing is left then, and it may be tried again.

use std::ffi::{CString, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use conch_abi as abi;
use conch_config::{ModelConfig, ModelParameter, PreferredGroup};
use conch_engine::{Error, ExecutionPolicy};
use conch_log as log;
use libloading::os::unix::Library;

use super::library::{self, EntryPoints};
use super::library_lock::LibraryLock;
use super::search::{BackendLocation, PYTHON_RUNTIME};
use crate::boundary::{HandleTag, as_handle, c_string, handles};
use crate::guard;
use crate::objects::JsonMessage;

handles! {
    TRITONBACKEND_Backend => LoadedBackend, "backend", tagged;
    TRITONBACKEND_BackendAttribute => BackendAttributes, "backend attributes", tagged;
}

/// One backend library, initialised once for all of its models.
#[repr(C)]
pub(crate) struct LoadedBackend {
    tag: HandleTag<abi::TRITONBACKEND_Backend>,
    name: String,
    c_name: CString,
    found: BackendLocation,
    c_directory: CString,
    own_directory: PathBuf,
    configuration: JsonMessage,
    state: AtomicPtr<c_void>,
    policy: AtomicU32,
    attributes: OnceLock<BackendAttributes>,
    is_finalized: AtomicBool,
    /// How many servers keep it open until they end.
    server_count: AtomicUsize,
    entry_points: EntryPoints,
    /// Closed only if the backend is unloaded; otherwise it stays until the process ends, because
    /// threads may hold its thread-locals.
    library: ManuallyDrop<Library>,
    closes: AtomicBool,
    /// Serialises Initialize and Finalize of one library file. Empty until initialised: whoever
    /// opens holds the lock meanwhile.
    life: OnceLock<Arc<LibraryLock>>,
}

/// What GetBackendAttribute reports.
#[derive(Default)]
#[repr(C)]
pub(crate) struct BackendAttributes {
    tag: HandleTag<abi::TRITONBACKEND_BackendAttribute>,
    pub(crate) preferred_groups: Vec<PreferredGroup>,
    pub(crate) allows_parallel_instances: bool,
}

/// What a backend is opened with.
pub(crate) struct BackendSettings<'a> {
    pub(crate) name: &'a str,
    pub(crate) found: BackendLocation,
    /// Where the backend directory keeps it, be its library from there or not.
    pub(crate) own_directory: PathBuf,
    /// The JSON document of BackendConfig.
    pub(crate) configuration: String,
    /// Finalise and close when no model uses it any more.
    pub(crate) closes: bool,
    pub(super) life: Arc<LibraryLock>,
}

impl LoadedBackend {
    /// Loads and initialises the library. The caller holds `opening.life`. Blocks as long as the
    /// backend does.
    ///
    /// # Errors
    /// NOT_FOUND if the library is not usable, else what the backend returned. Nothing is left
    /// behind.
    pub(crate) fn open(opening: BackendSettings<'_>) -> Result<Arc<LoadedBackend>, Error> {
        let (library, entry_points) = library::open(&opening.found.library)?;
        let backend = Arc::new(LoadedBackend {
            tag: HandleTag::default(),
            name: opening.name.to_owned(),
            c_name: c_string(opening.name),
            c_directory: c_string(&opening.found.directory().to_string_lossy()),
            found: opening.found,
            own_directory: opening.own_directory,
            configuration: JsonMessage::new(opening.configuration),
            state: AtomicPtr::new(ptr::null_mut()),
            policy: AtomicU32::new(abi::TRITONBACKEND_EXECUTION_BLOCKING),
            attributes: OnceLock::new(),
            is_finalized: AtomicBool::new(false),
            server_count: AtomicUsize::new(0),
            entry_points,
            library: ManuallyDrop::new(library),
            // Until it is initialised: a failure leaves nothing.
            closes: AtomicBool::new(true),
            life: OnceLock::new(),
        });
        backend.initialize()?;
        backend.closes.store(opening.closes, Ordering::Relaxed);
        backend.life.get_or_init(|| opening.life);
        Ok(backend)
    }

    fn initialize(&self) -> Result<(), Error> {
        if let Some(initialize) = self.entry_points.initialize {
            // SAFETY: the entry point of this library, with its backend's handle.
            unsafe { guard::call1(initialize, as_handle::<abi::TRITONBACKEND_Backend>(self)) }?;
        }
        let mut attributes = BackendAttributes::default();
        if let Some(attribute) = self.entry_points.attribute {
            let attributes =
                ptr::from_mut(&mut attributes).cast::<abi::TRITONBACKEND_BackendAttribute>();
            // SAFETY: as above; the attributes are written during the call only.
            unsafe {
                guard::call2(
                    attribute,
                    as_handle::<abi::TRITONBACKEND_Backend>(self),
                    attributes,
                )
            }?;
        }
        self.attributes.get_or_init(|| attributes);
        Ok(())
    }

    /// Finalises the backend, once. No model uses it any more.
    pub(crate) fn finalize(&self) {
        if self.is_finalized.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(finalize) = self.entry_points.finalize else {
            return;
        };
        // SAFETY: the entry point of this library, with its backend's handle.
        let result =
            unsafe { guard::call1(finalize, as_handle::<abi::TRITONBACKEND_Backend>(self)) };
        if let Err(error) = result {
            log::error!("failed finalizing backend '{}': {error}", self.name);
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn c_name(&self) -> &CString {
        &self.c_name
    }

    pub(crate) fn found(&self) -> &BackendLocation {
        &self.found
    }

    pub(crate) fn c_directory(&self) -> &CString {
        &self.c_directory
    }

    pub(crate) fn own_directory(&self) -> &Path {
        &self.own_directory
    }

    pub(crate) fn configuration(&self) -> &JsonMessage {
        &self.configuration
    }

    pub(crate) fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }

    pub(crate) fn policy(&self) -> &AtomicU32 {
        &self.policy
    }

    /// One more server keeps it open.
    pub(super) fn add_server(&self) {
        self.server_count.fetch_add(1, Ordering::Relaxed);
    }

    /// A server gives it up; true if it was the last one.
    pub(super) fn remove_server(&self) -> bool {
        self.server_count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn entry_points(&self) -> &EntryPoints {
        &self.entry_points
    }
}

impl Drop for LoadedBackend {
    fn drop(&mut self) {
        let life = self.life.get().cloned();
        let mut end = || {
            self.finalize();
            if self.closes.load(Ordering::Relaxed) {
                // SAFETY: nobody uses the library after its last handle; this is the only drop of
                // it.
                unsafe { ManuallyDrop::drop(&mut self.library) };
            }
        };
        match life {
            Some(life) => life.end(end),
            // It never began: whoever opens it holds the lock.
            None => end(),
        }
    }
}

/// What the engine asks of a backend; `shared::Attached` passes it on.
impl LoadedBackend {
    pub(super) fn execution_policy(&self) -> ExecutionPolicy {
        match self.policy.load(Ordering::Relaxed) {
            abi::TRITONBACKEND_EXECUTION_DEVICE_BLOCKING => ExecutionPolicy::DeviceBlocking,
            _ => ExecutionPolicy::Blocking,
        }
    }

    pub(super) fn preferred_groups(&self) -> &[PreferredGroup] {
        self.attributes
            .get()
            .map_or(&[], |attributes| &attributes.preferred_groups)
    }

    pub(super) fn allows_parallel_instances(&self) -> bool {
        self.attributes
            .get()
            .is_some_and(|attributes| attributes.allows_parallel_instances)
    }

    pub(super) fn complete_config(&self, config: &mut ModelConfig) {
        if self.found.script.is_none() {
            return;
        }
        PYTHON_RUNTIME.clone_into(&mut config.runtime);
        let environment = self
            .found
            .directory()
            .join(format!("pb_exec_env_{PYTHON_RUNTIME}.tar.gz"));
        if environment.exists() && !config.parameters.contains_key(ENVIRONMENT_PARAMETER) {
            let value = ModelParameter {
                string_value: environment.to_string_lossy().into_owned(),
            };
            config
                .parameters
                .insert(ENVIRONMENT_PARAMETER.to_owned(), value);
        }
    }
}

/// Where the Python backend looks for an execution environment.
const ENVIRONMENT_PARAMETER: &str = "EXECUTION_ENV_PATH";
