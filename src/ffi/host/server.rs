//! The target of `TRITONSERVER_Server*`, for the embedder who made the server and for the backends
//! that it runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use conch_abi as abi;
use conch_control::{PluginHost, Server};
use conch_engine::{Error, HostPolicies};

use crate::boundary::{HandleTag, handles};
use crate::objects::JsonMessage;

handles! {
    TRITONSERVER_Server => ServerHandle, "server", tagged;
}

/// The way to a server. Backends are loaded while it starts, so it is bound late; until then only
/// its identity is known.
#[repr(C)]
pub(crate) struct ServerHandle {
    tag: HandleTag<abi::TRITONSERVER_Server>,
    id: String,
    host_policies: HostPolicies,
    /// What the instances that live were told of them, by name: shared, for instances are many, and
    /// not kept beyond them, for clients may name whatever policies they like.
    policy_documents: Mutex<BTreeMap<String, Weak<JsonMessage>>>,
    server: OnceLock<Weak<Server>>,
    exit_timeout_secs: AtomicU64,
    /// If an embedder made the server: until it is deleted.
    owned: Mutex<Option<EmbeddedServer>>,
}

/// An embedder's server. Dropped in this order: what backends still do ends with the server.
struct EmbeddedServer {
    server: Arc<Server>,
    _host: Arc<dyn PluginHost>,
}

impl ServerHandle {
    pub(crate) fn new(id: String, host_policies: HostPolicies) -> ServerHandle {
        ServerHandle {
            tag: HandleTag::default(),
            id,
            host_policies,
            policy_documents: Mutex::default(),
            server: OnceLock::new(),
            exit_timeout_secs: AtomicU64::new(0),
            owned: Mutex::default(),
        }
    }

    pub(crate) fn bind(&self, server: &Arc<Server>) {
        let timeout = server.options().exit_timeout.as_secs();
        self.exit_timeout_secs.store(timeout, Ordering::Relaxed);
        self.server.get_or_init(|| Arc::downgrade(server));
    }

    /// Keeps the server for its embedder.
    pub(crate) fn own(&self, server: Arc<Server>, host: Arc<dyn PluginHost>) {
        *self.lock() = Some(EmbeddedServer {
            server,
            _host: host,
        });
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// What is set for a policy of instances, as backends are told it.
    pub(crate) fn host_policy(&self, policy: &str) -> Arc<JsonMessage> {
        let documents = self.policy_documents.lock();
        let mut documents = documents.unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = documents.get(policy).and_then(Weak::upgrade) {
            return known;
        }
        documents.retain(|_, document| document.strong_count() > 0);
        let settings: serde_json::Map<_, _> = self
            .host_policies
            .settings(policy)
            .map(|(setting, value)| (setting.to_owned(), value.into()))
            .collect();
        let text = serde_json::json!({ policy: settings }).to_string();
        let document = Arc::new(JsonMessage::new(text));
        documents.insert(policy.to_owned(), Arc::downgrade(&document));
        document
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

    pub(crate) fn set_exit_timeout(&self, seconds: u64) {
        self.exit_timeout_secs.store(seconds, Ordering::Relaxed);
    }

    /// Stops the server; blocks up to its exit timeout. A second call returns at once.
    ///
    /// # Errors
    /// INTERNAL if the time did not suffice.
    pub(crate) fn stop(&self) -> Result<(), Error> {
        let server = self.lock().as_ref().map(|owned| Arc::clone(&owned.server));
        let Some(server) = server else {
            return Err(Error::invalid("a backend cannot stop its server"));
        };
        let seconds = self.exit_timeout_secs.load(Ordering::Relaxed);
        server.stop_within(Duration::from_secs(seconds))
    }

    /// Gives the server up.
    pub(crate) fn disown(&self) {
        let owned = self.lock().take();
        drop(owned);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<EmbeddedServer>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_told_alike_and_forgotten_with_its_instances() {
        let mut policies = HostPolicies::default();
        policies.set("set", "numa-node", "0").unwrap();
        let server = ServerHandle::new("s".to_owned(), policies);
        let set = server.host_policy("set");
        assert_eq!(set.as_str().unwrap(), r#"{"set":{"numa-node":"0"}}"#);
        assert!(Arc::ptr_eq(&set, &server.host_policy("set")));
        for number in 0..100 {
            let name = format!("p\"{number}");
            let text = server.host_policy(&name).as_str().unwrap().to_owned();
            assert_eq!(text, format!(r#"{{"p\"{number}":{{}}}}"#));
        }
        // The one that lives, and the last.
        assert_eq!(server.policy_documents.lock().unwrap().len(), 2);
    }
}
