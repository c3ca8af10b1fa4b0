//! For authors of repository agents: plug-ins that hear of a model's life, may check its files, and
//! may have it loaded from elsewhere.
//!
//! Implement [`Agent`], name the type in [`export_agent!`](crate::export_agent), and build a
//! `cdylib` called `libtritonrepoagent_<name>.so` as a backend is built. Calls for different models
//! may come at the same time.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use conch_abi as abi;

use crate::Error;
use crate::guard::guard;

/// What happens to a model: LOAD, then LOAD_FAIL, or LOAD_COMPLETE, UNLOAD and UNLOAD_COMPLETE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An error here ends the load; errors of the others are only logged.
    Load,
    LoadComplete,
    LoadFail,
    Unload,
    UnloadComplete,
}

/// A repository agent.
pub trait Agent {
    /// Something happens to a model whose configuration names this agent.
    ///
    /// # Errors
    /// Whatever the log is to show, and, from [`Action::Load`], the client.
    fn act(model: &AgentModel<'_>, action: Action) -> Result<(), Error>;
}

/// The model of one call.
pub struct AgentModel<'c> {
    agent: *mut abi::TRITONREPOAGENT_Agent,
    model: *mut abi::TRITONREPOAGENT_AgentModel,
    _call: PhantomData<&'c ()>,
}

impl AgentModel<'_> {
    /// The model's directory.
    ///
    /// # Errors
    /// UNSUPPORTED if it does not lie in the local file system.
    pub fn location(&self) -> Result<PathBuf, Error> {
        let mut kind = abi::TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
        let mut path: *const c_char = ptr::null();
        // SAFETY: both handles are live during the call; the path lives as long.
        let path = unsafe {
            Error::check(abi::TRITONREPOAGENT_ModelRepositoryLocation(
                self.agent,
                self.model,
                &raw mut kind,
                &raw mut path,
            ))?;
            path_of(path)?
        };
        if kind != abi::TRITONREPOAGENT_ARTIFACT_FILESYSTEM {
            return Err(Error::unsupported(format!(
                "Unsupported filesystem: {kind}"
            )));
        }
        Ok(path)
    }

    /// A directory for the agent to fill, which the server removes with the model.
    ///
    /// # Errors
    /// The server's.
    pub fn acquire_location(&self) -> Result<PathBuf, Error> {
        let mut path: *const c_char = ptr::null();
        // SAFETY: as in `location`.
        unsafe {
            Error::check(abi::TRITONREPOAGENT_ModelRepositoryLocationAcquire(
                self.agent,
                self.model,
                abi::TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
                &raw mut path,
            ))?;
            path_of(path)
        }
    }

    /// Has the model loaded from there: during [`Action::Load`] only.
    ///
    /// # Errors
    /// The server's.
    pub fn relocate(&self, path: &Path) -> Result<(), Error> {
        let path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::invalid("the path contains a NUL"))?;
        // SAFETY: both handles are live during the call, and the path is copied.
        unsafe {
            Error::check(abi::TRITONREPOAGENT_ModelRepositoryUpdate(
                self.agent,
                self.model,
                abi::TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
                path.as_ptr(),
            ))
        }
    }

    /// What the model's configuration has for this agent: names and values.
    ///
    /// # Errors
    /// The server's.
    pub fn parameters(&self) -> Result<Vec<(String, String)>, Error> {
        let mut count = 0;
        // SAFETY: both handles are live during the call; names and values live as long.
        unsafe {
            Error::check(abi::TRITONREPOAGENT_ModelParameterCount(
                self.agent,
                self.model,
                &raw mut count,
            ))?;
        }
        let read = |index| {
            let (mut name, mut value): (*const c_char, *const c_char) = (ptr::null(), ptr::null());
            // SAFETY: as above.
            unsafe {
                Error::check(abi::TRITONREPOAGENT_ModelParameter(
                    self.agent,
                    self.model,
                    index,
                    &raw mut name,
                    &raw mut value,
                ))?;
                Ok((text_of(name)?, text_of(value)?))
            }
        };
        (0..count).map(read).collect()
    }
}

/// # Safety
/// `path` is null or NUL-terminated.
unsafe fn path_of(path: *const c_char) -> Result<PathBuf, Error> {
    if path.is_null() {
        return Err(Error::internal("the server gave no path"));
    }
    // SAFETY: NUL-terminated by this function's contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(PathBuf::from(OsStr::from_bytes(bytes)))
}

/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn text_of(text: *const c_char) -> Result<String, Error> {
    if text.is_null() {
        return Err(Error::internal("the server gave no text"));
    }
    // SAFETY: NUL-terminated by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(text.to_string_lossy().into_owned())
}

/// ModelAction of an agent.
///
/// # Safety
/// As for `TRITONREPOAGENT_ModelAction`: both handles are live during the call.
pub unsafe fn act<A: Agent>(
    agent: *mut abi::TRITONREPOAGENT_Agent,
    model: *mut abi::TRITONREPOAGENT_AgentModel,
    action: abi::TRITONREPOAGENT_ActionType,
) -> *mut abi::TRITONSERVER_Error {
    guard(|| {
        let action = match action {
            abi::TRITONREPOAGENT_ACTION_LOAD => Action::Load,
            abi::TRITONREPOAGENT_ACTION_LOAD_COMPLETE => Action::LoadComplete,
            abi::TRITONREPOAGENT_ACTION_LOAD_FAIL => Action::LoadFail,
            abi::TRITONREPOAGENT_ACTION_UNLOAD => Action::Unload,
            abi::TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE => Action::UnloadComplete,
            // Of a later version of the interface.
            _ => return Ok(()),
        };
        let model = AgentModel {
            agent,
            model,
            _call: PhantomData,
        };
        A::act(&model, action)
    })
}

/// Exports the entry points of a repository agent under their C names.
#[macro_export]
macro_rules! export_agent {
    ($agent:ty) => {
        const _: () = {
            use $crate::abi;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONREPOAGENT_ModelAction(
                agent: *mut abi::TRITONREPOAGENT_Agent,
                model: *mut abi::TRITONREPOAGENT_AgentModel,
                action: abi::TRITONREPOAGENT_ActionType,
            ) -> *mut abi::TRITONSERVER_Error {
                // SAFETY: both contracts are that of the header.
                unsafe { $crate::agent::act::<$agent>(agent, model, action) }
            }
        };
    };
}
