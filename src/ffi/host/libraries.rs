//! The open backends of a process.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use conch_control::{AgentHost, PluginHost, Server};
use conch_engine::cache::ResponseCache;
use conch_engine::{Backend, BackendHost, BackendSpec, Error};
use conch_log as log;
use conch_memory::Budget;

use super::agents::Agents;
use super::backend::{BackendSettings, LoadedBackend};
use super::lock::lock;
use super::options::HostOptions;
use super::search::{self, PYTHON_BACKEND};
use super::server::ServerHandle;
use super::shared::{AttachedBackend, LibraryRemainder};
use super::{cache, shared};

/// All open backends of a process.
pub struct BackendLibraries {
    options: HostOptions,
    server: Arc<ServerHandle>,
    opened: Mutex<OpenedBackends>,
    /// Once it is opened.
    cache: Mutex<Option<cache::OpenedCache>>,
    agents: Agents,
}

/// The backends that this server opened, in that order.
#[derive(Default)]
struct OpenedBackends {
    open: Vec<KeepOpen>,
}

/// Who keeps a backend open.
enum KeepOpen {
    /// The host, until the server ends.
    Always(Arc<LoadedBackend>),
    /// Its models (`unload-when-unused`).
    WhileUsed(Weak<LoadedBackend>),
}

impl KeepOpen {
    fn backend(&self) -> Option<Arc<LoadedBackend>> {
        match self {
            KeepOpen::Always(backend) => Some(Arc::clone(backend)),
            KeepOpen::WhileUsed(backend) => backend.upgrade(),
        }
    }
}

impl BackendLibraries {
    pub fn new(options: HostOptions) -> Arc<BackendLibraries> {
        let policies = options.host_policies.clone();
        let server = Arc::new(ServerHandle::new(options.server_id.clone(), policies));
        Arc::new(BackendLibraries {
            agents: Agents::new(options.repoagent_directory.clone()),
            options,
            server,
            opened: Mutex::default(),
            cache: Mutex::default(),
        })
    }

    /// Tells backends which server runs them, as soon as it does.
    pub fn bind_server(&self, server: &Arc<Server>) {
        self.server.bind(server);
    }

    /// What stands for the server towards plug-ins and embedders.
    pub(crate) fn server_handle(&self) -> &Arc<ServerHandle> {
        &self.server
    }

    /// The value of a setting for a backend; the backend's own goes before the one for all, the
    /// last one given wins.
    fn setting(&self, backend: &str, setting: &str) -> Option<&str> {
        let find = |wanted: &str| {
            let mut settings = self.options.backend_config.iter().rev();
            settings
                .find(|(name, known, _)| name == wanted && known == setting)
                .map(|(_, _, value)| value.as_str())
        };
        find(backend).or_else(|| find(""))
    }

    /// The document that BackendConfig returns: all values are text.
    fn configuration(&self, backend: &str) -> String {
        let options = &self.options;
        let mut cmdline = serde_json::Map::new();
        let mut set =
            |setting: &str, value: String| cmdline.insert(setting.to_owned(), value.into());
        set("auto-complete-config", options.auto_complete.to_string());
        set(
            "backend-directory",
            options.backend_directory.to_string_lossy().into_owned(),
        );
        set(
            "min-compute-capability",
            format!("{:.6}", options.capability_min),
        );
        set(
            DEFAULT_BATCH_SETTING,
            options.default_max_batch_size.to_string(),
        );
        for wanted in ["", backend] {
            for (_, setting, value) in options
                .backend_config
                .iter()
                .filter(|(name, _, _)| name == wanted)
            {
                set(setting, value.clone());
            }
        }
        serde_json::json!({ "cmdline": cmdline }).to_string()
    }

    /// Puts a backend on the shelf, unless it is there.
    fn keep_open(&self, backend: &Arc<LoadedBackend>, closes: bool) {
        let mut opened = self.opened();
        opened.open.retain(
            |kept| !matches!(kept, KeepOpen::WhileUsed(backend) if backend.strong_count() == 0),
        );
        // Compared without a reference of our own, which might turn out to be the last.
        let is_same = |kept: &KeepOpen| match kept {
            KeepOpen::Always(known) => Arc::ptr_eq(known, backend),
            KeepOpen::WhileUsed(known) => std::ptr::eq(known.as_ptr(), Arc::as_ptr(backend)),
        };
        if opened.open.iter().any(is_same) {
            return;
        }
        opened.open.push(if closes {
            KeepOpen::WhileUsed(Arc::downgrade(backend))
        } else {
            backend.add_server();
            KeepOpen::Always(Arc::clone(backend))
        });
    }

