//! The core of a device: one thread that drives the instances of all its models.
//!
//! In each round every model has one turn ([`StreamCore::step`]): what its device has done is
//! answered, and one batch is enqueued at most. So none waits for longer than one turn of each
//! other. When nobody has anything to do, the thread is in the idle sets of all queues with room,
//! and sleeps until an arrival, a deadline or the next look.
//!
//! Turns must not block. One that does holds up the others for two looks of the timer thread, which
//! are [`BLOCKED_NS_MAX`] apart: then the others get a new core, and the model keeps this one
//! ([`CoreSharing`]). Whoever has a turn holds the model's lock, and a thread looks who drives the
//! model once it has the lock: so a thread that comes back touches nothing that was taken from it.
//!
//! [`BLOCKED_NS_MAX`]: crate::execution::streams::sharing::BLOCKED_NS_MAX
//! [`CoreSharing`]: crate::execution::streams::sharing::CoreSharing

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, mpsc};
use std::thread::Thread;

use conch_sync::{NEVER_NS, SPIN_MAX_NS, Spin, park_current_until};

use crate::Error;
use crate::clock::{Monotonic, monotonic_ns};
use crate::execution::queue::ModelQueue;
use crate::execution::seat::panicked;
use crate::execution::streams::device_cores::{DeviceKey, DeviceTable};
use crate::execution::streams::sharing::{CoreId, MemberId, RoundRobin};
use crate::execution::streams::stream_core::{StreamCore, StreamStep};
use crate::execution::streams::stream_instance::StreamInstance;
use crate::threads::placement::Placement;
use crate::threads::timer_thread::TimerThread;

/// What the thread of a core needs.
#[derive(Clone)]
pub(crate) struct CoreStart {
    pub(crate) placement: Placement,
    pub(crate) key: DeviceKey,
}

/// How long until a core tries again to drive a model that another thread has not come back from.
const HELD_STEP_NS: u64 = 5_000_000;

pub(crate) type DeviceMembers = Vec<Arc<DeviceMember>>;

/// One thread, and what others know of it.
pub(crate) struct DeviceCore {
    start: CoreStart,
    id: CoreId,
    thread: OnceLock<Thread>,
    /// It drives other models than it knows of, or has to look after one.
    is_notified: AtomicBool,
    /// Rises by 2 with each round, and by 1 as a turn begins and ends: odd during a turn.
    turn: AtomicU64,
    /// Whose turn it is, or was.
    current: AtomicU64,
    /// The timer thread looks at it from time to time.
    is_watched: AtomicBool,
}

/// A model's part of a core, and who drives it.
pub(crate) struct DeviceMember {
    id: MemberId,
    queue: Arc<ModelQueue>,
    /// Its number as a core of that queue.
    index: usize,
    /// The core that drives it. Changes under the lock of the table, without that of `state`.
    core_id: AtomicU64,
    /// Held during a turn. Only threads that a turn was taken from ever contend for it.
    state: Mutex<MemberState>,
}

struct MemberState {
    /// None once it has ended.
    core: Option<Box<StreamCore>>,
    /// The core whose thread it was last driven by.
    attached: CoreId,
    ended: mpsc::Sender<Vec<StreamInstance>>,
}

/// Why a model has no turn on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoTurn {
    /// Another core drives it, or it has ended.
    IsAway,
    /// The thread that drove it before has not come back from it.
    IsHeld,
}

impl DeviceMember {
    pub(crate) fn new(
        id: MemberId,
        core_id: CoreId,
        core: Box<StreamCore>,
        ended: mpsc::Sender<Vec<StreamInstance>>,
    ) -> DeviceMember {
        let (queue, index) = core.address();
        DeviceMember {
            id,
            queue: Arc::clone(queue),
            index,
            core_id: AtomicU64::new(core_id),
            state: Mutex::new(MemberState {
                core: Some(core),
                attached: 0,
                ended,
            }),
        }
    }

    pub(crate) fn id(&self) -> MemberId {
        self.id
    }

    pub(crate) fn model_name(&self) -> &str {
        &self.queue.config().name
    }

    pub(crate) fn core_id(&self) -> CoreId {
        self.core_id.load(Ordering::Acquire)
    }

    /// From its next turn on another core drives it.
    pub(crate) fn move_to(&self, core_id: CoreId) {
        self.core_id.store(core_id, Ordering::Release);
    }

    fn is_called(&self) -> bool {
        self.queue.is_called(self.index)
    }

    /// For the core that drives it.
    fn enter(&self, core_id: CoreId) -> Result<MutexGuard<'_, MemberState>, NoTurn> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(NoTurn::IsHeld),
        };
        if self.core_id() != core_id || state.core.is_none() {
            return Err(NoTurn::IsAway);
        }
        if state.attached != core_id {
            state.attached = core_id;
            if let Some(core) = &mut state.core {
                core.move_here();
            }
        }
        Ok(state)
    }
}

