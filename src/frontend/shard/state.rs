//! The state of a shard.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use conch_control::server::Server;
use conch_engine::model::registry::RegistryReader;
use conch_engine::{Completion, clock};
use conch_memory::{Budget, Pool};

use super::admission::{Admission, WaitingShards};
use super::brief_wait::BriefWait;
use super::connections::ConnectionTable;
use super::drain::{DrainFuture, DrainSignal};
use super::frontend_metrics::FrontendMetrics;
use super::in_flight::InFlight;
use super::link::{Protocol, ShardHandle};
use super::offload::{Offload, OffloadThreads};
use super::owed_executions::OwedExecutions;
use super::owed_wakes::OwedWakes;
use super::runtime::{GAINS_BY_BRIEF_WAITS, Task};
use super::slab::Slab;
use super::spares::SpareBuffers;
use super::yield_policy::YieldPolicy;
use crate::access_log::AccessLog;
use crate::dashboard::feed::DashboardFeed;
use crate::options::FrontendOptions;
use crate::pressure::PressureOrders;
use crate::tls::Handshakes;
use crate::trace::Tracing;

/// State shared by everything that runs on one shard.
pub struct Shard {
    pub server: Arc<Server>,
    pub options: Arc<FrontendOptions>,
    pub pool: Arc<Pool>,
    pub budget: Arc<Budget>,
    pub(crate) tracing: Arc<Tracing>,
    pub(crate) spares: SpareBuffers,
    pub(super) reader: RefCell<RegistryReader>,
    pub(super) in_flight: RefCell<InFlight>,
    pub(super) admission: Admission,
    pub(super) connections: RefCell<ConnectionTable>,
    pub(super) tasks: RefCell<Slab<Option<Task>>>,
    pub(super) orders: Arc<PressureOrders>,
    pub(crate) metrics: Arc<FrontendMetrics>,
    pub(super) link: Arc<ShardHandle>,
    pub(super) completion: Arc<dyn Completion>,
    pub(super) yield_policy: YieldPolicy,
    pub(super) brief_wait: BriefWait,
    pub(super) owed_executions: OwedExecutions,
    pub(super) owed_wakes: OwedWakes,
    pub(super) pump_waker: RefCell<Option<Waker>>,
    /// Connections that were asked to rest, and whose memory the system has not been given.
    pub(super) rested_count: Cell<usize>,
    /// Heartbeats since it had a connection.
    pub(super) empty_heartbeat_count: Cell<u32>,
    /// Begins before the drain, or with it.
    pub(super) retirement: DrainSignal,
    pub(super) drain: DrainSignal,
    pub(super) offload: Offload,
    /// Whose task is polled: the key of its connection.
    pub(super) current: Cell<u64>,
    pub(crate) handshakes: Handshakes,
    pub(crate) access_log: AccessLog,
    /// Where the events of the operator's page come from, if it is served.
    pub(crate) dashboard: Option<Arc<DashboardFeed>>,
}

/// The parts of the process that all shards share.
#[derive(Clone)]
pub(crate) struct ShardContext {
    pub(crate) options: Arc<FrontendOptions>,
    pub(crate) server: Arc<Server>,
    pub(crate) tracing: Arc<Tracing>,
    pub(crate) orders: Arc<PressureOrders>,
    pub(crate) waiting_shards: Arc<WaitingShards>,
    pub(crate) metrics: Arc<FrontendMetrics>,
    pub(crate) dashboard: Option<Arc<DashboardFeed>>,
}

impl Shard {
    pub(super) fn new(
        index: usize,
        link: Arc<ShardHandle>,
        threads: OffloadThreads,
        context: ShardContext,
    ) -> Rc<Shard> {
        let ShardContext {
            options,
            server,
            tracing,
            orders,
            waiting_shards,
            metrics,
            dashboard,
        } = context;
        let handshakes_max = options
            .grpc_connections
            .handshakes_max
            .div_ceil(options.shard_cpus.len().max(1));
        let completion: Arc<dyn Completion> = Arc::clone(&link) as Arc<dyn Completion>;
        Rc::new(Shard {
            pool: Arc::clone(server.pool()),
            budget: Arc::clone(server.budget()),
            reader: RefCell::new(server.registry().reader()),
            in_flight: RefCell::new(InFlight::new(options.in_flight_max)),
            admission: Admission::new(options.in_flight_max, waiting_shards, index),
            connections: RefCell::new(ConnectionTable::default()),
            tasks: RefCell::new(Slab::new()),
            completion,
            yield_policy: YieldPolicy::new(!options.shards_spin),
            brief_wait: BriefWait::new(GAINS_BY_BRIEF_WAITS && !options.shards_spin),
            owed_executions: OwedExecutions::new(!options.shards_spin),
            owed_wakes: OwedWakes::new(),
            pump_waker: RefCell::new(None),
            rested_count: Cell::new(0),
            // Before the first connection there is nothing to give back.
            empty_heartbeat_count: Cell::new(u32::MAX),
            retirement: DrainSignal::new(),
            drain: DrainSignal::new(),
            offload: Offload::new(threads),
            current: Cell::new(0),
            handshakes: Handshakes::new(handshakes_max),
            spares: SpareBuffers::default(),
            access_log: AccessLog::new(options.access_log_rate),
            server,
            tracing,
            options,
            orders,
            metrics,
            dashboard,
            link,
        })
    }

    /// Blocks shortly until the client of `socket` sends something, where the shard has nothing
    /// else to wait for; see [`BriefWait`]. Whether there is something to receive.
    pub(crate) fn wait_for_request(&self, socket: RawFd) -> bool {
        self.brief_wait.wait_for_request(self.is_alone(0), socket)
    }

    /// Whether the shard has one connection, of HTTP, and so many requests in flight.
    pub(super) fn is_alone(&self, in_flight_count: usize) -> bool {
        self.in_flight.borrow().len() == in_flight_count
            && self.link.connection_count() == 1
            && self.link.connection_count_of(Protocol::Http) == 1
    }

    /// Has connections end as soon as their clients can do without: new ones go to another process.
    pub(super) fn retire(&self) {
        // Marked first: a connection that ends its request now shall not take on another.
        self.retirement.begin();
        let mut connections = self.connections.borrow_mut();
        connections.close_idle(clock::monotonic_ns());
    }

    /// Begins to drain.
    pub(super) fn drain(&self) {
        self.drain.begin();
        self.retire();
    }

    /// Whether connections are to end after the request that they serve now, and what they are
    /// asked until then is answered.
    pub fn is_retiring(&self) -> bool {
        self.retirement.has_begun()
    }

    /// Completes when connections are to end, the later ones as soon as they have begun.
    pub fn retired(&self) -> DrainFuture<'_> {
        self.retirement.wait()
    }

    /// Whether no more is taken on, but what connections have sent already.
    pub fn is_draining(&self) -> bool {
        self.drain.has_begun()
    }

    /// Completes when the shard begins to drain.
    pub fn drained(&self) -> DrainFuture<'_> {
        self.drain.wait()
    }
}
