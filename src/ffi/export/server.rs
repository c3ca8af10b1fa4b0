//! The server, as its embedder and its backends see it.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;

use conch_abi as abi;
use conch_control::{Overrides, Server, documents, metadata, server_metadata};
use conch_engine::Error;

use super::backend_model::check_document_version;
use super::export;
use super::metrics::MetricsText;
use crate::boundary::{borrow, release, slice, text, write, write_handle};
use crate::objects::{JsonMessage, NamedValue};

/// The version that the C API means: -1 is "the latest that is ready".
pub(super) fn version_of(version: i64) -> Option<i64> {
    (version >= 0).then_some(version)
}

/// # Errors
/// UNAVAILABLE once the server's end has begun, in upstream's words.
fn refuse_exiting(server: &Server) -> Result<(), Error> {
    if server.is_stopping() {
        return Err(Error::unavailable("Server exiting"));
    }
    Ok(())
}

/// The server, for what is served until its end begins.
///
/// # Errors
/// UNAVAILABLE while it starts and from then on, in upstream's words.
///
/// # Safety
/// `server` is null or live.
unsafe fn serving(server: *mut abi::TRITONSERVER_Server) -> Result<Arc<Server>, Error> {
    // SAFETY: by this function's contract.
    let server = unsafe { borrow(server) }?.server()?;
    server.check_serving()?;
    Ok(server)
}

/// What the parameters of a load put in the place of the repository's files.
///
/// # Safety
/// All are live parameters, and so are the bytes that they refer to.
unsafe fn overrides(parameters: &[*const abi::TRITONSERVER_Parameter]) -> Result<Overrides, Error> {
    let mut overrides = Overrides::default();
    for parameter in parameters {
        // SAFETY: by this function's contract.
        let parameter = unsafe { borrow(*parameter) }?;
        let name = parameter.name.to_string_lossy();
        match (&*name, &parameter.value) {
            ("config", NamedValue::Text(config)) => {
                overrides.config = Some(config.to_string_lossy().into_owned());
            }
            ("config", _) => {
                return Err(Error::invalid(
                    "Config parameter 'config' must have string type for its value",
                ));
            }
            (file, NamedValue::Bytes(base, length)) if file.starts_with("file:") => {
                let length = usize::try_from(*length)
                    .map_err(|_| Error::invalid("the file is too large"))?;
                // SAFETY: by this function's contract.
                let bytes = unsafe { slice(base.cast::<u8>(), length, "file contents") }?;
                overrides.files.push((file.to_owned(), bytes.to_vec()));
            }
            (file, _) if file.starts_with("file:") => {
                return Err(Error::invalid(format!(
                    "File parameter '{file}' must have bytes type for its value"
                )));
            }
            (_, value) => {
                let kind = value.kind_name();
                return Err(Error::invalid(format!(
                    "Unrecognized load parameter '{name}' with type '{kind}'"
                )));
            }
        }
    }
    Ok(overrides)
}

