//! A shard: one thread, at home on a CPU, with one io_uring executor and the connections that the
//! acceptors dealt to it.
//!
//! The only module that names the runtime. Rules that it keeps, each learnt the hard way: one task
//! queue of the default kind (others lose wake-ups), no cancelled accepts (accepting is a thread's
//! business), a long preempt timer, every task behind `catch_unwind` (a panic would end the
//! executor), every task's handle kept (futures pending at the end are never dropped otherwise),
//! and no borrow of shard state across a spawn, which polls the new task at once.

mod connections;
mod drain;
mod ensure_loaded;
pub(crate) mod link;
pub(crate) mod offload;
mod reply;
mod shares;
mod slab;
mod spares;
mod stream;
mod timer;
mod yield_policy;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use conch_control::server::Server;
use conch_engine::model::registry::RegistryReader;
use conch_engine::{
    Completion, Draft, Error, InFlightPermit, ModelVersion, Rejected, RequestHandle, Tenant,
    Timestamps, admission, clock,
};
use conch_memory::{Budget, Pool};
use conch_sync::{Messages, Receiver};
use futures_lite::FutureExt;
use glommio::{CpuSet, LocalExecutorBuilder, Placement, Task};

use crate::pressure::PressureOrders;
use crate::tls::Handshakes;
use crate::trace::Tracing;
use crate::{FrontendOptions, ShardAffinity};
use connections::ConnectionTable;
use drain::{DrainFuture, DrainSignal};
use link::{Protocol, ShardHandle, ShardMessage};
use offload::{Offload, OffloadThreads};
use reply::InFlight;
use yield_policy::YieldPolicy;

pub use connections::{ConnectionGuard, WaitReason};
pub(crate) use slab::Slab;

pub use ensure_loaded::{EnsuredModel, ModelLease};
pub use reply::{ResponseFuture, ResponseQueue, StreamRequest};
pub use shares::ConnectionShares;
pub use spares::SpareBuffers;
pub use stream::ShardStream;
pub use timer::Timer;

/// Reloads of one model that a request follows. A reload takes longer than all steps of admission
/// together.
const SUCCESSORS_MAX: usize = 8;
/// Messages handled before other tasks get their turn: about 50 us.
const LETTERS_PER_TURN: usize = 256;
/// After this long a turn ends though tasks keep waking themselves; no task of ours does (see
/// [`yield_now`]), so it is a backstop.
///
/// It must not be short. The executor arms this timer, then asks "has it fired?" before it runs the
/// first task, and if so goes to sleep with tasks ready to run, as if there were none
/// (`run_task_queues` of glommio 0.9 returns "nothing ran"). With 500 us that happens whenever the
/// thread loses its CPU between the two: within 20 s at 3,000 requests/s on a shared CPU. With 100
/// ms the thread would have to be off its CPU for as long, and the watchdog's pokes bound what is
/// left.
const PREEMPT_AFTER: Duration = Duration::from_millis(100);
/// How long an idle shard looks for work before it sleeps, where it may spin at all.
const SPIN: Duration = Duration::from_micros(20);
/// Registered with the ring by each executor. We do no file I/O: the smallest that the runtime
/// takes.
const IO_MEMORY_BYTES: usize = 64 << 10;

/// Completions after which the executor ends a turn, as if its preempt timer had fired, with the
/// same danger (see [`PREEMPT_AFTER`]): more than the connections of a busy shard bring at once.
/// Costs 100 KiB of kernel memory per ring.
const RING_DEPTH: usize = 1024;

/// The shortest that Linux gives: a shard that wakes up takes its CPU from what computes there, at
/// once, and is done sooner than this.
const TURN_NS: u64 = 100_000;

