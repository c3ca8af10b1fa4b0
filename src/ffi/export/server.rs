//! The server, as backends see it. Making and stopping servers, control of models, and inference belong to the in-process API, which
//! is not there yet.

use std::ffi::{c_char, c_uint, c_void};

use conch_abi as abi;
use conch_engine::server;

use super::backend_model::check_config_version;
use super::metrics::MetricsText;
use super::{export, unsupported};
use crate::boundary::{borrow, into_handle, text, write};
use crate::objects::Message;

/// The version that the C API means: -1 is "the latest that is ready".
fn version_of(version: i64) -> Option<i64> {
    (version >= 0).then_some(version)
}

export! {
    fn TRITONSERVER_ServerIsLive(server: *mut abi::TRITONSERVER_Server, live: *mut bool) {
        // A server that still starts serves nobody yet, but its process lives.
        write(live, borrow(server)?.server().map_or(true, |server| server.is_live()))
    }

    fn TRITONSERVER_ServerIsReady(server: *mut abi::TRITONSERVER_Server, ready: *mut bool) {
        // May wait for backends, as upstream's does.
        write(ready, borrow(server)?.server().is_ok_and(|server| server.readiness().wait()))
    }

    fn TRITONSERVER_ServerModelIsReady(
        server: *mut abi::TRITONSERVER_Server, model_name: *const c_char, model_version: i64, ready: *mut bool,
    ) {
        let name = text(model_name, "model_name")?;
        let readiness = borrow(server)?.server()?.model_readiness(name, version_of(model_version))?;
        write(ready, readiness.wait())
    }

    fn TRITONSERVER_ServerModelBatchProperties(
        server: *mut abi::TRITONSERVER_Server, model_name: *const c_char, model_version: i64, flags: *mut u32,
        voidp: *mut *mut c_void,
    ) {
        let server = borrow(server)?.server()?;
        let snapshot = server.registry().snapshot();
        let model = snapshot.find(text(model_name, "model_name")?, version_of(model_version))?;
        if !voidp.is_null() {
            write(voidp, std::ptr::null_mut())?;
        }
        write(flags, if model.config.is_batching() {
            abi::TRITONSERVER_BATCH_FIRST_DIM
        } else {
            abi::TRITONSERVER_BATCH_UNKNOWN
        })
    }

    fn TRITONSERVER_ServerModelTransactionProperties(
        server: *mut abi::TRITONSERVER_Server, model_name: *const c_char, model_version: i64, txn_flags: *mut u32,
        voidp: *mut *mut c_void,
    ) {
        let server = borrow(server)?.server()?;
        let snapshot = server.registry().snapshot();
        let model = snapshot.find(text(model_name, "model_name")?, version_of(model_version))?;
        if !voidp.is_null() {
            write(voidp, std::ptr::null_mut())?;
        }
        write(txn_flags, if model.config.is_decoupled {
            abi::TRITONSERVER_TXN_DECOUPLED
        } else {
            abi::TRITONSERVER_TXN_ONE_TO_ONE
        })
    }

    fn TRITONSERVER_ServerMetadata(
        server: *mut abi::TRITONSERVER_Server, server_metadata: *mut *mut abi::TRITONSERVER_Message,
    ) {
        let name = serde_json::Value::from(borrow(server)?.id());
        let version = serde_json::Value::from(server::VERSION);
        let extensions = serde_json::Value::from(server::EXTENSIONS);
        // Written out, to keep upstream's order of the fields.
        let json = format!("{{\"name\":{name},\"version\":{version},\"extensions\":{extensions}}}");
        write(server_metadata, into_handle(Box::new(Message::new(json))))
    }

    fn TRITONSERVER_ServerModelConfig(
        server: *mut abi::TRITONSERVER_Server, model_name: *const c_char, model_version: i64, config_version: u32,
        model_config: *mut *mut abi::TRITONSERVER_Message,
    ) {
        check_config_version(config_version)?;
        let server = borrow(server)?.server()?;
        let snapshot = server.registry().snapshot();
        let model = snapshot.find(text(model_name, "model_name")?, version_of(model_version))?;
        let json = conch_config::to_json(&model.config.message);
        write(model_config, into_handle(Box::new(Message::new(json))))
    }

    fn TRITONSERVER_ServerModelIndex(
        server: *mut abi::TRITONSERVER_Server, flags: u32, model_index: *mut *mut abi::TRITONSERVER_Message,
    ) {
        let ready_only = flags & abi::TRITONSERVER_INDEX_FLAG_READY != 0;
        let rows = borrow(server)?.server()?.index(ready_only);
        let row = |row: &server::IndexRow| {
            let mut object = serde_json::Map::new();
            object.insert("name".to_owned(), row.name.clone().into());
            if let Some(version) = row.version {
                object.insert("version".to_owned(), version.to_string().into());
                object.insert("state".to_owned(), row.state.into());
                if !row.reason.is_empty() {
                    object.insert("reason".to_owned(), row.reason.clone().into());
                }
            }
            serde_json::Value::Object(object)
        };
        let json = serde_json::Value::Array(rows.iter().map(row).collect());
        write(model_index, into_handle(Box::new(Message::new(json.to_string()))))
    }

    fn TRITONSERVER_ServerMetrics(
        server: *mut abi::TRITONSERVER_Server, metrics: *mut *mut abi::TRITONSERVER_Metrics,
    ) {
        let text = borrow(server)?.server()?.metrics_text();
        write(metrics, into_handle(Box::new(MetricsText(Message::new(text)))))
    }
}