    fn opened(&self) -> MutexGuard<'_, OpenedBackends> {
        lock(&self.opened)
    }
}

impl Drop for BackendLibraries {
    fn drop(&mut self) {
        self.finalize_all();
    }
}

impl BackendHost for BackendLibraries {
    fn open(&self, spec: &BackendSpec) -> Result<Arc<dyn Backend>, Error> {
        let found = search::find_library(&self.options.backend_directory, spec)?;
        let slot = shared::slot(&found.key);
        // What is set for the Python backend holds for all that it runs.
        let settings_of = match found.script {
            Some(_) => PYTHON_BACKEND,
            None => &spec.backend,
        };
        let closes = self
            .setting(settings_of, UNLOAD_SETTING)
            .is_some_and(|value| value == "true");
        // Upstream says so for each model.
        match self.setting(settings_of, DEFAULT_BATCH_SETTING) {
            Some(size) => log::verbose!(
                1,
                "Found overwritten default setting: {DEFAULT_BATCH_SETTING},{size}"
            ),
            None => log::verbose!(
                1,
                "Adding default backend config setting: {DEFAULT_BATCH_SETTING},{}",
                self.options.default_max_batch_size
            ),
        }
        let open = |life| {
            LoadedBackend::open(BackendSettings {
                name: &spec.backend,
                found,
                own_directory: self.options.backend_directory.join(&spec.backend),
                configuration: self.configuration(settings_of),
                closes,
                life,
            })
        };
        let backend = slot.open(open, |backend| self.keep_open(backend, closes))?;
        Ok(Arc::new(AttachedBackend {
            backend,
            server: Arc::clone(&self.server),
        }))
    }

    fn find(&self, spec: &BackendSpec) -> Result<(), Error> {
        search::find_library(&self.options.backend_directory, spec).map(|_| ())
    }

    fn list(&self) -> Vec<(String, String, String)> {
        let backends: Vec<_> = self
            .opened()
            .open
            .iter()
            .filter_map(KeepOpen::backend)
            .collect();
        let row = |name: &str, path: &Path, backend: &LoadedBackend| {
            let configuration = String::from_utf8_lossy(backend.configuration().as_bytes());
            (
                name.to_owned(),
                path.display().to_string(),
                configuration.into_owned(),
            )
        };
        let mut rows: Vec<_> = backends
            .iter()
            .map(|backend| row(backend.name(), backend.found().file(), backend))
            .collect();
        // As upstream: who serves a backend written in Python shows the library that runs it, too.
        let script = backends
            .iter()
            .find(|backend| backend.found().script.is_some());
        if let Some(backend) = script
            && !rows.iter().any(|(name, ..)| name == PYTHON_BACKEND)
        {
            rows.push(row(PYTHON_BACKEND, &backend.found().library, backend));
        }
        rows
    }

    fn open_cache(&self, budget: &Arc<Budget>) -> Result<Option<Arc<dyn ResponseCache>>, Error> {
        let opened = cache::open(&self.options, budget)?;
        let cache = opened.as_ref().map(cache::OpenedCache::cache);
        *lock(&self.cache) = opened;
        Ok(cache)
    }

    fn finalize_all(&self) {
        self.finalize_backends();
        // Models are gone, and with them all that would ask it.
        if let Some(cache::OpenedCache::Plugin(cache)) = lock(&self.cache).take() {
            cache.finalize();
        }
    }
}

impl PluginHost for BackendLibraries {
    fn agents(&self) -> &dyn AgentHost {
        &self.agents
    }
}

impl BackendLibraries {
    fn finalize_backends(&self) {
        let mut opened = self.opened();
        let open = std::mem::take(&mut opened.open);
        drop(opened);
        for kept in open.into_iter().rev() {
            let KeepOpen::Always(backend) = kept else {
                continue;
            };
            match shared::detach(backend) {
                LibraryRemainder::Shared => {}
                LibraryRemainder::Unused(backend) => drop(backend),
                // They would be called after their backend's end; leaving the backend alone is the
                // lesser evil.
                LibraryRemainder::Used => log::error!(
                    "a backend still has models at the end of the server: it is not finalized"
                ),
            }
        }
    }
}

const DEFAULT_BATCH_SETTING: &str = "default-max-batch-size";

/// `--backend-config=<backend>,unload-when-unused=true`: finalise and close a backend after its
/// last model.
const UNLOAD_SETTING: &str = "unload-when-unused";
