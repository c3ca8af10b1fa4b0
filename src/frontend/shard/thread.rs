//! The thread of a shard: its executor, and the task that handles messages of other threads.

use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use conch_engine::{Error, clock};
use conch_sync::{Messages, Receiver};

use super::connection_guard::ConnectionGuard;
use super::link::{Protocol, ShardHandle, ShardMessage};
use super::offload::OffloadThreads;
use super::runtime::{RuntimeOptions, RuntimeThread, Task, Timer, note_spent};
use super::stage::ShardStage;
use super::state::{Shard, ShardContext};
use super::stream::ShardStream;
use crate::options::ShardAffinity;

/// Messages handled before other tasks get their turn: about 50 us.
const MESSAGES_PER_TURN: usize = 256;
/// Until the next turn of the executor, which looks at sockets first.
const PAUSE: Duration = Duration::from_micros(1);
/// The shortest that Linux gives: a shard that wakes up takes its CPU from what computes there, at
/// once, and is done sooner than this.
const TURN_NS: u64 = 100_000;
/// Connections that rest before memory is given back for them: a megabyte.
const RESTS_MIN: usize = 400;
/// Heartbeats without a connection before memory is given back for those that have ended: half a
/// second to five. A client with a connection per request should not pay page faults for each.
const EMPTY_HEARTBEATS: u32 = 5;

/// Spawns the task that serves a connection of the protocol. The protocols are above this module:
/// the caller of [`ShardThread::start`] hands the function down.
pub(crate) type ServeConnection = fn(&Rc<Shard>, ShardStream, ConnectionGuard, Protocol);

/// The handle of a running shard thread.
pub(crate) struct ShardThread {
    pub(crate) link: Arc<ShardHandle>,
    pub(crate) cpu: usize,
    thread: RuntimeThread,
}

impl ShardThread {
    /// Starts a shard on `cpu`, which has `serve` serve its connections.
    ///
    /// # Errors
    /// What the system says: no ring, no thread, no such CPU.
    pub(crate) fn start(
        index: usize,
        cpu: usize,
        context: ShardContext,
        serve: ServeConnection,
    ) -> Result<ShardThread, Error> {
        let (link, receiver) = ShardHandle::new();
        let options = Arc::clone(&context.options);
        let own_link = Arc::clone(&link);
        let threads = OffloadThreads::start(index, &link, options.serves_tls())?;
        // The watchdog widens what begins narrow: memory of the executor is that of its own CPU's
        // node.
        let bound_to = match options.shard_affinity {
            ShardAffinity::Auto | ShardAffinity::Pinned => Some(cpu),
            ShardAffinity::Set => None,
        };
        if let Some(cpu) = bound_to {
            link.bind(cpu);
        }
        let runtime_options = RuntimeOptions {
            thread_name: format!("shard-{index}"),
            cpu: bound_to,
            spins: options.shards_spin,
            long_turns: Arc::clone(link.long_turns()),
        };
        let root = move || Shard::run(index, own_link, receiver, threads, context, serve);
        let thread = RuntimeThread::start(runtime_options, root).map_err(|error| {
            Error::internal(format!(
                "cannot start shard {index} on CPU {cpu}: {}",
                error.message
            ))
        })?;
        Ok(ShardThread { link, cpu, thread })
    }

    /// Ends the shard: what is still open is dropped. Blocks until the thread is gone.
    pub(crate) fn stop(self) -> Result<(), Error> {
        self.link.send(ShardMessage::Stop);
        self.thread
            .join()
            .map_err(|error| Error::internal(format!("a shard ended badly: {}", error.message)))
    }
}

