//! From options to a running server: the way of the executable and of embedders.

use std::sync::Arc;

use conch_control::{EngineOptions, Server};
use conch_engine::Error;
use conch_remote::Cloud;

use crate::host::{self, BackendLibraries};

/// Starts a server with remote repositories and its plug-ins, and tells these which one it is.
/// Blocks until all models are loaded or have failed. What both sides are to agree on is taken from
/// `options`.
///
/// # Errors
/// As [`Server::start`].
pub fn start(
    mut options: EngineOptions,
    mut plugins: host::HostOptions,
) -> Result<(Arc<Server>, Arc<BackendLibraries>), Error> {
    agree(&mut options, &mut plugins);
    let host = BackendLibraries::new(plugins);
    let server = Server::start(options, Arc::clone(&host) as Arc<_>)?;
    host.bind_server(&server);
    Ok((server, host))
}

/// Gives the server its remote repositories, and its plug-ins what they are to know of it.
pub(super) fn agree(options: &mut EngineOptions, plugins: &mut host::HostOptions) {
    options.remote = Arc::new(Cloud::new());
    plugins.server_id.clone_from(&options.server_id);
    plugins.auto_complete = options.auto_complete;
    plugins.capability_min = options.gpu.capability_min;
    plugins.host_policies.clone_from(&options.host_policies);
}
