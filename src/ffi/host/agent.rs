//! Libraries of repository agents: each is open while a model uses it.
//!
//! ```text
//! open ─► Initialize ─► (models) ─► Finalize ─► close
//!            │ error
//!            └──► Finalize ─► close: nothing is left, and it may be tried again
//! ```
//!
//! One open library serves all models and servers of the process, as upstream; the last model that
//! uses it takes it along.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{ptr, thread};

use conch_abi as abi;
use conch_engine::Error;
use conch_log as log;
use libloading::os::unix::Library;

use super::library::{open_file, optional, required};
use crate::boundary::{HandleTag, as_handle, handles};
use crate::guard;

handles! {
    TRITONREPOAGENT_Agent => LoadedAgent, "agent", tagged;
}

/// The agents of the process, by the files of their libraries. Locked while one is opened or
/// closed, so that an agent's Finalize is over before its next Initialize.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<LoadedAgent>>> = Mutex::new(BTreeMap::new());

/// How often one looks whether an agent that is being closed is gone.
const CLOSING_LOOK: Duration = Duration::from_millis(1);

/// One agent's library.
#[repr(C)]
pub(crate) struct LoadedAgent {
    tag: HandleTag<abi::TRITONREPOAGENT_Agent>,
    name: String,
    path: PathBuf,
    state: AtomicPtr<c_void>,
    entry_points: AgentEntryPoints,
    /// Whether it is among the open ones: it leaves them when it is dropped.
    is_listed: AtomicBool,
    library: ManuallyDrop<Library>,
}

/// The functions of an agent. They stay callable while the library is open.
struct AgentEntryPoints {
    initialize: Option<abi::TRITONREPOAGENT_InitializeFn>,
    finalize: Option<abi::TRITONREPOAGENT_FinalizeFn>,
    model_initialize: Option<abi::TRITONREPOAGENT_ModelInitializeFn>,
    model_finalize: Option<abi::TRITONREPOAGENT_ModelFinalizeFn>,
    action: abi::TRITONREPOAGENT_ModelActionFn,
}

impl LoadedAgent {
    /// The agent of this library, opened if no model uses it yet. Blocks as long as its Initialize
    /// does.
    ///
    /// # Errors
    /// NOT_FOUND if the file is no agent, else what Initialize returned.
    pub(super) fn open(name: &str, path: &Path) -> Result<Arc<LoadedAgent>, Error> {
        let mut open = open_agents();
        while let Some(known) = open.get(path) {
            if let Some(agent) = known.upgrade() {
                return Ok(agent);
            }
            // Its last model has just gone: it is being closed by a thread that waits for the lock.
            drop(open);
            thread::sleep(CLOSING_LOOK);
            open = open_agents();
        }
        let library = open_file(path)?;
        // SAFETY: each name is paired with the type that `tritonrepoagent.h` gives it.
        let entry_points = unsafe {
            AgentEntryPoints {
                initialize: optional(&library, "TRITONREPOAGENT_Initialize"),
                finalize: optional(&library, "TRITONREPOAGENT_Finalize"),
                model_initialize: optional(&library, "TRITONREPOAGENT_ModelInitialize"),
                model_finalize: optional(&library, "TRITONREPOAGENT_ModelFinalize"),
                action: required(&library, "TRITONREPOAGENT_ModelAction")?,
            }
        };
        let agent = Arc::new(LoadedAgent {
            tag: HandleTag::default(),
            name: name.to_owned(),
            path: path.to_owned(),
            state: AtomicPtr::new(ptr::null_mut()),
            entry_points,
            is_listed: AtomicBool::new(false),
            library: ManuallyDrop::new(library),
        });
        if let Some(initialize) = agent.entry_points.initialize {
            // SAFETY: the entry point of this library, with its agent's handle.
            unsafe { guard::call1(initialize, as_handle::<abi::TRITONREPOAGENT_Agent>(&agent)) }?;
        }
        agent.is_listed.store(true, Ordering::Release);
        open.insert(path.to_owned(), Arc::downgrade(&agent));
        Ok(agent)
    }

    /// The names of the agents that are open, and the files of their libraries.
    pub(super) fn list() -> Vec<(String, String)> {
        let open = open_agents();
        let agents: Vec<Arc<LoadedAgent>> = open.values().filter_map(Weak::upgrade).collect();
        // Should one of these be the last reference, its drop takes the lock.
        drop(open);
        agents
            .iter()
            .map(|agent| (agent.name.clone(), agent.path.display().to_string()))
            .collect()
    }

    /// Calls ModelInitialize.
    ///
    /// # Safety
    /// `model` is the live handle of a model of this agent.
    pub(super) unsafe fn begin_model(
        &self,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
    ) -> Result<(), Error> {
        match self.entry_points.model_initialize {
            // SAFETY: the entry point of this library, with its agent's handle and that of a model
            // of it.
            Some(begin) => unsafe { guard::call2(begin, as_handle(self), model) },
            None => Ok(()),
        }
    }

    /// Calls ModelFinalize.
    ///
    /// # Safety
    /// As [`LoadedAgent::begin_model`].
    pub(super) unsafe fn end_model(
        &self,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
    ) -> Result<(), Error> {
        match self.entry_points.model_finalize {
            // SAFETY: as in `begin_model`.
            Some(end) => unsafe { guard::call2(end, as_handle(self), model) },
            None => Ok(()),
        }
    }

    /// Calls ModelAction.
    ///
    /// # Safety
    /// As [`LoadedAgent::begin_model`].
    pub(super) unsafe fn act(
        &self,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        action: abi::TRITONREPOAGENT_ActionType,
    ) -> Result<(), Error> {
        // SAFETY: as in `begin_model`.
        unsafe { guard::agent_action(self.entry_points.action, as_handle(self), model, action) }
    }

    pub(crate) fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }

    fn finalize(&self) {
        let Some(finalize) = self.entry_points.finalize else {
            return;
        };
        // SAFETY: the entry point of this library, with its agent's handle. No model uses it any
        // more.
        let result =
            unsafe { guard::call1(finalize, as_handle::<abi::TRITONREPOAGENT_Agent>(self)) };
        if let Err(error) = result {
            log::error!("failed finalizing repo agent '{}': {error}", self.name);
        }
    }
}

impl Drop for LoadedAgent {
    fn drop(&mut self) {
        // One that is not listed is dropped by who opens it, and who holds the lock.
        let mut open = (*self.is_listed.get_mut()).then(open_agents);
        if let Some(open) = &mut open {
            open.remove(&self.path);
        }
        self.finalize();
        // SAFETY: nobody uses the library after its last handle; this is the only drop of it.
        unsafe { ManuallyDrop::drop(&mut self.library) };
    }
}

fn open_agents() -> MutexGuard<'static, BTreeMap<PathBuf, Weak<LoadedAgent>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}
