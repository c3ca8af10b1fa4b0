//! Repository agents: none is loaded yet.

use std::ffi::{c_char, c_void};

use conch_abi as abi;

use super::unsupported;

unsupported! {
    fn TRITONREPOAGENT_ModelRepositoryLocation(agent: *mut abi::TRITONREPOAGENT_Agent, model: *mut abi::TRITONREPOAGENT_AgentModel, artifact_type: *mut abi::TRITONREPOAGENT_ArtifactType, location: *mut *const c_char);
    fn TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent: *mut abi::TRITONREPOAGENT_Agent, model: *mut abi::TRITONREPOAGENT_AgentModel, artifact_type: abi::TRITONREPOAGENT_ArtifactType, location: *mut *const c_char);
    fn TRITONREPOAGENT_ModelRepositoryLocationRelease(agent: *mut abi::TRITONREPOAGENT_Agent, model: *mut abi::TRITONREPOAGENT_AgentModel, location: *const c_char);
    fn TRITONREPOAGENT_ModelRepositoryUpdate(agent: *mut abi::TRITONREPOAGENT_Agent, model: *mut abi::TRITONREPOAGENT_AgentModel, artifact_type: abi::TRITONREPOAGENT_ArtifactType, location: *const c_char);
    fn TRITONREPOAGENT_ModelParameterCount(agent: *mut abi::TRITONREPOAGENT_Agent, model: *mut abi::TRITONREPOAGENT_AgentModel, count: *mut u32);
    fn TRITONREPOAGENT_ModelParameter(agent: *mut abi::TRITONREPOAGENT_Agent, model: *mut abi::TRITONREPOAGENT_AgentModel, index: u32, parameter_name: *mut *const c_char, parameter_value: *mut *const c_char);
    fn TRITONREPOAGENT_ModelConfig(agent: *mut abi::TRITONREPOAGENT_Agent, model: *mut abi::TRITONREPOAGENT_AgentModel, config_version: u32, model_config: *mut *mut abi::TRITONSERVER_Message);
    fn TRITONREPOAGENT_ModelState(model: *mut abi::TRITONREPOAGENT_AgentModel, state: *mut *mut c_void);
    fn TRITONREPOAGENT_ModelSetState(model: *mut abi::TRITONREPOAGENT_AgentModel, state: *mut c_void);
    fn TRITONREPOAGENT_State(agent: *mut abi::TRITONREPOAGENT_Agent, state: *mut *mut c_void);
    fn TRITONREPOAGENT_SetState(agent: *mut abi::TRITONREPOAGENT_Agent, state: *mut c_void);
}
