//! Functions that repository agents call: location of their model, its configuration and
//! parameters, and the agents' own state.
//!
//! The agent's handle is looked at only where its own state is meant, as upstream.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering;

use conch_abi as abi;
use conch_engine::Error;

use super::backend_model::check_document_version;
use super::export;
use crate::boundary::{borrow, write, write_handle};
use crate::objects::JsonMessage;

export! {
    fn TRITONREPOAGENT_ModelRepositoryLocation(
        _agent: *mut abi::TRITONREPOAGENT_Agent,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        artifact_type: *mut abi::TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) {
        let (kind, path) = borrow(model)?.shown_location()?;
        write(artifact_type, kind)?;
        write(location, path)
    }

    fn TRITONREPOAGENT_ModelRepositoryLocationAcquire(
        _agent: *mut abi::TRITONREPOAGENT_Agent,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        artifact_type: abi::TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) {
        write(location, std::ptr::null())?;
        write(location, borrow(model)?.acquire(artifact_type)?)
    }

    fn TRITONREPOAGENT_ModelRepositoryLocationRelease(
        _agent: *mut abi::TRITONREPOAGENT_Agent,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        _location: *const c_char,
    ) {
        // A model has one such location, so upstream does not look which one is meant.
        borrow(model)?.release()
    }

    fn TRITONREPOAGENT_ModelRepositoryUpdate(
        _agent: *mut abi::TRITONREPOAGENT_Agent,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        artifact_type: abi::TRITONREPOAGENT_ArtifactType,
        location: *const c_char,
    ) {
        let model = borrow(model)?;
        if location.is_null() {
            return Err(Error::invalid("location was nullptr"));
        }
        model.set_location(artifact_type, CStr::from_ptr(location))
    }

    fn TRITONREPOAGENT_ModelParameterCount(
        _agent: *mut abi::TRITONREPOAGENT_Agent,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        count: *mut u32,
    ) {
        let length = borrow(model)?.parameters().len();
        write(count, u32::try_from(length).unwrap_or(u32::MAX))
    }

    fn TRITONREPOAGENT_ModelParameter(
        _agent: *mut abi::TRITONREPOAGENT_Agent,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        index: u32,
        parameter_name: *mut *const c_char,
        parameter_value: *mut *const c_char,
    ) {
        let (name, value) = borrow(model)?
            .parameters()
            .get(index as usize)
            .ok_or_else(|| Error::invalid("index out of range for model parameters"))?;
        write(parameter_name, name.as_ptr())?;
        write(parameter_value, value.as_ptr())
    }

    fn TRITONREPOAGENT_ModelConfig(
        _agent: *mut abi::TRITONREPOAGENT_Agent,
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        config_version: u32,
        model_config: *mut *mut abi::TRITONSERVER_Message,
    ) {
        let model = borrow(model)?;
        check_document_version(config_version)?;
        write_handle(
            model_config,
            Box::new(JsonMessage::new(model.config_json())),
        )
    }

    fn TRITONREPOAGENT_ModelState(
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        state: *mut *mut c_void,
    ) {
        write(state, borrow(model)?.state().load(Ordering::Acquire))
    }

    fn TRITONREPOAGENT_ModelSetState(
        model: *mut abi::TRITONREPOAGENT_AgentModel,
        state: *mut c_void,
    ) {
        borrow(model)?.state().store(state, Ordering::Release);
        Ok(())
    }

    fn TRITONREPOAGENT_State(agent: *mut abi::TRITONREPOAGENT_Agent, state: *mut *mut c_void) {
        write(state, borrow(agent)?.state().load(Ordering::Acquire))
    }

    fn TRITONREPOAGENT_SetState(agent: *mut abi::TRITONREPOAGENT_Agent, state: *mut c_void) {
        borrow(agent)?.state().store(state, Ordering::Release);
        Ok(())
    }
}