impl Shard {
    /// Runs until a message ends the shard.
    async fn run(
        index: usize,
        link: Arc<ShardHandle>,
        mut receiver: Receiver<ShardMessage>,
        threads: OffloadThreads,
        context: ShardContext,
        serve: ServeConnection,
    ) {
        if let Err(error) = conch_net::affinity::shorten_turns_of_current_thread(TURN_NS) {
            conch_log::warning!("cannot shorten the turns of a shard: {error}");
        }
        link.note_thread();
        let shard = Shard::new(index, link, threads, context);
        let mut taken = receiver.take();
        let mut pause = None;
        poll_fn(|context| shard.pump(serve, &mut receiver, &mut taken, &mut pause, context)).await;
        // Futures that are still pending when the executor ends are never dropped: end them here,
        // so that sockets close and requests are withdrawn. One may spawn another while it ends.
        loop {
            let tasks: Vec<Task> = shard
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
        serve: ServeConnection,
        receiver: &mut Receiver<ShardMessage>,
        taken: &mut Messages<ShardMessage>,
        pause: &mut Option<Timer>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut handled_count = 0;
        let mut reply_count = 0;
        self.set_pump_waker(context.waker());
        if !self.owed_wakes.settle() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            for message in taken.by_ref() {
                match message {
                    ShardMessage::Delivery(delivery) => {
                        reply_count += usize::from(delivery.is_final());
                        let waker = self.in_flight.borrow_mut().deliver(delivery);
                        if let Some(waker) = waker {
                            waker.wake();
                        }
                    }
                    ShardMessage::Connection(socket, protocol) => {
                        self.adopt(socket, protocol, serve)
                    }
                    ShardMessage::Offloaded(done) => {
                        if let Some(waker) = self.offload.finish(done) {
                            waker.wake();
                        }
                    }
                    ShardMessage::Heartbeat => self.answer_heartbeat(),
                    ShardMessage::Retire => self.retire(),
                    ShardMessage::Drain => self.drain(),
                    ShardMessage::Stop => return Poll::Ready(()),
                }
                handled_count += 1;
                if handled_count >= MESSAGES_PER_TURN {
                    // Not by waking itself: glommio has been seen to sleep on a task that did.
                    *pause = Some(Timer::after(PAUSE));
                    break;
                }
            }
            // After the tasks that the replies wake, which give their room back.
            self.admission.wake_firsts(std::mem::take(&mut reply_count));
            if let Some(timer) = pause {
                std::task::ready!(Pin::new(timer).poll(context));
                *pause = None;
                handled_count = 0;
                continue;
            }
            let mut look = || {
                let messages = receiver.take();
                (!messages.is_empty()).then_some(messages)
            };
            let offered = if self.owed_executions.execute() {
                // A core may have been left with it, for longer than it is worth to wait.
                self.yield_policy.forget();
                self.brief_wait.forget_reply();
                look()
            } else {
                self.yield_policy.offer(look)
            };
            if offered.is_some() {
                self.brief_wait.forget_reply();
            }
            if self.owed_executions.has_any() {
                // Sockets come first.
                *pause = Some(Timer::after(PAUSE));
            }
            *taken = match offered.or_else(|| self.brief_wait.wait_for_reply(receiver)) {
                Some(messages) => messages,
                None if pause.is_some() => continue,
                None => std::task::ready!(receiver.poll_take(context)),
            };
        }
    }

    fn set_pump_waker(&self, waker: &Waker) {
        let mut kept = self.pump_waker.borrow_mut();
        if !kept.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *kept = Some(waker.clone());
            self.link.set_pump_waker(waker);
        }
    }

    /// Has the pump look for replies at the end of this turn, whoever notifies.
    pub(super) fn look_at_end_of_turn(&self) {
        self.link.disarm();
        self.wake_pump();
    }

    pub(super) fn wake_pump(&self) {
        if let Some(waker) = &*self.pump_waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn answer_heartbeat(&self) {
        let now_ns = clock::monotonic_ns();
        let mut connections = self.connections.borrow_mut();
        let resting_count = connections.sweep(now_ns, &self.orders);
        drop(connections);
        self.give_back(resting_count);
        let took_ns = clock::monotonic_ns().saturating_sub(now_ns);
        note_spent(ShardStage::Sweep, took_ns);
        self.link.answer(self.in_flight.borrow().len());
    }

    /// Gives memory of connections back to the system, once many rest or none is left, and nothing
    /// else is to be done. Those that were asked by this sweep, `resting_count`, give theirs back
    /// after it.
    fn give_back(&self, resting_count: usize) {
        let is_empty = self.link.connection_count() == 0 && self.in_flight.borrow().len() == 0;
        let empty_count = match is_empty {
            true => self.empty_heartbeat_count.get().saturating_add(1),
            false => 0,
        };
        self.empty_heartbeat_count.set(empty_count);
        if empty_count == EMPTY_HEARTBEATS {
            self.rested_count.set(0);
            conch_memory::unused::give_to_system();
            return;
        }
        let rested_count = self.rested_count.get();
        self.rested_count.set(rested_count + resting_count);
        let is_calm = resting_count == 0 && self.in_flight.borrow().len() == 0;
        if rested_count >= RESTS_MIN && is_calm {
            self.rested_count.set(0);
            conch_memory::unused::give_to_system();
        }
    }

    fn adopt(self: &Rc<Self>, socket: OwnedFd, protocol: Protocol, serve: ServeConnection) {
        let begin_ns = clock::monotonic_ns();
        self.empty_heartbeat_count.set(0);
        let stream = ShardStream::adopt(socket);
        let guard = ConnectionGuard::new(self, stream.socket(), protocol);
        serve(self, stream, guard, protocol);
        let took_ns = clock::monotonic_ns().saturating_sub(begin_ns);
        note_spent(ShardStage::NewConnection, took_ns);
    }
}
