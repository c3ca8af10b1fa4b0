//! The open connections of a shard, and the clock hand that closes those that stall.
//!
//! A timer per read would cost more than the read. Instead each connection notes until when its
//! peer may stay silent, and the shard looks at all of them a few times per second. It also sees
//! which of them hold bytes and move none, and which are idle: those give back what they need for
//! requests only, under pressure those that hold most are dropped, and near the connections' limit
//! those that have been idle for longest are asked to end.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use conch_memory::Charge;

use super::shares::ConnectionShares;
use super::slab::Slab;
use crate::pressure::PressureOrders;

/// A connection moves if it would turn over what it holds in so many looks: about half a minute.
const TURNOVER_LOOKS: u64 = 320;
/// A connection that holds no more is stalled only while nothing happens on it at all.
const SMALL_BYTES: u64 = 2 * Charge::STEP_BYTES;
/// Looks without a sign of use before an idle connection may be asked to end: one second.
const IDLE_LOOKS_MIN: u32 = 10;

/// For how long a connection that is to end and was used within the last second may still bring a
/// request, which is answered with the word that the connection ends. A client that learns of the
/// end from a closed socket only cannot tell what became of what it had just sent.
pub(crate) const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// What a connection waits for; decides how it is ended when its time is over or the server drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Between requests: may be closed at any time.
    Idle,
    /// For bytes of a request.
    Receiving,
    /// For the peer to take bytes.
    Sending,
    /// For the engine: never closed from here.
    Busy,
    /// Many things, driven by its own rules (gRPC).
    Calls,
    /// A first call (gRPC): ends by its own rules when it is asked to.
    NoCalls,
}

pub(crate) struct ConnectionState {
    socket: RawFd,
    pub(super) waiting: Cell<WaitReason>,
    /// Monotonic; 0 for none.
    pub(super) deadline_ns: Cell<u64>,
    pub(super) is_timed_out: Cell<bool>,
    pub(super) shares: Rc<ConnectionShares>,
    /// Something was waited for since the last look.
    pub(super) is_stirred: Cell<bool>,
    /// Looks since it was last stirred.
    idle_looks: Cell<u32>,
    /// Looks since it last moved enough, and what it had moved then.
    stalled_looks: Cell<u32>,
    moved_bytes: Cell<u64>,
    pub(super) is_stop_requested: Cell<bool>,
    /// It has been idle for a while, and is to give back what it needs for requests only.
    pub(super) is_rest_due: Cell<bool>,
    pub(super) waker: RefCell<Option<Waker>>,
}

impl ConnectionState {
    pub(super) fn new(socket: RawFd, shares: ConnectionShares) -> ConnectionState {
        ConnectionState {
            socket,
            waiting: Cell::new(WaitReason::Busy),
            deadline_ns: Cell::new(0),
            is_timed_out: Cell::new(false),
            shares: Rc::new(shares),
            is_stirred: Cell::new(true),
            idle_looks: Cell::new(0),
            stalled_looks: Cell::new(0),
            moved_bytes: Cell::new(0),
            is_stop_requested: Cell::new(false),
            is_rest_due: Cell::new(false),
            waker: RefCell::new(None),
        }
    }

    /// Notes how long nothing has happened; returns what it holds if it holds that for too long.
    fn check_stalled(&self, stalled_looks_max: u32) -> Option<u64> {
        let was_stirred = self.is_stirred.take();
        if was_stirred {
            self.idle_looks.set(0);
        } else {
            self.idle_looks.set(self.idle_looks.get().saturating_add(1));
            self.shares.trim();
        }
        let usage = self.shares.usage();
        let held_bytes = match self.waiting.get() {
            WaitReason::Receiving | WaitReason::Sending | WaitReason::Calls => usage.peer_bytes(),
            WaitReason::Idle | WaitReason::Busy | WaitReason::NoCalls => 0,
        };
        let moved_bytes = usage.moved_bytes();
        let looks = self.stalled_looks.get().saturating_add(1);
        let since_bytes = moved_bytes.saturating_sub(self.moved_bytes.get());
        // What is charged in few steps moves within them.
        let is_small = held_bytes <= SMALL_BYTES;
        if held_bytes == 0
            || is_small && was_stirred
            || since_bytes.saturating_mul(TURNOVER_LOOKS) >= held_bytes * u64::from(looks)
        {
            self.stalled_looks.set(0);
            self.moved_bytes.set(moved_bytes);
            return None;
        }
        self.stalled_looks.set(looks);
        (looks >= stalled_looks_max).then_some(held_bytes)
    }

