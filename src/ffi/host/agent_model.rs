//! One model in the eyes of one repository agent: what `TRITONREPOAGENT_AgentModel*` points to.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_abi as abi;
use conch_control::{AgentAction, AgentContext, AgentModel, ScratchDirectory};
use conch_engine::Error;
use conch_log as log;

use super::agent::LoadedAgent;
use crate::boundary::{HandleTag, as_handle, c_string, handles};

handles! {
    TRITONREPOAGENT_AgentModel => LoadedAgentModel, "agent model", tagged;
}

/// One agent's view of one model. Dropping it calls ModelFinalize.
#[repr(C)]
pub(crate) struct LoadedAgentModel {
    tag: HandleTag<abi::TRITONREPOAGENT_AgentModel>,
    agent: Arc<LoadedAgent>,
    config_json: String,
    parameters: Vec<(CString, CString)>,
    state: AtomicPtr<c_void>,
    place: Mutex<AgentModelLocation>,
}

/// Where the model lies.
struct AgentModelLocation {
    last_action: Option<AgentAction>,
    artifact_type: abi::TRITONREPOAGENT_ArtifactType,
    /// All locations so far, the current one last: the agent may still hold a pointer to an earlier
    /// one.
    locations: Vec<Box<CStr>>,
    /// The directory that the agent asked for, and its path as the agent gets it.
    acquired: Option<(ScratchDirectory, CString)>,
}

impl LoadedAgentModel {
    /// Calls ModelInitialize.
    ///
    /// # Errors
    /// What it returned; ModelFinalize has been called then, as upstream has it.
    pub(super) fn begin(
        agent: Arc<LoadedAgent>,
        context: AgentContext,
    ) -> Result<Arc<LoadedAgentModel>, Error> {
        let AgentContext {
            location,
            config,
            parameters,
        } = context;
        let location = CString::new(location.as_os_str().as_bytes())
            .map_err(|_| Error::invalid("the model's path contains a NUL"))?;
        let model = Arc::new(LoadedAgentModel {
            tag: HandleTag::default(),
            config_json: conch_config::to_json(&config),
            parameters: parameters
                .iter()
                .map(|(name, value)| (c_string(name), c_string(value)))
                .collect(),
            state: AtomicPtr::new(ptr::null_mut()),
            place: Mutex::new(AgentModelLocation {
                last_action: None,
                artifact_type: abi::TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
                locations: vec![location.into_boxed_c_str()],
                acquired: None,
            }),
            agent,
        });
        // SAFETY: the model's own handle.
        unsafe { model.agent.begin_model(as_handle(&*model)) }?;
        Ok(model)
    }

    pub(crate) fn config_json(&self) -> &str {
        &self.config_json
    }

    pub(crate) fn parameters(&self) -> &[(CString, CString)] {
        &self.parameters
    }

