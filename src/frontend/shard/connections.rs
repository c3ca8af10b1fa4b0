//! The open connections of a shard, and the clock hand that closes those that stall.
//!
//! A timer per read would cost more than the read. Instead each connection notes until when its peer may stay silent, and the shard
//! looks at all of them a few times per second.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::Shard;
use super::slab::Slab;

/// What a connection waits for; decides how it is ended when its time is over or the server drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Between requests: may be closed at any time.
    Idle,
    /// For bytes of a request.
    Receiving,
    /// For the peer to take bytes.
    Sending,
    /// For the engine, or driven by its own rules (gRPC): never closed from here.
    Busy,
}

pub(crate) struct State {
    socket: RawFd,
    waiting: Cell<Waiting>,
    /// Monotonic; 0 for none.
    deadline_ns: Cell<u64>,
    is_timed_out: Cell<bool>,
}

#[derive(Default)]
pub(crate) struct Connections {
    table: Option<Slab<Rc<State>>>,
}

impl Connections {
    fn table(&mut self) -> &mut Slab<Rc<State>> {
        self.table.get_or_insert_with(Slab::new)
    }

    /// Ends what waits longer than it may.
    pub(crate) fn sweep(&mut self, now_ns: u64) {
        for state in self.table().iter_mut() {
            let deadline_ns = state.deadline_ns.get();
            if deadline_ns == 0 || now_ns < deadline_ns {
                continue;
            }
            state.deadline_ns.set(0);
            state.is_timed_out.set(true);
            match state.waiting.get() {
                Waiting::Idle | Waiting::Receiving => conch_net::stop_receiving(state.socket),
                Waiting::Sending => conch_net::stop_transfer(state.socket),
                Waiting::Busy => {}
            }
        }
    }

    /// Ends the connections that are between requests.
    pub(crate) fn close_idle(&mut self) {
        for state in self.table().iter_mut() {
            if state.waiting.get() == Waiting::Idle {
                conch_net::stop_receiving(state.socket);
            }
        }
    }
}

/// A connection's entry in its shard's table; removed on drop.
pub struct Presence {
    shard: Rc<Shard>,
    key: u64,
    state: Rc<State>,
}

impl Presence {
    pub(crate) fn new(shard: &Rc<Shard>, socket: RawFd) -> Presence {
        let state = Rc::new(State {
            socket,
            waiting: Cell::new(Waiting::Busy),
            deadline_ns: Cell::new(0),
            is_timed_out: Cell::new(false),
        });
        let key = shard
            .connections
            .borrow_mut()
            .table()
            .insert(Rc::clone(&state));
        Presence {
            shard: Rc::clone(shard),
            key,
            state,
        }
    }

    /// Notes what the connection waits for from now on, and until when at most (monotonic ns, 0 for ever).
    pub fn wait(&self, waiting: Waiting, deadline_ns: u64) {
        self.state.waiting.set(waiting);
        self.state.deadline_ns.set(deadline_ns);
    }

    /// Whether the connection was ended because it stalled.
    pub fn is_timed_out(&self) -> bool {
        self.state.is_timed_out.get()
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shard.connections.borrow_mut().table().remove(self.key);
        self.shard.link.connection_closed();
    }
}
