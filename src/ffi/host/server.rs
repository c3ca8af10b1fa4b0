//! What `TRITONSERVER_Server*` points to when a backend asks for its server.

use std::sync::{Arc, OnceLock, Weak};

use conch_engine::{Error, Server};

use crate::boundary::handles;

handles! {
    TRITONSERVER_Server => ServerHandle, "server";
}

/// The way from a backend to the server that runs it. Backends are loaded while the server starts, so it is bound late; until then
/// only its identity is known.
pub(crate) struct ServerHandle {
    id: String,
    server: OnceLock<Weak<Server>>,
}

impl ServerHandle {
    pub(crate) fn new(id: String) -> ServerHandle {
        ServerHandle {
            id,
            server: OnceLock::new(),
        }
    }

    pub(crate) fn bind(&self, server: &Arc<Server>) {
        self.server.get_or_init(|| Arc::downgrade(server));
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The running server.
    ///
    /// # Errors
    /// UNAVAILABLE while it starts and after it ended.
    pub(crate) fn server(&self) -> Result<Arc<Server>, Error> {
        self.server
            .get()
            .and_then(Weak::upgrade)
            .ok_or_else(|| Error::unavailable("Server not ready"))
    }
}