    fn is_idle(&self) -> bool {
        let is_idle = matches!(self.waiting.get(), WaitReason::Idle | WaitReason::NoCalls);
        is_idle && self.idle_looks.get() >= IDLE_LOOKS_MIN && !self.is_stop_requested.get()
    }

    /// Asks a connection between requests to rest, once it has been idle for a while. Whether it
    /// did.
    fn check_rest(&self) -> bool {
        let is_due =
            self.waiting.get() == WaitReason::Idle && self.idle_looks.get() == IDLE_LOOKS_MIN;
        if is_due {
            self.is_rest_due.set(true);
            self.wake();
        }
        is_due
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn ask_to_end(&self) {
        self.is_stop_requested.set(true);
        match self.waiting.get() {
            WaitReason::NoCalls => self.wake(),
            _ => conch_net::stop_receiving(self.socket),
        }
    }
}

#[derive(Default)]
pub(crate) struct ConnectionTable {
    table: Option<Slab<Rc<ConnectionState>>>,
}

impl ConnectionTable {
    pub(super) fn table(&mut self) -> &mut Slab<Rc<ConnectionState>> {
        self.table.get_or_insert_with(Slab::new)
    }

    /// Ends what waits longer than it may, and does what `orders` want. Returns how many
    /// connections were asked to rest.
    pub(crate) fn sweep(&mut self, now_ns: u64, orders: &PressureOrders) -> usize {
        let mut stalled: Vec<(u64, Rc<ConnectionState>)> = Vec::new();
        let mut idle: Vec<(u32, Rc<ConnectionState>)> = Vec::new();
        let excess_count = orders.begin_idle(self.table().len());
        let (mut ending_count, mut resting_count) = (0, 0);
        for state in self.table().iter_mut() {
            if let Some(held_bytes) = state.check_stalled(orders.stalled_looks_max())
                && orders.note_stalled(held_bytes)
            {
                stalled.push((held_bytes, Rc::clone(state)));
            }
            resting_count += usize::from(state.check_rest());
            if excess_count > 0 && state.is_idle() {
                idle.push((state.idle_looks.get(), Rc::clone(state)));
            }
            ending_count += usize::from(state.is_stop_requested.get());
            let deadline_ns = state.deadline_ns.get();
            if deadline_ns == 0 || now_ns < deadline_ns {
                continue;
            }
            state.deadline_ns.set(0);
            state.is_timed_out.set(true);
            match state.waiting.get() {
                WaitReason::Idle | WaitReason::Receiving => conch_net::stop_receiving(state.socket),
                WaitReason::Sending => conch_net::stop_transfer(state.socket),
                WaitReason::Busy | WaitReason::Calls | WaitReason::NoCalls => {}
            }
        }
        stalled.sort_unstable_by_key(|(held_bytes, _)| std::cmp::Reverse(*held_bytes));
        for (held_bytes, state) in stalled {
            if !orders.take_stalled(held_bytes, now_ns) {
                break;
            }
            state.stalled_looks.set(0);
            conch_net::abort(state.socket);
        }
        idle.sort_unstable_by_key(|(looks, _)| std::cmp::Reverse(*looks));
        // Those that were asked before take their time to end.
        let wanted_count = excess_count.saturating_sub(ending_count);
        for (_, state) in idle.into_iter().take(wanted_count) {
            state.ask_to_end();
        }
        resting_count
    }

    /// Ends the connections that are between requests: those that were used a moment ago after
    /// [`CLOSE_GRACE`] more, as their next request may be on its way.
    pub(crate) fn close_idle(&mut self, now_ns: u64) {
        for state in self.table().iter_mut() {
            if state.waiting.get() != WaitReason::Idle {
                continue;
            }
            if state.is_stirred.get() || state.idle_looks.get() < IDLE_LOOKS_MIN {
                let own_ns = state.deadline_ns.get();
                let close_ns = now_ns.saturating_add(CLOSE_GRACE.as_nanos() as u64);
                let is_sooner = own_ns != 0 && own_ns < close_ns;
                state
                    .deadline_ns
                    .set(if is_sooner { own_ns } else { close_ns });
            } else {
                conch_net::stop_receiving(state.socket);
            }
        }
    }
}
