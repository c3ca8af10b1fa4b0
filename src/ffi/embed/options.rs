//! Options of a server that an embedder makes: what `TRITONSERVER_ServerOptions*` points to.
//!
//! Each becomes the option of the executable that says the same. Those of devices that this version
//! does not drive change nothing, as there.

use std::path::PathBuf;
use std::sync::Arc;

use conch_control::metrics::parse_quantiles;
use conch_control::{ControlMode, EngineOptions, Server};
use conch_engine::Error;
use conch_log as log;

use crate::boundary::{HandleTag, handles};
use crate::host;

handles! {
    TRITONSERVER_ServerOptions => ServerOptions, "server options", tagged;
}

/// The target of `TRITONSERVER_ServerOptions*`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct ServerOptions {
    tag: HandleTag<conch_abi::TRITONSERVER_ServerOptions>,
    pub(crate) server: EngineOptions,
    pub(crate) plugins: host::HostOptions,
}

impl ServerOptions {
    pub(crate) fn new() -> ServerOptions {
        let mut options = ServerOptions::default();
        // The library's defaults, unlike the executable's: configurations are complete unless the
        // embedder says otherwise, and repositories are looked at again when he asks.
        options.server.auto_complete = false;
        options.server.model_control_mode = ControlMode::Poll;
        options
    }

    /// Starts the server. Blocks until all models are loaded or have failed.
    ///
    /// # Errors
    /// The start's.
    pub(crate) fn start(&self) -> Result<(Arc<Server>, Arc<host::BackendLibraries>), Error> {
        let mut server = self.server.clone();
        // As on the command line: in lexical order, without duplicates.
        server.model_repositories.sort();
        server.model_repositories.dedup();
        super::start(server, self.plugins.clone())
    }

    /// `--metrics-config`. `name` is empty for settings of all metrics.
    ///
    /// # Errors
    /// INVALID_ARG for a value that cannot be one.
    pub(crate) fn set_metrics(
        &mut self,
        name: &str,
        setting: &str,
        value: &str,
    ) -> Result<(), Error> {
        match (name, setting) {
            ("", "counter_latencies") => self.server.counter_latencies = parse_bool(value)?,
            ("", "summary_latencies") => self.server.summary_latencies = parse_bool(value)?,
            ("", "histogram_latencies") => self.server.histogram_latencies = parse_bool(value)?,
            ("", "conch_histograms") => self.server.duration_histograms = parse_bool(value)?,
            ("", "summary_quantiles") => {
                let (quantiles, complaints) = parse_quantiles(value);
                self.server.summary_quantiles = quantiles;
                for complaint in complaints {
                    log::error!("{complaint}");
                }
            }
            _ => log::warning!("the metrics setting {setting}={value} has no effect"),
        }
        Ok(())
    }

    /// `--cache-config`.
    pub(crate) fn set_cache(&mut self, name: &str, config: &str) {
        self.plugins
            .cache_config
            .push((name.to_owned(), config.to_owned()));
    }

    /// `--backend-config`; `backend` is empty for all of them.
    pub(crate) fn set_for_backends(&mut self, backend: &str, setting: &str, value: String) {
        self.plugins
            .backend_config
            .push((backend.to_owned(), setting.to_owned(), value));
    }

    /// `--repoagent-directory`.
    pub(crate) fn set_agent_directory(&mut self, directory: PathBuf) {
        self.plugins.repoagent_directory = directory;
    }

    /// `--host-policy`.
    ///
    /// # Errors
    /// UNSUPPORTED for a setting that there is not.
    pub(crate) fn set_host_policy(
        &mut self,
        policy: &str,
        setting: &str,
        value: &str,
    ) -> Result<(), Error> {
        self.server.host_policies.set(policy, setting, value)
    }
}

fn parse_bool(text: &str) -> Result<bool, Error> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(Error::invalid(format!(
            "invalid value for bool option: {text}"
        ))),
    }
}
