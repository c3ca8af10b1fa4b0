//! Calls of other functions of the server, as a request orders before it is forwarded.
//!
//! `forward_load` loads the model of that name, with the configuration `forward_load_config` and
//! the text `forward_load_text` as its file `forward_load_file`, where these are given.
//! `forward_unload` unloads a model, `forward_unload_all` one and what was loaded for it alone.
//! `forward_ready` asks whether a model is ready, in its version `forward_ready_version`; the
//! response's parameter `ready` tells it. `forward_decoupled` asks whether a model is decoupled,
//! which the parameter `decoupled` tells.

use std::ffi::CString;

use conch_backend_sdk::{Error, ParameterValue, Server};

use crate::call::Orders;

/// Does what is ordered. Returns parameters for the response.
///
/// # Errors
/// The server's.
pub(crate) fn obey(
    server: &Server,
    orders: &Orders,
) -> Result<Vec<(CString, ParameterValue)>, Error> {
    if let Some(name) = orders.text("load") {
        let file = orders.text("load_file");
        let text = orders.text("load_text").unwrap_or_default();
        let files: Vec<(&str, &[u8])> = file
            .map(|file| (file, text.as_bytes()))
            .into_iter()
            .collect();
        server.load_model(name, orders.text("load_config"), &files)?;
    }
    if let Some(name) = orders.text("unload") {
        server.unload_model(name, false)?;
    }
    if let Some(name) = orders.text("unload_all") {
        server.unload_model(name, true)?;
    }
    let mut notes = Vec::new();
    if let Some(name) = orders.text("ready") {
        let version = orders.text("ready_version").unwrap_or_default();
        let is_ready = server.is_model_ready(name, version)?;
        notes.push((c"ready".to_owned(), ParameterValue::Boolean(is_ready)));
    }
    if let Some(name) = orders.text("decoupled") {
        let is_decoupled = server.is_model_decoupled(name, -1)?;
        notes.push((
            c"decoupled".to_owned(),
            ParameterValue::Boolean(is_decoupled),
        ));
    }
    Ok(notes)
}
