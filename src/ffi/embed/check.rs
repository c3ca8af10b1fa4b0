//! From options to what is to be said of the model repositories, without a server or by way of one
//! that nobody reaches.

use conch_control::check::{self, CheckReport, ModelReport};
use conch_control::{ControlMode, EngineOptions};
use conch_engine::Error;

use super::start::{agree, start};
use crate::host::{self, BackendLibraries};

/// Looks at the repositories of `options` and opens no plug-in: see [`check::examine`].
pub fn examine(options: &EngineOptions, plugins: &host::HostOptions) -> CheckReport {
    let (mut options, mut plugins) = (options.clone(), plugins.clone());
    agree(&mut options, &mut plugins);
    check::examine(&options, BackendLibraries::new(plugins))
}

/// Loads the models that [`examine`] reported, one after the other: see
/// [`Server::check_models`](conch_control::Server::check_models). The server that does so has no
/// listener, and is stopped at the end.
///
/// # Errors
/// The server does not start, or what a backend does keeps it from ending in time: the report is
/// complete then, and threads may still be inside of the backend.
pub fn check_by_loading(
    options: &EngineOptions,
    plugins: host::HostOptions,
    report: &mut CheckReport,
    told: &mut dyn FnMut(&ModelReport),
) -> Result<(), Error> {
    let mut repositories = options.model_repositories.clone();
    repositories.retain(|path| report.models.iter().any(|model| model.repository == *path));
    if repositories.is_empty() {
        return Ok(());
    }
    let options = EngineOptions {
        model_repositories: repositories,
        model_control_mode: ControlMode::Explicit,
        startup_models: Vec::new(),
        demand: None,
        exit_on_error: false,
        allow_gpu_metrics: false,
        ..options.clone()
    };
    let (server, host) = start(options, plugins)?;
    server.check_models(report, told);
    let stopped = server.stop();
    drop(host);
    stopped
}
