//! The hold of a connection's task on its entry in the shard's table.

use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::Waker;

use super::connections::{ConnectionState, WaitReason};
use super::link::Protocol;
use super::shares::ConnectionShares;
use super::state::Shard;

/// A connection's entry in its shard's table; removed on drop.
pub struct ConnectionGuard {
    shard: Rc<Shard>,
    protocol: Protocol,
    key: u64,
    state: Rc<ConnectionState>,
}

impl ConnectionGuard {
    pub(crate) fn new(shard: &Rc<Shard>, socket: RawFd, protocol: Protocol) -> ConnectionGuard {
        let shares = ConnectionShares::new(&shard.budget, socket);
        let state = Rc::new(ConnectionState::new(socket, shares));
        let key = shard
            .connections
            .borrow_mut()
            .table()
            .insert(Rc::clone(&state));
        ConnectionGuard {
            shard: Rc::clone(shard),
            protocol,
            key,
            state,
        }
    }

    /// Notes what the connection waits for from now on, and until when at most (monotonic ns, 0 for
    /// ever).
    pub fn wait(&self, waiting: WaitReason, deadline_ns: u64) {
        self.state.waiting.set(waiting);
        self.state.deadline_ns.set(deadline_ns);
        self.state.is_stirred.set(true);
        self.state.is_rest_due.set(false);
    }

    /// Whether the connection has been idle for a while, and is to give back what it needs for
    /// requests only.
    pub fn is_rest_due(&self) -> bool {
        self.state.is_rest_due.get()
    }

    /// Keeps who is to be woken when the connection is to rest, or is asked to end.
    pub fn keep_waker(&self, waker: &Waker) {
        let mut kept = self.state.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    /// Whether a request is still taken on while the shard drains.
    pub fn outlasts_drains(&self) -> bool {
        self.protocol.outlasts_drains()
    }

    /// What the connection charges its bytes to.
    pub fn shares(&self) -> &Rc<ConnectionShares> {
        &self.state.shares
    }

    /// Notes whether calls are open (gRPC), and who is to be woken when the connection is asked to
    /// end.
    pub fn note_calls(&self, has_calls: bool, waker: &Waker) {
        let waiting = match has_calls {
            true => WaitReason::Calls,
            false => WaitReason::NoCalls,
        };
        self.state.is_stirred.set(true);
        if self.state.waiting.get() != waiting {
            self.wait(waiting, 0);
            self.keep_waker(waker);
        }
    }

    /// Whether the connection is to end as soon as it can, because there are too many.
    pub fn is_stop_requested(&self) -> bool {
        self.state.is_stop_requested.get()
    }

    /// Whether the connection was ended because it stalled.
    pub fn is_timed_out(&self) -> bool {
        self.state.is_timed_out.get()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.shard.connections.borrow_mut().table().remove(self.key);
        self.shard.link.connection_closed(self.protocol);
    }
}
