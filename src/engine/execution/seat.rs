//! The instances of a core, and who executes on them.
//!
//! Nearly always that is the core. While it is idle, a thread that submits may execute one batch in
//! its place (`request/inline.rs`), for a short time: what takes longer stays open, and the core
//! ends it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use conch_scheduler::SchedulerOutput;

use crate::backend::Instance;
use crate::clock::monotonic_ns;
use crate::execution::timelines::InstanceTimelines;
use crate::model::stats::FailureReason;
use crate::request::inline::Progress;
use crate::request::refusal::refuse;
use crate::request::request_log;
use crate::request::request_log::RequestState;
use crate::{Batch, Error, OwnedRequest, PendingResponses};

/// The instances of one core.
pub(crate) struct Seat {
    core: usize,
    is_closed: AtomicBool,
    /// The core has to end what another thread left.
    is_called: AtomicBool,
    /// A batch is executed here, or lies open: for the metrics.
    is_busy: AtomicBool,
    instance_count: usize,
    timelines: InstanceTimelines,
    state: Mutex<SeatState>,
}

/// How far a batch of another thread is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is none.
    Ended,
    /// It is formed, and the core is to execute it.
    Formed,
    /// The instance has begun it, and the core is to end it.
    Open,
}

/// What the thread that executes has.
pub(crate) struct SeatState {
    /// Empty before the core serves, and once it has ended.
    pub(crate) instances: Vec<Box<dyn Instance>>,
    stage: Stage,
    /// For batches of other threads, kept for their capacity.
    pub(crate) output: SchedulerOutput<OwnedRequest>,
    pub(crate) pending: PendingResponses,
}

impl Seat {
    /// For the instances with these names.
    pub(crate) fn new(core: usize, names: Vec<Box<str>>) -> Seat {
        Seat {
            core,
            is_closed: AtomicBool::new(false),
            is_called: AtomicBool::new(false),
            is_busy: AtomicBool::new(false),
            instance_count: names.len(),
            timelines: InstanceTimelines::new(names),
            state: Mutex::new(SeatState {
                instances: Vec::new(),
                stage: Stage::Ended,
                output: SchedulerOutput::default(),
                pending: PendingResponses::default(),
            }),
        }
    }

    /// Puts the instances in, once.
    pub(crate) fn furnish(&self, instances: Vec<Box<dyn Instance>>) {
        self.lock().instances = instances;
    }