impl DeviceCore {
    pub(crate) fn new(start: CoreStart, id: CoreId) -> DeviceCore {
        DeviceCore {
            start,
            id,
            thread: OnceLock::new(),
            is_notified: AtomicBool::new(true),
            turn: AtomicU64::new(0),
            current: AtomicU64::new(0),
            is_watched: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> CoreId {
        self.id
    }

    pub(crate) fn start(&self) -> &CoreStart {
        &self.start
    }

    pub(crate) fn key(&self) -> &DeviceKey {
        &self.start.key
    }

    pub(crate) fn device_name(&self) -> String {
        self.key().device_name()
    }

    pub(crate) fn thread_name(&self) -> String {
        format!("gpu-{}-core", self.key().device_id)
    }

    pub(crate) fn timer_thread(&self) -> &Arc<TimerThread> {
        &self.start.placement.timer_thread
    }

    pub(crate) fn set_thread(&self, thread: &Thread) {
        // Failure: it was set.
        let _ = self.thread.set(thread.clone());
    }

    /// Has it look which models it drives.
    pub(crate) fn notify(&self) {
        self.is_notified.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The count of rounds and turns.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Acquire)
    }

    pub(crate) fn current_member(&self) -> MemberId {
        self.current.load(Ordering::Relaxed)
    }

    /// True for the first that wants it watched.
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.load(Ordering::Relaxed) && !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Ends the watch of a core whose count is `seen`. False if it has gone on: then it is watched
    /// on.
    pub(crate) fn end_watch(&self, seen: u64) -> bool {
        self.is_watched.store(false, Ordering::Relaxed);
        // Pairs with the fence of a round: that sees the end of the watch, or we see the round.
        fence(Ordering::SeqCst);
        self.turn() == seen || !self.begin_watch()
    }

    /// The life of its thread: until it drives no model any more.
    pub(crate) fn run(self: Arc<Self>, table: &Arc<DeviceTable>) {
        let key = self.key();
        let placement = &self.start.placement;
        let place = placement.of(DeviceKey::KIND, key.device_id, &key.host_policy);
        place.apply();
        let policies = &placement.host_policies;
        if let Err(error) = policies.bind_current_thread(&key.host_policy) {
            // The threads that made the instances could.
            conch_log::warning!("a core of {}: {error}", self.device_name());
        }
        let mut spin = match place.spins {
            true => Spin::up_to(SPIN_MAX_NS),
            false => Spin::OFF,
        };
        let mut members = DeviceMembers::new();
        loop {
            if self.is_notified.swap(false, Ordering::Acquire) {
                match table.members_of(&self) {
                    Some(present) => members = present,
                    None => return,
                }
            }
            if !self.serve_round(table, &members) {
                self.wait(table, &members, &mut spin);
            }
        }
    }

    /// Gives each model its turn. Returns whether there may be more to do at once.
    fn serve_round(self: &Arc<Self>, table: &Arc<DeviceTable>, members: &DeviceMembers) -> bool {
        self.turn.fetch_add(2, Ordering::Release);
        fence(Ordering::SeqCst);
        // Alone it holds nobody up.
        if members.len() > 1 && self.begin_watch() {
            table.watch_later(self);
        }
        let mut round = RoundRobin::default();
        while let Some(member) = round.next(members) {
            if self.give_turn(table, member, StreamCore::step) == Ok(StreamStep::Busy) {
                round.note_busy();
            }
        }
        round.is_busy()
    }

    /// Sleeps until somebody has something to do, unless somebody has it now.
    fn wait(&self, table: &Arc<DeviceTable>, members: &DeviceMembers, spin: &mut Spin) {
        let mut until_ns = Some(NEVER_NS);
        for member in members {
            let begun = match self.give_turn(table, member, StreamCore::begin_wait) {
                Ok(begun) => begun,
                Err(NoTurn::IsAway) => continue,
                Err(NoTurn::IsHeld) => Some(monotonic_ns() + HELD_STEP_NS),
            };
            until_ns = until_ns.zip(begun).map(|(known, found)| known.min(found));
            if until_ns.is_none() {
                break;
            }
        }
        match until_ns {
            Some(until_ns) => {
                park_current_until(until_ns, &Monotonic, spin, || {
                    self.is_notified.load(Ordering::Relaxed)
                        || members.iter().any(|member| member.is_called())
                });
            }
            None => std::hint::spin_loop(),
        }
        for member in members {
            // Failure: another core drives it, which ends the wait, or it has ended.
            let _ = self.give_turn(table, member, StreamCore::end_wait);
        }
    }

    /// Calls `act` in a turn of `member`.
    fn give_turn<R: TurnOutcome>(
        &self,
        table: &Arc<DeviceTable>,
        member: &DeviceMember,
        act: fn(&mut StreamCore) -> R,
    ) -> Result<R, NoTurn> {
        let mut state = member.enter(self.id)?;
        let core = state.core.as_mut().ok_or(NoTurn::IsAway)?;
        self.current.store(member.id, Ordering::Relaxed);
        self.turn.fetch_add(1, Ordering::Release);
        let acted = catch_unwind(AssertUnwindSafe(|| act(core)));
        self.turn.fetch_add(1, Ordering::Release);
        let apart_reason = core.take_apart_reason();
        let outcome = match acted {
            Ok(outcome) if !outcome.is_end() => outcome,
            ended => {
                let core = state.core.take();
                if let Err(panic) = ended {
                    let error = panicked(&*panic);
                    conch_log::error!(
                        "a core of {} gives up model '{}': {}",
                        self.device_name(),
                        member.model_name(),
                        error.message
                    );
                    member.queue.fail(Error::internal(error.message));
                }
                let instances = core.map_or_else(Vec::new, |core| core.into_instances());
                // Failure: nobody waits for them, so they end here.
                let _ = state.ended.send(instances);
                drop(state);
                table.leave(self, member.id);
                return Err(NoTurn::IsAway);
            }
        };
        drop(state);
        if let Some(reason) = apart_reason {
            table.set_apart(self, member, reason);
        }
        Ok(outcome)
    }
}

/// What a turn returns.
trait TurnOutcome {
    /// The model has nothing more to do, for ever.
    fn is_end(&self) -> bool;
}

impl TurnOutcome for StreamStep {
    fn is_end(&self) -> bool {
        *self == StreamStep::Ended
    }
}

/// Until when the thread may sleep.
impl TurnOutcome for Option<u64> {
    fn is_end(&self) -> bool {
        false
    }
}

/// Of a wait that ends.
impl TurnOutcome for () {
    fn is_end(&self) -> bool {
        false
    }
}