export! {
    fn TRITONSERVER_ServerIsLive(server: *mut abi::TRITONSERVER_Server, live: *mut bool) {
        // A server that still starts serves nobody yet, but its process lives.
        write(live, true)?;
        if let Ok(server) = borrow(server)?.server() {
            refuse_exiting(&server)?;
        }
        Ok(())
    }

    fn TRITONSERVER_ServerIsReady(server: *mut abi::TRITONSERVER_Server, ready: *mut bool) {
        write(ready, false)?;
        let Ok(server) = borrow(server)?.server() else {
            return Ok(());
        };
        refuse_exiting(&server)?;
        // May wait for backends, as upstream's does.
        write(ready, server.readiness().wait())
    }

    fn TRITONSERVER_ServerModelIsReady(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        ready: *mut bool,
    ) {
        let name = text(model_name, "model_name")?;
        let readiness = serving(server)?.model_readiness(name, version_of(model_version));
        // As upstream: a model that is not there is not ready, which is no error.
        write(ready, readiness.is_ok_and(|readiness| readiness.wait()))
    }

    fn TRITONSERVER_ServerModelBatchProperties(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        flags: *mut u32,
        voidp: *mut *mut c_void,
    ) {
        let server = borrow(server)?.server()?;
        let snapshot = server.registry().snapshot();
        let model = snapshot.find(text(model_name, "model_name")?, version_of(model_version))?;
        if !voidp.is_null() {
            write(voidp, std::ptr::null_mut())?;
        }
        write(
            flags,
            if model.config.is_batching() {
                abi::TRITONSERVER_BATCH_FIRST_DIM
            } else {
                abi::TRITONSERVER_BATCH_UNKNOWN
            },
        )
    }

    fn TRITONSERVER_ServerModelTransactionProperties(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        txn_flags: *mut u32,
        voidp: *mut *mut c_void,
    ) {
        let server = borrow(server)?.server()?;
        let snapshot = server.registry().snapshot();
        let model = snapshot.find(text(model_name, "model_name")?, version_of(model_version))?;
        if !voidp.is_null() {
            write(voidp, std::ptr::null_mut())?;
        }
        write(
            txn_flags,
            if model.config.is_decoupled {
                abi::TRITONSERVER_TXN_DECOUPLED
            } else {
                abi::TRITONSERVER_TXN_ONE_TO_ONE
            },
        )
    }

    fn TRITONSERVER_ServerMetadata(
        server: *mut abi::TRITONSERVER_Server,
        server_metadata: *mut *mut abi::TRITONSERVER_Message,
    ) {
        // Known while the server starts, too.
        let metadata = server_metadata::ServerMetadata {
            name: borrow(server)?.id().to_owned(),
            version: server_metadata::VERSION,
            extensions: server_metadata::EXTENSIONS,
        };
        let json = documents::server_metadata(&metadata);
        write_handle(server_metadata, Box::new(JsonMessage::new(json)))
    }

    fn TRITONSERVER_ServerModelConfig(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        config_version: u32,
        model_config: *mut *mut abi::TRITONSERVER_Message,
    ) {
        let server = borrow(server)?.server()?;
        let snapshot = server.registry().snapshot();
        let model = snapshot.find(text(model_name, "model_name")?, version_of(model_version))?;
        check_document_version(config_version)?;
        let json = conch_config::to_json(&model.reported_config().message);
        write_handle(model_config, Box::new(JsonMessage::new(json)))
    }

    fn TRITONSERVER_ServerModelIndex(
        server: *mut abi::TRITONSERVER_Server,
        flags: u32,
        model_index: *mut *mut abi::TRITONSERVER_Message,
    ) {
        let ready_only = flags & abi::TRITONSERVER_INDEX_FLAG_READY != 0;
        let rows = serving(server)?.index(ready_only);
        write_handle(
            model_index,
            Box::new(JsonMessage::new(documents::index(&rows))),
        )
    }

    fn TRITONSERVER_ServerMetrics(
        server: *mut abi::TRITONSERVER_Server,
        metrics: *mut *mut abi::TRITONSERVER_Metrics,
    ) {
        let text = borrow(server)?.server()?.metrics_text();
        write_handle(metrics, Box::new(MetricsText(JsonMessage::new(text))))
    }

    fn TRITONSERVER_ServerModelMetadata(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        model_metadata: *mut *mut abi::TRITONSERVER_Message,
    ) {
        let server = borrow(server)?.server()?;
        let snapshot = server.registry().snapshot();
        let version = version_of(model_version);
        let model = snapshot.find(text(model_name, "model_name")?, version)?;
        let json = documents::model_metadata(&metadata::model_metadata(&server, model, version)?);
        write_handle(model_metadata, Box::new(JsonMessage::new(json)))
    }

    fn TRITONSERVER_ServerModelStatistics(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        model_stats: *mut *mut abi::TRITONSERVER_Message,
    ) {
        let server = serving(server)?;
        let models = metadata::statistics(
            &server,
            text(model_name, "model_name")?,
            version_of(model_version),
        )?;
        let json = documents::statistics(&models);
        write_handle(model_stats, Box::new(JsonMessage::new(json)))
    }

    fn TRITONSERVER_ServerNew(
        server: *mut *mut abi::TRITONSERVER_Server,
        options: *mut abi::TRITONSERVER_ServerOptions,
    ) {
        write(server, std::ptr::null_mut())?;
        conch_log::tell_panics();
        let (started, host) = borrow(options)?.start()?;
        let handle = Arc::clone(host.server_handle());
        handle.own(started, host);
        write(server, Arc::into_raw(handle).cast_mut().cast())
    }

    fn TRITONSERVER_ServerDelete(server: *mut abi::TRITONSERVER_Server) {
        // As upstream: nothing is to be deleted.
        if server.is_null() {
            return Ok(());
        }
        let handle = borrow(server)?;
        handle.stop()?;
        handle.disown();
        // The embedder's reference, made by ServerNew.
        release(server);
        conch_log::flush(conch_log::EXIT_FLUSH);
        Ok(())
    }

    fn TRITONSERVER_ServerStop(server: *mut abi::TRITONSERVER_Server) {
        if server.is_null() {
            return Ok(());
        }
        borrow(server)?.stop()
    }

    fn TRITONSERVER_ServerSetExitTimeout(server: *mut abi::TRITONSERVER_Server, timeout: c_uint) {
        borrow(server)?.set_exit_timeout(u64::from(timeout));
        Ok(())
    }

    fn TRITONSERVER_ServerRegisterModelRepository(
        server: *mut abi::TRITONSERVER_Server,
        repository_path: *const c_char,
        name_mapping: *mut *const abi::TRITONSERVER_Parameter,
        mapping_count: u32,
    ) {
        let server = serving(server)?;
        let path = text(repository_path, "repository_path")?;
        let count =
            usize::try_from(mapping_count).map_err(|_| Error::invalid("too many mappings"))?;
        if name_mapping.is_null() && count != 0 {
            return Err(Error::invalid(
                "model mappings are not provided while mapping count is non-zero",
            ));
        }
        let mut mappings: Vec<(String, String)> = Vec::with_capacity(count);
        for mapping in slice(name_mapping.cast_const(), count, "name_mapping")? {
            let mapping = borrow(*mapping)?;
            let directory = mapping.name.to_string_lossy().into_owned();
            let NamedValue::Text(model) = &mapping.value else {
                return Err(Error::invalid(format!(
                    "Mapped model name must be a string, found another type for {directory}"
                )));
            };
            let model = model.to_string_lossy().into_owned();
            if mappings.iter().any(|(_, known)| *known == model) {
                return Err(Error::invalid(format!(
                    "failed to register '{path}', there is a conflicting mapping for '{model}'"
                )));
            }
            mappings.push((directory, model));
        }
        server.register_repository(path, mappings)
    }

    fn TRITONSERVER_ServerUnregisterModelRepository(
        server: *mut abi::TRITONSERVER_Server,
        repository_path: *const c_char,
    ) {
        serving(server)?.unregister_repository(text(repository_path, "repository_path")?)
    }

    fn TRITONSERVER_ServerPollModelRepository(server: *mut abi::TRITONSERVER_Server) {
        serving(server)?.poll_repositories()
    }

    fn TRITONSERVER_ServerLoadModel(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
    ) {
        serving(server)?.load_model(text(model_name, "model_name")?, Overrides::default())
    }

    fn TRITONSERVER_ServerLoadModelWithParameters(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
        parameters: *mut *const abi::TRITONSERVER_Parameter,
        parameter_count: u64,
    ) {
        let server = serving(server)?;
        let name = text(model_name, "model_name")?;
        let count =
            usize::try_from(parameter_count).map_err(|_| Error::invalid("too many parameters"))?;
        if parameters.is_null() && count != 0 {
            return Err(Error::invalid(
                "load parameters are not provided while parameter count is non-zero",
            ));
        }
        let overrides = overrides(slice(parameters.cast_const(), count, "parameters")?)?;
        server.load_model(name, overrides)
    }

    fn TRITONSERVER_ServerUnloadModel(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
    ) {
        serving(server)?.unload_model(text(model_name, "model_name")?, false)
    }

    fn TRITONSERVER_ServerUnloadModelAndDependents(
        server: *mut abi::TRITONSERVER_Server,
        model_name: *const c_char,
    ) {
        serving(server)?.unload_model(text(model_name, "model_name")?, true)
    }

    fn TRITONSERVER_ServerInferAsync(
        server: *mut abi::TRITONSERVER_Server,
        inference_request: *mut abi::TRITONSERVER_InferenceRequest,
        trace: *mut abi::TRITONSERVER_InferenceTrace,
    ) {
        let server = borrow(server)?.server()?;
        let submission = borrow(inference_request)?.prepare(inference_request, &server, trace)?;
        // The request may be gone before this returns: it is not borrowed any more.
        submission.submit()
    }
}