/// State shared by everything that runs on one shard.
pub struct Shard {
    pub server: Arc<Server>,
    pub options: Arc<FrontendOptions>,
    pub pool: Arc<Pool>,
    pub budget: Arc<Budget>,
    pub(crate) tracing: Arc<Tracing>,
    pub(crate) spares: SpareBuffers,
    reader: RefCell<RegistryReader>,
    in_flight: RefCell<InFlight>,
    connections: RefCell<ConnectionTable>,
    tasks: RefCell<Slab<Option<Task<()>>>>,
    orders: Arc<PressureOrders>,
    link: Arc<ShardHandle>,
    completion: Arc<dyn Completion>,
    yield_policy: YieldPolicy,
    pump_waker: RefCell<Option<Waker>>,
    drain: DrainSignal,
    offload: Offload,
    /// Whose task is polled: the key of its connection.
    current: Cell<u64>,
    pub(crate) handshakes: Handshakes,
}

/// The handle of a running shard thread.
pub(crate) struct ShardThread {
    pub(crate) link: Arc<ShardHandle>,
    pub(crate) cpu: usize,
    thread: glommio::ExecutorJoinHandle<()>,
}

impl ShardThread {
    /// Starts a shard on `cpu`.
    ///
    /// # Errors
    /// What the runtime says: locked memory, or no such CPU.
    pub(crate) fn start(
        index: usize,
        cpu: usize,
        options: &Arc<FrontendOptions>,
        server: &Arc<Server>,
        tracing: &Arc<Tracing>,
        orders: &Arc<PressureOrders>,
    ) -> Result<ShardThread, Error> {
        let (link, receiver) = ShardHandle::new();
        let spin = if options.shards_spin {
            SPIN
        } else {
            Duration::ZERO
        };
        let (own_link, own_options, own_server) =
            (Arc::clone(&link), Arc::clone(options), Arc::clone(server));
        let (own_tracing, own_orders) = (Arc::clone(tracing), Arc::clone(orders));
        let threads = OffloadThreads::start(index, &link, options.grpc_tls.is_some())?;
        // The watchdog widens what begins narrow: memory of the executor is that of its own CPU's
        // node.
        let placement = match options.shard_affinity {
            ShardAffinity::Auto | ShardAffinity::Pinned => {
                // The runtime looks the CPU up there, and panics without it.
                CpuSet::online().map_err(|error| {
                    Error::internal(format!(
                        "cannot read the CPUs of this machine from /sys ({error}): mount it (mount -t sysfs sysfs /sys), or give --shard-affinity=set"
                    ))
                })?;
                Placement::Fixed(cpu)
            }
            ShardAffinity::Set => Placement::Unbound,
        };
        let thread = LocalExecutorBuilder::new(placement)
            .name(&format!("shard-{index}"))
            .io_memory(IO_MEMORY_BYTES)
            .ring_depth(RING_DEPTH)
            .preempt_timer(PREEMPT_AFTER)
            .spin_before_park(spin)
            .spawn(move || {
                let shared = (own_options, own_server, own_tracing, own_orders);
                Shard::run(own_link, receiver, threads, shared)
            })
            .map_err(|error| {
                Error::internal(format!("cannot start shard {index} on CPU {cpu}: {error}"))
            })?;
        Ok(ShardThread { link, cpu, thread })
    }

    /// Ends the shard: what is still open is dropped. Blocks until the thread is gone.
    pub(crate) fn stop(self) -> Result<(), Error> {
        self.link.send(ShardMessage::Stop);
        self.thread
            .join()
            .map_err(|error| Error::internal(format!("a shard ended badly: {error}")))
    }
}

