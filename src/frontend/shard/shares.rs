//! The accounts of a connection: a share of the byte budget per client that it speaks for.

use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use conch_memory::{Budget, ClientId, ConnectionUsage};

use crate::peer::Peer;

/// The shares of one connection. A client is what the tenant header names, else the peer's address,
/// or the user at the other end of a Unix socket.
pub struct ConnectionShares {
    peer: Peer,
    /// Those in its certificate, where rules ask for them.
    peer_names: OnceCell<Box<[Box<str>]>>,
    usage: Arc<ConnectionUsage>,
    own: Arc<Budget>,
    /// Of the tenant that was spoken for last.
    tenant: RefCell<Option<(ClientId, Arc<Budget>)>>,
}

impl ConnectionShares {
    pub(super) fn new(budget: &Budget, socket: RawFd) -> ConnectionShares {
        let peer = Peer::of(socket);
        let client = match peer {
            Peer::Address(IpAddr::V4(address)) => budget.client(&address.octets()),
            // A host has a whole network of this size.
            Peer::Address(IpAddr::V6(address)) => {
                budget.client(address.octets().first_chunk::<8>().unwrap_or(&[0; 8]))
            }
            // All programs of one user of this machine.
            Peer::User(user) => budget.client(format!("user {user}").as_bytes()),
            Peer::Unknown => budget.client(b""),
        };
        let usage = Arc::<ConnectionUsage>::default();
        ConnectionShares {
            peer,
            peer_names: OnceCell::new(),
            own: budget.share(&usage, client),
            usage,
            tenant: RefCell::new(None),
        }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Keeps the names in the certificate of the peer. Once: later ones are dropped.
    pub fn name_peer(&self, names: Box<[Box<str>]>) {
        let _ = self.peer_names.set(names);
    }

    /// The names in the certificate of the peer; none without, or where no rules ask for them.
    pub fn peer_names(&self) -> &[Box<str>] {
        self.peer_names
            .get()
            .map(|names| &**names)
            .unwrap_or_default()
    }

    /// What all of them hold.
    pub(super) fn usage(&self) -> &ConnectionUsage {
        &self.usage
    }

    /// That of the peer.
    pub fn own(&self) -> &Arc<Budget> {
        &self.own
    }

    /// That of the sender of one request: of the tenant that `tenant_header` names, if one is set.
    /// `find` finds a header's value.
    pub fn of_request<'a>(
        &self,
        tenant_header: Option<&str>,
        budget: &Budget,
        find: impl FnOnce(&str) -> Option<&'a [u8]>,
    ) -> Arc<Budget> {
        let name = tenant_header.and_then(find);
        let Some(name) = name else {
            return Arc::clone(&self.own);
        };
        let client = budget.client(name);
        let mut tenant = self.tenant.borrow_mut();
        match &*tenant {
            Some((known, share)) if *known == client => Arc::clone(share),
            _ => {
                let share = budget.share(&self.usage, client);
                *tenant = Some((client, Arc::clone(&share)));
                share
            }
        }
    }

    /// Gives back what is kept ready.
    pub(super) fn trim(&self) {
        self.own.trim();
        if let Some((_, share)) = &*self.tenant.borrow() {
            share.trim();
        }
    }
}
