//! The cores of all GPUs of a server: who drives which model's instances. One lock, which is held
//! for moments, by threads that come, go or move; no batch takes it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};

use conch_config::InstanceKind;
use conch_log::LogLimiter;
use conch_sync::Spin;

use crate::clock::monotonic_ns;
use crate::execution::streams::device_core::{CoreStart, DeviceCore, DeviceMember, DeviceMembers};
use crate::execution::streams::sharing::{
    ApartReason, BLOCKED_NS_MAX, CoreActivity, CoreId, CoreSharing, MemberId,
};
use crate::execution::streams::stream_core::StreamCore;
use crate::execution::streams::stream_instance::StreamInstance;
use crate::threads::placement::Placement;

/// Models whose instances are on one GPU share one thread ([`DeviceCore`]), if they run under one
/// host policy: that says which CPUs and whose memory the thread uses.
#[derive(Default)]
pub struct DeviceCores {
    shared: Arc<DeviceTable>,
}

/// A device, and how threads for it run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceKey {
    pub(crate) device_id: i32,
    pub(crate) host_policy: String,
}

#[derive(Default)]
pub(crate) struct DeviceTable {
    state: Mutex<DeviceTableState>,
    /// Of threads that cannot be started.
    log_limiter: LogLimiter,
}

#[derive(Default)]
struct DeviceTableState {
    devices: BTreeMap<DeviceKey, DeviceState>,
    next_member: MemberId,
}

/// One device. It is forgotten with its last core.
#[derive(Default)]
struct DeviceState {
    sharing: CoreSharing,
    cores: BTreeMap<CoreId, Arc<DeviceCore>>,
    members: BTreeMap<MemberId, Arc<DeviceMember>>,
}

impl DeviceCores {
    /// Has `core` driven by the thread of its device until its queue is closed and drained, or
    /// lets it go, and nothing is in flight. Returns the instances. Blocks for so long.
    pub(crate) fn drive(
        &self,
        key: &DeviceKey,
        placement: &Placement,
        core: StreamCore,
    ) -> Vec<StreamInstance> {
        let (ended, instances) = mpsc::channel();
        match self.shared.join(key, placement, Box::new(core), ended) {
            // Not reached: whoever ends it sends them first.
            Ok(()) => instances.recv().unwrap_or_default(),
            Err(core) => core.serve(Spin::OFF),
        }
    }

    /// How many threads there are, over all devices.
    #[cfg(test)]
    pub(crate) fn core_count(&self) -> usize {
        let state = self.shared.lock();
        state
            .devices
            .values()
            .map(|device| device.cores.len())
            .sum()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.lock().devices.is_empty()
    }
}

impl fmt::Debug for DeviceCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        let devices = state.devices.iter();
        let core_counts = devices.map(|(key, device)| (key, device.cores.len()));
        f.debug_map().entries(core_counts).finish()
    }
}

impl DeviceTable {
    /// A model more for a device. Given back where that takes a thread which cannot be started.
    fn join(
        self: &Arc<Self>,
        key: &DeviceKey,
        placement: &Placement,
        core: Box<StreamCore>,
        ended: mpsc::Sender<Vec<StreamInstance>>,
    ) -> Result<(), Box<StreamCore>> {
        let mut state = self.lock();
        state.next_member += 1;
        let member_id = state.next_member;
        let device = state.devices.entry(key.clone()).or_default();
        let (core_id, device_core) = match device.sharing.open_core() {
            Some(core_id) => (core_id, device.cores.get(&core_id).cloned()),
            None => {
                let core_id = device.sharing.new_core();
                let start = CoreStart {
                    placement: placement.clone(),
                    key: key.clone(),
                };
                (core_id, self.start(start, core_id))
            }
        };
        let Some(device_core) = device_core else {
            if device.sharing.is_empty() {
                state.devices.remove(key);
            }
            return Err(core);
        };
        device.sharing.join(core_id, member_id);
        let member = DeviceMember::new(member_id, core_id, core, ended);
        device.members.insert(member_id, Arc::new(member));
        device.cores.insert(core_id, Arc::clone(&device_core));
        device_core.notify();
        // It may be inside a call that blocks: then only a watch helps.
        let is_unwatched = device_core.begin_watch();
        drop(state);
        if is_unwatched {
            self.watch_later(&device_core);
        }
        Ok(())
    }

    /// Starts the thread of a core. It first takes the lock, which the caller holds. None if the
    /// system has no thread for it.
    fn start(self: &Arc<Self>, start: CoreStart, id: CoreId) -> Option<Arc<DeviceCore>> {
        let core = Arc::new(DeviceCore::new(start, id));
        let (table, started) = (Arc::clone(self), Arc::clone(&core));
        let thread = std::thread::Builder::new()
            .name(core.thread_name())
            .spawn(move || started.run(&table));
        match thread {
            Ok(thread) => {
                core.set_thread(thread.thread());
                Some(core)
            }
            Err(error) => {
                // Of a core that stays blocked this comes with each look.
                let device = core.device_name();
                let what = format_args!("cannot start a core for {device}: {error}");
                self.log_limiter.tell(monotonic_ns(), what);
                None
            }
        }
    }