impl Shard {
    async fn run(
        link: Arc<ShardHandle>,
        mut receiver: Receiver<ShardMessage>,
        threads: OffloadThreads,
        (options, server, tracing, orders): (
            Arc<FrontendOptions>,
            Arc<Server>,
            Arc<Tracing>,
            Arc<PressureOrders>,
        ),
    ) {
        if let Err(error) = conch_net::affinity::shorten_turns_of_current_thread(TURN_NS) {
            conch_log::warning!("cannot shorten the turns of a shard: {error}");
        }
        link.note_thread();
        let handshakes_max = options
            .grpc_connections
            .handshakes_max
            .div_ceil(options.shard_cpus.len().max(1));
        let completion: Arc<dyn Completion> = Arc::clone(&link) as Arc<dyn Completion>;
        let shard = Rc::new(Shard {
            pool: Arc::clone(server.pool()),
            budget: Arc::clone(server.budget()),
            reader: RefCell::new(server.registry().reader()),
            in_flight: RefCell::new(InFlight::new(options.in_flight_max)),
            connections: RefCell::new(ConnectionTable::default()),
            tasks: RefCell::new(Slab::new()),
            completion,
            yield_policy: YieldPolicy::new(!options.shards_spin),
            pump_waker: RefCell::new(None),
            drain: DrainSignal::new(),
            offload: Offload::new(threads),
            current: Cell::new(0),
            handshakes: Handshakes::new(handshakes_max),
            spares: SpareBuffers::default(),
            server,
            tracing,
            options,
            orders,
            link,
        });
        let mut taken = receiver.take();
        let mut pause = None;
        std::future::poll_fn(|context| shard.pump(&mut receiver, &mut taken, &mut pause, context))
            .await;
        // Futures that are still pending when the executor ends are never dropped: end them here,
        // so that sockets close and requests are withdrawn. One may spawn another while it ends.
        loop {
            let tasks: Vec<Task<()>> = shard
                .tasks
                .borrow_mut()
                .drain()
                .into_iter()
                .flatten()
                .collect();
            if tasks.is_empty() {
                break;
            }
            for task in tasks {
                task.cancel().await;
            }
        }
    }

    /// Takes in what other threads sent. Ready when the shard is to end.
    fn pump(
        self: &Rc<Self>,
        receiver: &mut Receiver<ShardMessage>,
        taken: &mut Messages<ShardMessage>,
        pause: &mut Option<Timer>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut handled_count = 0;
        self.keep_pump_waker(context.waker());
        loop {
            for message in taken.by_ref() {
                match message {
                    ShardMessage::Delivery(delivery) => {
                        let waker = self.in_flight.borrow_mut().book(delivery);
                        if let Some(waker) = waker {
                            waker.wake();
                        }
                    }
                    ShardMessage::Connection(socket, protocol) => self.serve(socket, protocol),
                    ShardMessage::Offloaded(done) => {
                        if let Some(waker) = self.offload.finish(done) {
                            waker.wake();
                        }
                    }
                    ShardMessage::Poke => {
                        let now_ns = clock::monotonic_ns();
                        self.connections.borrow_mut().sweep(now_ns, &self.orders);
                        self.link.answer(self.in_flight.borrow().len());
                    }
                    ShardMessage::Drain => self.drain(),
                    ShardMessage::Stop => return Poll::Ready(()),
                }
                handled_count += 1;
                if handled_count >= LETTERS_PER_TURN {
                    // Not by waking ourselves: the executor has been seen to sleep on a task that
                    // did.
                    *pause = Some(Timer::after(Duration::from_micros(1)));
                    break;
                }
            }
            if let Some(timer) = pause {
                std::task::ready!(Pin::new(timer).poll(context));
                *pause = None;
                handled_count = 0;
                continue;
            }
            let offered = self.yield_policy.offer(|| {
                let messages = receiver.take();
                (!messages.is_empty()).then_some(messages)
            });
            *taken = match offered {
                Some(messages) => messages,
                None => std::task::ready!(receiver.poll_take(context)),
            };
        }
    }

