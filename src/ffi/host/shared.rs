//! Backends that several servers of one process share: each library file is opened and initialised
//! once, as its globals are there once. The first server decides how: later ones get it as it is,
//! settings included, as upstream has it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use conch_config::PreferredGroup;
use conch_engine::{Backend, Error, ExecutionPolicy, LoadContext, Model};

use super::backend::LoadedBackend;
use super::library_lock::LibraryLock;
use super::lock::lock;
use super::model::LoadedModel;
use super::model_handle::ModelHandle;
use super::server::ServerHandle;

/// One library file, or one file of Python.
#[derive(Default)]
pub(super) struct LibrarySlot {
    life: Arc<LibraryLock>,
    backend: Mutex<Weak<LoadedBackend>>,
}

impl LibrarySlot {
    /// The backend that is open, or a new one. Waits for others who open it, and for the end of one
    /// that nobody uses any more. `keep` is told of it before its last user can go.
    ///
    /// # Errors
    /// What `open` returns.
    pub(super) fn open(
        &self,
        open: impl FnOnce(Arc<LibraryLock>) -> Result<Arc<LoadedBackend>, Error>,
        keep: impl FnOnce(&Arc<LoadedBackend>),
    ) -> Result<Arc<LoadedBackend>, Error> {
        let mut is_open = lock(&self.life.is_open);
        loop {
            let turn = lock(&TURN);
            if let Some(backend) = lock(&self.backend).upgrade() {
                keep(&backend);
                return Ok(backend);
            }
            drop(turn);
            if !*is_open {
                break;
            }
            // Its last user is gone, and its Finalize is about to come.
            is_open = self
                .life
                .closed
                .wait(is_open)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let backend = open(Arc::clone(&self.life))?;
        *is_open = true;
        *lock(&self.backend) = Arc::downgrade(&backend);
        keep(&backend);
        Ok(backend)
    }
}

/// Held while one server gives a backend up and while another takes it, so that the former knows
/// whether it was the last.
static TURN: Mutex<()> = Mutex::new(());

/// What becomes of a backend that a server gives up.
pub(super) enum LibraryRemainder {
    /// Another server has it.
    Shared,
    /// Nobody has it: it ends when this is dropped.
    Unused(Arc<LoadedBackend>),
    /// Models have it that should be gone.
    Used,
}

/// A server gives a backend up that it kept.
pub(super) fn detach(backend: Arc<LoadedBackend>) -> LibraryRemainder {
    let _turn = lock(&TURN);
    if !backend.remove_server() {
        return LibraryRemainder::Shared;
    }
    // Not taken out of its place: plug-ins know it by its address.
    if Arc::strong_count(&backend) > 1 {
        return LibraryRemainder::Used;
    }
    LibraryRemainder::Unused(backend)
}

/// By [`super::search::BackendLocation`]'s `key`. As many as there are files; an empty slot is a
/// few words.
static SLOTS: LazyLock<Mutex<HashMap<PathBuf, Arc<LibrarySlot>>>> = LazyLock::new(Mutex::default);

/// The slot of a file.
pub(super) fn slot(key: &Path) -> Arc<LibrarySlot> {
    Arc::clone(lock(&SLOTS).entry(key.to_owned()).or_default())
}

/// A backend as one server uses it.
pub(super) struct AttachedBackend {
    pub(super) backend: Arc<LoadedBackend>,
    /// Which server its models belong to.
    pub(super) server: Arc<ServerHandle>,
}

impl Backend for AttachedBackend {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn execution_policy(&self) -> ExecutionPolicy {
        self.backend.execution_policy()
    }

    fn preferred_groups(&self) -> &[PreferredGroup] {
        self.backend.preferred_groups()
    }

    fn allows_parallel_instances(&self) -> bool {
        self.backend.allows_parallel_instances()
    }

    fn complete_config(&self, config: &mut conch_config::ModelConfig) {
        self.backend.complete_config(config);
    }

    fn load_model(self: Arc<Self>, context: LoadContext) -> Result<Arc<dyn Model>, Error> {
        let (backend, server) = (Arc::clone(&self.backend), Arc::clone(&self.server));
        let model = LoadedModel::load(backend, server, context)?;
        Ok(Arc::new(ModelHandle::new(model)))
    }
}