unsupported! {
    fn TRITONSERVER_ServerNew(server: *mut *mut abi::TRITONSERVER_Server, options: *mut abi::TRITONSERVER_ServerOptions);
    fn TRITONSERVER_ServerDelete(server: *mut abi::TRITONSERVER_Server);
    fn TRITONSERVER_ServerStop(server: *mut abi::TRITONSERVER_Server);
    fn TRITONSERVER_ServerSetExitTimeout(server: *mut abi::TRITONSERVER_Server, timeout: c_uint);
    fn TRITONSERVER_ServerRegisterModelRepository(server: *mut abi::TRITONSERVER_Server, repository_path: *const c_char, name_mapping: *mut *const abi::TRITONSERVER_Parameter, mapping_count: u32);
    fn TRITONSERVER_ServerUnregisterModelRepository(server: *mut abi::TRITONSERVER_Server, repository_path: *const c_char);
    fn TRITONSERVER_ServerPollModelRepository(server: *mut abi::TRITONSERVER_Server);
    fn TRITONSERVER_ServerModelMetadata(server: *mut abi::TRITONSERVER_Server, model_name: *const c_char, model_version: i64, model_metadata: *mut *mut abi::TRITONSERVER_Message);
    fn TRITONSERVER_ServerModelStatistics(server: *mut abi::TRITONSERVER_Server, model_name: *const c_char, model_version: i64, model_stats: *mut *mut abi::TRITONSERVER_Message);
    fn TRITONSERVER_ServerLoadModel(server: *mut abi::TRITONSERVER_Server, model_name: *const c_char);
    fn TRITONSERVER_ServerLoadModelWithParameters(server: *mut abi::TRITONSERVER_Server, model_name: *const c_char, parameters: *mut *const abi::TRITONSERVER_Parameter, parameter_count: u64);
    fn TRITONSERVER_ServerUnloadModel(server: *mut abi::TRITONSERVER_Server, model_name: *const c_char);
    fn TRITONSERVER_ServerUnloadModelAndDependents(server: *mut abi::TRITONSERVER_Server, model_name: *const c_char);
    fn TRITONSERVER_ServerInferAsync(server: *mut abi::TRITONSERVER_Server, inference_request: *mut abi::TRITONSERVER_InferenceRequest, trace: *mut abi::TRITONSERVER_InferenceTrace);
}