    /// The models that `core` drives now. None: it has none, and is forgotten.
    pub(crate) fn members_of(&self, core: &DeviceCore) -> Option<DeviceMembers> {
        let mut state = self.lock();
        let device = state.devices.get_mut(core.key())?;
        if device.sharing.members(core.id()).is_empty() {
            device.sharing.end(core.id());
            device.cores.remove(&core.id());
            if device.sharing.is_empty() {
                state.devices.remove(core.key());
            }
            return None;
        }
        let ids = device.sharing.members(core.id()).iter();
        Some(
            ids.filter_map(|id| device.members.get(id))
                .cloned()
                .collect(),
        )
    }

    /// A model has ended.
    pub(crate) fn leave(&self, core: &DeviceCore, member: MemberId) {
        let mut state = self.lock();
        if let Some(device) = state.devices.get_mut(core.key()) {
            device.sharing.leave(member);
            device.members.remove(&member);
        }
        drop(state);
        core.notify();
    }

    /// A model of `core` blocked or occupied it for too long, and has come back: it gets a core of
    /// its own.
    pub(crate) fn set_apart(
        self: &Arc<Self>,
        core: &DeviceCore,
        member: &DeviceMember,
        reason: ApartReason,
    ) {
        self.split(core, member.id(), CoreSharing::set_apart, reason);
    }

    /// Looks at `core` in a while.
    pub(crate) fn watch_later(self: &Arc<Self>, core: &Arc<DeviceCore>) {
        let (table, seen) = (Arc::clone(self), core.turn());
        let weak = Arc::downgrade(core);
        let at_ns = monotonic_ns().saturating_add(BLOCKED_NS_MAX);
        core.timer_thread()
            .call_at(at_ns, move |_| table.watch(&weak, seen));
    }

    /// The timer thread's look at a core whose count of turns was `seen` a while ago.
    fn watch(self: &Arc<Self>, core: &Weak<DeviceCore>, seen: u64) {
        let Some(core) = core.upgrade() else { return };
        match CoreActivity::between(seen, core.turn()) {
            CoreActivity::Active => {}
            CoreActivity::Dormant => {
                // It begins a watch when it is awake again.
                if core.end_watch(seen) {
                    return;
                }
            }
            CoreActivity::Blocked => {
                let blocking = core.current_member();
                let change = CoreSharing::leave_behind;
                self.split(&core, blocking, change, ApartReason::Blocks);
            }
        }
        self.watch_later(&core);
    }

    /// Moves `blocking`, or those beside it, from `core` to a new one, as `change` says; nothing
    /// without a thread for it.
    fn split(
        self: &Arc<Self>,
        core: &DeviceCore,
        blocking: MemberId,
        change: fn(&mut CoreSharing, CoreId, MemberId, CoreId) -> bool,
        reason: ApartReason,
    ) {
        let mut state = self.lock();
        let Some(device) = state.devices.get_mut(core.key()) else {
            return;
        };
        let successor_id = device.sharing.new_core();
        if !device.sharing.has_others(core.id(), blocking) {
            // Only who comes next may be to have another core.
            change(&mut device.sharing, core.id(), blocking, successor_id);
            return;
        }
        let Some(successor) = self.start(core.start().clone(), successor_id) else {
            return;
        };
        device.cores.insert(successor_id, successor);
        let is_split = change(&mut device.sharing, core.id(), blocking, successor_id);
        if is_split {
            for id in device.sharing.members(successor_id) {
                if let Some(member) = device.members.get(id) {
                    member.move_to(successor_id);
                }
            }
        }
        let blocking = device.members.get(&blocking).cloned();
        drop(state);
        core.notify();
        if let (true, Some(blocking)) = (is_split, blocking) {
            tell_split(core, &blocking, reason);
        }
    }

    fn lock(&self) -> MutexGuard<'_, DeviceTableState> {
        // Changed by insertions and removals only.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell_split(core: &DeviceCore, apart: &DeviceMember, reason: ApartReason) {
    let (model, device) = (apart.model_name(), core.device_name());
    match reason {
        ApartReason::Blocks => conch_log::warning!(
            "calls of model '{model}' blocked a core of {device} for more than {} ms: it has a \
             core of its own until it is loaded again",
            BLOCKED_NS_MAX / 1_000_000
        ),
        ApartReason::Occupies => conch_log::info!(
            "calls of an instance of model '{model}' take more than a quarter of the time of a \
             core of {device}: it has a core of its own until it is loaded again"
        ),
    }
}

impl DeviceKey {
    /// For messages and the names of threads.
    pub(crate) fn device_name(&self) -> String {
        format!("GPU {}", self.device_id)
    }

    /// The kind of all instances with such a core.
    pub(crate) const KIND: InstanceKind = InstanceKind::Gpu;
}
