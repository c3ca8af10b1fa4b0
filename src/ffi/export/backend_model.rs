//! Models, as their backend sees them.

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;

use conch_abi as abi;
use conch_engine::Error;

use super::backend_statistics::report_memory;
use super::export;
use crate::boundary::{as_handle, borrow, write, write_handle};
use crate::objects::JsonMessage;

/// The only version of the configuration's JSON form.
const CONFIG_VERSION: u32 = 1;

/// What embedders and repository agents hear of other versions; backends hear other words, as from
/// upstream.
pub(super) fn check_document_version(version: u32) -> Result<(), Error> {
    if version == CONFIG_VERSION {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "model configuration version {version} not supported, supported versions are: \
         {CONFIG_VERSION}"
    )))
}

fn check_config_version(version: u32) -> Result<(), Error> {
    if version == CONFIG_VERSION {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "model configuration version {version} not supported, supports versions: {CONFIG_VERSION}"
    )))
}

export! {
    fn TRITONBACKEND_ModelName(model: *mut abi::TRITONBACKEND_Model, name: *mut *const c_char) {
        write(name, borrow(model)?.c_name().as_ptr())
    }

    fn TRITONBACKEND_ModelVersion(model: *mut abi::TRITONBACKEND_Model, version: *mut u64) {
        let number = borrow(model)?.version();
        write(
            version,
            u64::try_from(number)
                .map_err(|_| Error::internal("model versions are never negative"))?,
        )
    }

    fn TRITONBACKEND_ModelRepository(
        model: *mut abi::TRITONBACKEND_Model,
        artifact_type: *mut abi::TRITONBACKEND_ArtifactType,
        location: *mut *const c_char,
    ) {
        write(artifact_type, abi::TRITONBACKEND_ARTIFACT_FILESYSTEM)?;
        write(location, borrow(model)?.c_path().as_ptr())
    }

    fn TRITONBACKEND_ModelConfig(
        model: *mut abi::TRITONBACKEND_Model,
        config_version: u32,
        model_config: *mut *mut abi::TRITONSERVER_Message,
    ) {
        check_config_version(config_version)?;
        let json = conch_config::to_json(&borrow(model)?.current_config().message);
        write_handle(model_config, Box::new(JsonMessage::new(json)))
    }

    fn TRITONBACKEND_ModelAutoCompleteConfig(
        model: *mut abi::TRITONBACKEND_Model,
        auto_complete_config: *mut bool,
    ) {
        write(auto_complete_config, borrow(model)?.may_complete())
    }

    fn TRITONBACKEND_ModelSetConfig(
        model: *mut abi::TRITONBACKEND_Model,
        config_version: u32,
        model_config: *mut abi::TRITONSERVER_Message,
    ) {
        check_config_version(config_version)?;
        borrow(model)?.propose_config(borrow(model_config)?.as_str()?)
    }

    fn TRITONBACKEND_ModelServer(
        model: *mut abi::TRITONBACKEND_Model,
        server: *mut *mut abi::TRITONSERVER_Server,
    ) {
        write(server, as_handle(&**borrow(model)?.server()))
    }

    fn TRITONBACKEND_ModelBackend(
        model: *mut abi::TRITONBACKEND_Model,
        backend: *mut *mut abi::TRITONBACKEND_Backend,
    ) {
        write(backend, as_handle(&**borrow(model)?.backend()))
    }

    fn TRITONBACKEND_ModelState(model: *mut abi::TRITONBACKEND_Model, state: *mut *mut c_void) {
        write(state, borrow(model)?.state().load(Ordering::Acquire))
    }

    fn TRITONBACKEND_ModelSetState(model: *mut abi::TRITONBACKEND_Model, state: *mut c_void) {
        borrow(model)?.state().store(state, Ordering::Release);
        Ok(())
    }

    fn TRITONBACKEND_ModelReportMemoryUsage(
        model: *mut abi::TRITONBACKEND_Model,
        usage: *mut *mut abi::TRITONSERVER_BufferAttributes,
        usage_size: u32,
    ) {
        report_memory(borrow(model)?, 0, usage, usage_size)
    }
}