    pub(crate) fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }

    /// Kind and path; the path stays as long as the model.
    ///
    /// # Errors
    /// INTERNAL if the agent has set an empty one.
    pub(crate) fn shown_location(
        &self,
    ) -> Result<(abi::TRITONREPOAGENT_ArtifactType, *const std::ffi::c_char), Error> {
        let place = self.place();
        let location = place.locations.last().filter(|path| !path.is_empty());
        let location =
            location.ok_or_else(|| Error::internal("Model repository location is not set"))?;
        Ok((place.artifact_type, location.as_ptr()))
    }

    /// # Errors
    /// INVALID_ARG unless the agent is being told to load.
    pub(crate) fn set_location(
        &self,
        artifact_type: abi::TRITONREPOAGENT_ArtifactType,
        location: &CStr,
    ) -> Result<(), Error> {
        let mut place = self.place();
        if place.last_action != Some(AgentAction::Load) {
            let last = place.last_action.map_or("not set", AgentAction::name);
            return Err(Error::invalid(format!(
                "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action \
                 type is {last}"
            )));
        }
        place.artifact_type = artifact_type;
        place.locations.push(location.into());
        Ok(())
    }

    /// A directory for the agent to fill; the same one until it is released.
    ///
    /// # Errors
    /// INVALID_ARG for anything but a file system; INTERNAL if no directory can be made.
    pub(crate) fn acquire(
        &self,
        artifact_type: abi::TRITONREPOAGENT_ArtifactType,
    ) -> Result<*const std::ffi::c_char, Error> {
        if artifact_type != abi::TRITONREPOAGENT_ARTIFACT_FILESYSTEM {
            return Err(Error::invalid(
                "Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'",
            ));
        }
        let mut place = self.place();
        let (_, path) = match &mut place.acquired {
            Some(acquired) => acquired,
            none => {
                let directory = ScratchDirectory::new()?;
                let path = CString::new(directory.path().as_os_str().as_bytes())
                    .map_err(|_| Error::internal("the temporary path contains a NUL"))?;
                none.insert((directory, path))
            }
        };
        Ok(path.as_ptr())
    }

    /// Removes that directory.
    ///
    /// # Errors
    /// UNAVAILABLE if there is none.
    pub(crate) fn release(&self) -> Result<(), Error> {
        match self.place().acquired.take() {
            Some(_) => Ok(()),
            None => Err(Error::unavailable("No mutable location to be deleted")),
        }
    }

    fn place(&self) -> MutexGuard<'_, AgentModelLocation> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentModel for LoadedAgentModel {
    fn act(&self, action: AgentAction) -> Result<(), Error> {
        {
            let mut place = self.place();
            check_order(place.last_action, action)?;
            place.last_action = Some(action);
        }
        // Without the lock: the agent calls back.
        // SAFETY: the model's own handle.
        unsafe { self.agent.act(as_handle(self), action as u32) }
    }

    fn location(&self) -> PathBuf {
        let place = self.place();
        let location = place
            .locations
            .last()
            .map_or(&[][..], |path| path.to_bytes());
        PathBuf::from(std::ffi::OsString::from_vec(location.to_vec()))
    }
}

impl Drop for LoadedAgentModel {
    fn drop(&mut self) {
        // SAFETY: the model's own handle.
        if let Err(error) = unsafe { self.agent.end_model(as_handle(self)) } {
            log::error!("failed finalizing a model of a repo agent: {error}");
        }
        self.state.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The order in which an agent hears of a model.
fn check_order(last: Option<AgentAction>, next: AgentAction) -> Result<(), Error> {
    use AgentAction::{Load, LoadComplete, LoadFail, Unload, UnloadComplete};
    match (last, next) {
        (None, Load)
        | (Some(Load), LoadComplete | LoadFail)
        | (Some(LoadComplete), Unload)
        | (Some(Unload), UnloadComplete) => Ok(()),
        (None, next) => Err(Error::internal(format!(
            "Unexpected lifecycle start state {next}"
        ))),
        (Some(last), next) => Err(Error::internal(format!(
            "Unexpected lifecycle state transition from {last} to {next}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AgentAction::{Load, LoadComplete, LoadFail, Unload, UnloadComplete};

    #[test]
    fn the_order_of_actions() {
        let all = [Load, LoadComplete, LoadFail, Unload, UnloadComplete];
        let legal = [
            (None, Load),
            (Some(Load), LoadComplete),
            (Some(Load), LoadFail),
            (Some(LoadComplete), Unload),
            (Some(Unload), UnloadComplete),
        ];
        for last in all.map(Some).into_iter().chain([None]) {
            for next in all {
                let outcome = check_order(last, next);
                assert_eq!(
                    outcome.is_ok(),
                    legal.contains(&(last, next)),
                    "{last:?} {next:?}"
                );
            }
        }
        let message = |last, next| check_order(last, next).unwrap_err().message;
        assert_eq!(
            message(Some(LoadFail), Unload),
            "Unexpected lifecycle state transition from TRITONREPOAGENT_ACTION_LOAD_FAIL to \
             TRITONREPOAGENT_ACTION_UNLOAD"
        );
        assert_eq!(
            message(None, Unload),
            "Unexpected lifecycle start state TRITONREPOAGENT_ACTION_UNLOAD"
        );
    }
}