    fn keep_pump_waker(&self, waker: &Waker) {
        let mut kept = self.pump_waker.borrow_mut();
        if !kept.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *kept = Some(waker.clone());
            self.link.keep_pump_waker(waker);
        }
    }

    fn wake_pump(&self) {
        if let Some(waker) = &*self.pump_waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn serve(self: &Rc<Self>, socket: OwnedFd, protocol: Protocol) {
        let stream = ShardStream::adopt(socket);
        let guard = ConnectionGuard::new(self, stream.socket(), protocol);
        match protocol {
            Protocol::Http => self.spawn(crate::http::serve(Rc::clone(self), stream, guard)),
            Protocol::Metrics => self.spawn(crate::metrics::serve(Rc::clone(self), stream, guard)),
            Protocol::SageMaker => {
                self.spawn(crate::sagemaker::serve(Rc::clone(self), stream, guard))
            }
            Protocol::VertexAi => {
                self.spawn(crate::vertex_ai::serve(Rc::clone(self), stream, guard))
            }
            Protocol::Grpc => self.spawn(crate::grpc::serve(Rc::clone(self), stream, guard)),
        }
    }

    fn drain(&self) {
        // Marked first: a connection that ends its request now shall not take on another.
        self.drain.begin();
        self.connections.borrow_mut().close_idle();
    }

    /// Whether connections are to end after the request that they serve now.
    pub fn is_draining(&self) -> bool {
        self.drain.has_begun()
    }

    /// Completes when the shard begins to drain.
    pub fn drained(&self) -> DrainFuture<'_> {
        self.drain.wait()
    }

    /// The model version asked for (`None`: the highest ready one), or upstream's refusal. Does not
    /// block.
    pub fn find(&self, name: &str, version: Option<i64>) -> Result<Arc<ModelVersion>, Error> {
        self.reader
            .borrow_mut()
            .load()
            .find(name, version)
            .map(Arc::clone)
    }

    /// Checks `draft` against the model and puts it into the model's queue. Does not block.
    ///
    /// `version` is what was asked for when `model` was found: if that has been taken out of
    /// service meanwhile, the request goes to its successor. `deadline_ns` (monotonic) is the
    /// client's own: past it the request is withdrawn and the reply is CANCELLED.
    ///
    /// # Errors
    /// Whatever admission refuses; UNAVAILABLE if the shard has too many requests in flight or the
    /// model's queue is full.
    pub fn infer(
        self: &Rc<Self>,
        model: &Arc<ModelVersion>,
        version: Option<i64>,
        draft: Draft<'_>,
        deadline_ns: Option<u64>,
    ) -> Result<ResponseFuture, Error> {
        let (slot, handle) = self.begin(model, version, draft, deadline_ns, None)?;
        Ok(ResponseFuture::new(
            self,
            slot,
            handle,
            deadline_ns.map(Timer::at),
        ))
    }

    /// [`Shard::infer`] for streams: whatever is delivered for the request goes to `responses`, and
    /// the caller sees to its deadline.
    ///
    /// # Errors
    /// As [`Shard::infer`].
    pub fn infer_into(
        self: &Rc<Self>,
        responses: &Rc<ResponseQueue>,
        model: &Arc<ModelVersion>,
        version: Option<i64>,
        draft: Draft<'_>,
        deadline_ns: Option<u64>,
    ) -> Result<StreamRequest, Error> {
        let (slot, handle) = self.begin(
            model,
            version,
            draft,
            deadline_ns,
            Some(Rc::clone(responses)),
        )?;
        Ok(StreamRequest::new(self, slot, handle))
    }

    fn begin(
        self: &Rc<Self>,
        model: &Arc<ModelVersion>,
        version: Option<i64>,
        mut draft: Draft<'_>,
        deadline_ns: Option<u64>,
        responses: Option<Rc<ResponseQueue>>,
    ) -> Result<(u64, RequestHandle), Error> {
        let lease = draft.lease.take();
        let permit = self.enter(model, version, &draft, lease)?;
        let slot = self
            .in_flight
            .borrow_mut()
            .reserve(responses)
            .ok_or_else(|| Error::unavailable("the server has too many requests in flight"))?;
        let timestamps = Timestamps {
            request_start_ns: clock::monotonic_ns(),
            queue_start_ns: 0,
            deadline_ns: deadline_ns.unwrap_or(0),
        };
        let is_courteous = self.yield_policy.wish();
        if is_courteous {
            // The pump looks at the end of this turn, whoever notifies.
            self.link.disarm();
            self.wake_pump();
        }
        for chunk in draft.inputs.iter().flat_map(|input| &input.chunks) {
            chunk.settle();
        }
        let submitted =
            admission::admit_reserved(permit, draft, &self.completion, slot, timestamps).and_then(
                |handle| {
                    let model = &handle.shared().model;
                    model.submit(Arc::clone(&handle)).map(|()| handle)
                },
            );
        match submitted {
            Ok(handle) => Ok((slot, handle)),
            Err(error) => {
                self.in_flight.borrow_mut().release(slot);
                Err(error)
            }
        }
    }

    /// A place among the live requests of `model`, or of what has taken its place in the registry.
    fn enter(
        &self,
        model: &Arc<ModelVersion>,
        version: Option<i64>,
        draft: &Draft<'_>,
        lease: ModelLease,
    ) -> Result<InFlightPermit, Error> {
        let pass = match self.server.admission() {
            Some(admission) => Some(admission.enter(model, draft.id, draft.tenant)?),
            None => None,
        };
        // What kind of model it is was looked at when the first was found.
        let lease = lease.filter(|lease| lease.config.is_decoupled == model.config.is_decoupled);
        let (id, flags) = (&draft.correlation_id, draft.sequence_flags);
        let mut entered = match (
            InFlightPermit::of_draining(model, version, id, flags),
            lease,
        ) {
            (Some(place), _) => place,
            (None, Some(lease)) => Ok(*lease),
            (None, None) => InFlightPermit::new(model),
        };
        for _ in 0..SUCCESSORS_MAX {
            if !matches!(entered, Err(Rejected::Retired)) {
                break;
            }
            let successor = self.find(&model.name, version)?;
            // As above.
            if successor.config.is_decoupled != model.config.is_decoupled {
                break;
            }
            entered = InFlightPermit::of_sequence(&successor, version, id, flags);
        }
        let mut permit = entered.map_err(|why| admission::refuse(model, draft, why))?;
        if let Some(pass) = pass {
            permit.carry(pass);
        }
        Ok(permit)
    }

    /// Who sends a request, by the header that says so; none where nobody wants to know. `find`
    /// finds a header's value.
    pub fn tenant<'a>(&self, find: impl FnOnce(&str) -> Option<&'a [u8]>) -> Option<Tenant> {
        let admission = self.server.admission()?;
        let header = self.options.tenant_header.as_deref()?;
        admission.tenant(find(header).unwrap_or_default())
    }

    /// Runs `future` on this shard. A panic ends only that future. It is polled for the first time
    /// before this returns: hold no borrow of anything that it uses.
    pub fn spawn(self: &Rc<Self>, future: impl Future<Output = ()> + 'static) {
        let key = self.tasks.borrow_mut().insert(None);
        let shard = Rc::clone(self);
        // Boxed, because an async block has room for what it captures and once more for what it
        // awaits.
        let mut future = Box::pin(AssertUnwindSafe(future).catch_unwind());
        let task = glommio::spawn_local(async move {
            let polled = |context: &mut Context<'_>| {
                // Another connection's task may be in the middle of spawning this one.
                let outer = shard.current.replace(key);
                let polled = future.as_mut().poll(context);
                shard.current.set(outer);
                polled
            };
            if poll_fn(polled).await.is_err() {
                conch_log::error!("a task of a shard panicked; its connection is closed");
            }
            let own = shard.tasks.borrow_mut().remove(key);
            if let Some(Some(own)) = own {
                own.detach();
            }
        });
        let mut tasks = self.tasks.borrow_mut();
        match tasks.get_mut(key) {
            Some(place) => *place = Some(task),
            // It is finished already.
            None => drop(task.detach()),
        }
    }

    /// Runs `work` on a thread where it may take long, off the shard. Connections share fairly:
    /// `cost_bytes` says how much work it is, in bytes of JSON that take as long. A panic of it is
    /// one of the caller; dropping the future withdraws work that was not begun.
    pub async fn offload<T: Send + 'static>(
        &self,
        cost_bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.offload.run(self.current.get(), cost_bytes, work).await
    }

    /// Runs a step of a TLS handshake with `peer`, apart from [`Shard::offload`]. Peers share
    /// fairly; the first steps come last.
    pub(crate) async fn offload_handshake<T: Send + 'static>(
        &self,
        peer: IpAddr,
        is_first: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.offload.run_handshake(peer, is_first, work).await
    }
}

/// Ends the task's turn by way of a timer that is due at once, so that the whole shard looks at its
/// sockets, wake-ups and timers. For work that comes in slices.
///
/// A task that wakes itself instead (as `yield_now` does) is run again in the same turn of the
/// executor, before it looks at anything else.
pub async fn yield_now() {
    Timer::after(Duration::from_micros(1)).await;
}