    /// The core is about to end: other threads look elsewhere.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Relaxed: who looks too early finds no instance.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(crate) fn core(&self) -> usize {
        self.core
    }

    pub(crate) fn instance_count(&self) -> usize {
        self.instance_count
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }

    pub(crate) fn timelines(&self) -> &InstanceTimelines {
        &self.timelines
    }

    /// By whoever has entered and is about to execute on that instance. Relaxed: it orders
    /// nothing.
    pub(crate) fn begin_busy(&self, instance: usize) {
        self.is_busy.store(true, Ordering::Relaxed);
        self.timelines.begin(instance, monotonic_ns);
    }

    /// By whoever has executed.
    pub(crate) fn end_busy(&self) {
        self.is_busy.store(false, Ordering::Relaxed);
        self.timelines.end_all(monotonic_ns);
    }

    /// Whether other threads may execute here: one instance, which can be left open, or whose
    /// executions `are_brief`, as its model says.
    pub(crate) fn takes_inline(&self, are_brief: bool) -> bool {
        match &*self.lock().instances {
            [instance] => instance.can_begin() || are_brief,
            _ => false,
        }
    }

    /// For the core: waits for a thread that executes in its place, then ends what it left.
    pub(crate) fn enter(&self, pending: &mut PendingResponses) -> MutexGuard<'_, SeatState> {
        let mut state = self.lock();
        state.end_stage(pending);
        self.end_busy();
        state
    }

    /// For other threads; none while anybody executes, or a batch is left to the core.
    pub(crate) fn try_enter(&self) -> Option<MutexGuard<'_, SeatState>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (state.stage == Stage::Ended && state.instances.len() == 1).then_some(state)
    }

    /// Has the core end what it was left, once it is woken.
    pub(crate) fn call(&self) {
        self.is_called.store(true, Ordering::Release);
    }

    /// Whether the core was called, once per call.
    pub(crate) fn answers_call(&self) -> bool {
        self.is_called.load(Ordering::Relaxed) && self.is_called.swap(false, Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, SeatState> {
        // A panic of a backend is caught inside.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SeatState {
    /// Executes the batch of `output` for `limit` at most; the caller flushes.
    pub(crate) fn begin(&mut self, limit: Duration) -> Progress {
        let SeatState {
            instances,
            output,
            pending,
            ..
        } = self;
        let Some(instance) = instances.first_mut() else {
            return Progress::Done;
        };
        log_executing(&output.batch);
        let progress = contained(&mut output.batch, pending, |batch, pending| {
            instance.begin(batch, pending, limit)
        });
        if progress == Some(Progress::Open) {
            self.stage = Stage::Open;
        }
        progress.unwrap_or(Progress::Done)
    }

    /// Leaves the batch of `output` to the core.
    pub(crate) fn leave(&mut self) {
        self.stage = Stage::Formed;
    }

    fn end_stage(&mut self, pending: &mut PendingResponses) {
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        let Some(instance) = self.instances.first_mut() else {
            return;
        };
        match stage {
            Stage::Ended => {}
            Stage::Formed => execute(&mut **instance, &mut self.output.batch, pending),
            Stage::Open => {
                guarded(&mut Batch::new(), pending, |_, pending| {
                    instance.end(pending)
                });
            }
        }
    }
}

/// One execution to its end.
pub(crate) fn execute(
    instance: &mut dyn Instance,
    batch: &mut Batch,
    pending: &mut PendingResponses,
) {
    execute_unflushed(instance, batch, pending);
    pending.flush();
}

/// As [`execute`]; the caller flushes.
pub(crate) fn execute_unflushed(
    instance: &mut dyn Instance,
    batch: &mut Batch,
    pending: &mut PendingResponses,
) {
    log_executing(batch);
    contained(batch, pending, |batch, pending| {
        instance.execute(batch, pending);
    });
}

/// Tells the log that the requests of a batch go to their instance.
pub(crate) fn log_executing(batch: &Batch) {
    if request_log::is_shown() {
        for live in batch.iter().filter(|live| !live.is_null) {
            let id = &live.shared().id;
            request_log::log_change(id, RequestState::Pending, RequestState::Executing);
        }
    }
}

/// A call that executes, and a flush of what it answered. A panic in the backend's adapter fails
/// what is left of the batch, not the thread; then there is no result.
pub(crate) fn guarded<R>(
    batch: &mut Batch,
    pending: &mut PendingResponses,
    call: impl FnOnce(&mut Batch, &mut PendingResponses) -> R,
) -> Option<R> {
    let result = contained(batch, pending, call);
    pending.flush();
    result
}

/// As [`guarded`]; the caller flushes.
fn contained<R>(
    batch: &mut Batch,
    pending: &mut PendingResponses,
    call: impl FnOnce(&mut Batch, &mut PendingResponses) -> R,
) -> Option<R> {
    let executed = catch_unwind(AssertUnwindSafe(|| call(batch, pending)));
    if !batch.is_empty() {
        let error = match &executed {
            Ok(_) => Error::internal("the instance left the request unanswered"),
            Err(panic) => panicked(&**panic),
        };
        conch_log::error!("an execution failed: {}", error.message);
        for live in batch.drain(..) {
            refuse(live, FailureReason::Other, error.clone(), pending);
        }
    } else if let Err(panic) = &executed {
        conch_log::error!("an execution failed: {}", panicked(&**panic).message);
    }
    executed.ok()
}

/// What a panic of a backend's adapter says.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
    let words = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::internal(format!(
        "panic in the backend: {}",
        words.unwrap_or("without a message")
    ))
}
