//! One instance that keeps batches in flight.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use conch_config::Scheduling;
use conch_log::LogLimiter;

use crate::backend::Instance;
use crate::clock::monotonic_ns;
use crate::execution::queue::ModelQueue;
use crate::execution::seat::{guarded, panicked};
use crate::execution::streams::depth::Depth;
use crate::execution::streams::in_flight::InFlightBatches;
use crate::model::readiness::check::ReadinessCheck;
use crate::request::context::Executor;
use crate::{Batch, Error, PendingResponses, RequestHandle};

/// Polls that fail one after the other before the instance is given up: a backend that fails each
/// time never finishes anything.
const FAILED_POLLS_MAX: u32 = 100;
/// A call that takes longer than that blocks, which it must not.
const CALL_NS_MAX: u64 = 10_000_000;

/// An instance with its batches in flight.
pub(crate) struct StreamInstance {
    /// None once it was given up.
    instance: Option<ManuallyDrop<Box<dyn Instance>>>,
    name: Arc<str>,
    depth: Depth,
    in_flight: InFlightBatches,
    /// By batch in flight, if their scheduler waits for them: what it gave out.
    given_out: Vec<Vec<RequestHandle>>,
    queue: Arc<ModelQueue>,
    core: usize,
    timeout_ns: u64,
    failed_poll_count: u32,
    limiter: LogLimiter,
}

impl StreamInstance {
    /// `instance` says how many batches it may have in flight.
    pub(crate) fn new(
        instance: Box<dyn Instance>,
        name: &str,
        queue: &Arc<ModelQueue>,
        core: usize,
        spins: bool,
    ) -> StreamInstance {
        let depth_max = instance.depth_max().map_or(1, usize::from);
        let timeout_seconds = queue.config().own.execution_timeout_seconds;
        StreamInstance {
            instance: Some(ManuallyDrop::new(instance)),
            name: Arc::from(name),
            depth: Depth::new(depth_max),
            in_flight: InFlightBatches::new(spins),
            given_out: Vec::new(),
            queue: Arc::clone(queue),
            core,
            timeout_ns: timeout_seconds.saturating_mul(1_000_000_000),
            failed_poll_count: 0,
            limiter: LogLimiter::default(),
        }
    }

    /// The backend's readiness hook, where it has one.
    pub(crate) fn readiness_check(&self) -> Option<Arc<dyn ReadinessCheck>> {
        self.instance.as_ref()?.readiness_check()
    }

    /// Whether it takes batches at all.
    pub(crate) fn is_there(&self) -> bool {
        self.instance.is_some()
    }

    pub(crate) fn queue(&self) -> &Arc<ModelQueue> {
        &self.queue
    }

    pub(crate) fn has_room(&self) -> bool {
        self.is_there() && self.in_flight.count() < self.depth.current()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    pub(crate) fn next_look_ns(&mut self, now_ns: u64) -> u64 {
        self.in_flight.next_look_ns(now_ns)
    }

    /// The device ran out of work although requests waited.
    pub(crate) fn note_idle(&mut self) {
        self.depth.idled();
    }

    /// Hands a batch over, leaving it empty.
    pub(crate) fn enqueue(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        let Some(instance) = &mut self.instance else {
            return;
        };
        let is_awaited = matches!(self.queue.config().scheduling, Scheduling::Sequence(_));
        let handles = is_awaited.then(|| batch.iter().map(|live| Arc::clone(live.handle())));
        let handles = handles.map(Iterator::collect);
        let start_ns = monotonic_ns();
        let is_in_flight = guarded(batch, pending, |batch, pending| {
            instance.enqueue(batch, pending)
        });
        self.note_call("Enqueue", start_ns);
        if is_in_flight == Some(true) {
            // The device cannot have begun before.
            self.in_flight.begin(monotonic_ns());
            self.given_out.extend(handles);
        }
    }

    /// Finishes what is done. Returns how many batches ended.
    pub(crate) fn poll(&mut self, pending: &mut PendingResponses) -> usize {
        let Some(instance) = self
            .instance
            .as_mut()
            .filter(|_| !self.in_flight.is_empty())
        else {
            return 0;
        };
        let start_ns = monotonic_ns();
        let polled = guarded(&mut Batch::new(), pending, |_, pending| {
            instance.poll(pending)
        });
        self.note_call("Poll", start_ns);
        let now_ns = monotonic_ns();
        let left = match polled {
            Some(Ok(left)) => {
                self.failed_poll_count = 0;
                left
            }
            failed => {
                self.note_failed_poll(failed.and_then(Result::err), pending);
                self.in_flight.count()
            }
        };
        let was_full = self.in_flight.count() == self.depth.current();
        let ended_now = self.in_flight.look(now_ns, left);
        if ended_now.count > 0 {
            let ended = ended_now.count.min(self.given_out.len());
            self.given_out.drain(..ended);
            self.depth
                .ended(now_ns, ended_now.count, was_full, ended_now.alone_ns);
        } else if self.in_flight.is_overdue(now_ns, self.timeout_ns) {
            let seconds = self.timeout_ns / 1_000_000_000;
            self.give_up(
                &format!("an execution did not end on its device within {seconds} s"),
                pending,
            );
        }
        ended_now.count
    }

    /// Answers what is in flight with an error and leaves the instance aside for good: its device
    /// may still use its memory.
    fn give_up(&mut self, reason: &str, pending: &mut PendingResponses) {
        let Some(mut instance) = self.instance.take() else {
            return;
        };
        let text = format!("instance '{}' is out of service: {reason}", self.name);
        let count = self.in_flight.count();
        conch_log::error!(
            "{text}; {count} batches in flight are answered with an error, and model '{}' serves \
             no more until it is loaded again",
            self.queue.config().name
        );
        self.queue.fail(Error::unavailable(text.clone()));
        guarded(&mut Batch::new(), pending, |_, pending| {
            instance.abandon(&Error::internal(text), pending);
        });
        self.in_flight.clear();
        for handle in self.given_out.drain(..).flatten() {
            self.queue.reclaim(handle, self.core);
        }
        // `instance` is not dropped: see above.
    }

    fn note_call(&self, what: &str, start_ns: u64) {
        let now_ns = monotonic_ns();
        let duration_ns = now_ns.saturating_sub(start_ns);
        if duration_ns > CALL_NS_MAX {
            self.limiter.warn(
                now_ns,
                format_args!(
                    "{what} of instance '{}' blocked its core for {} ms, which holds up all \
                     instances of its device",
                    self.name,
                    duration_ns / 1_000_000
                ),
            );
        }
    }

    /// A poll that failed or panicked.
    fn note_failed_poll(&mut self, error: Option<Error>, pending: &mut PendingResponses) {
        self.failed_poll_count += 1;
        if let Some(error) = error {
            self.limiter.warn(
                monotonic_ns(),
                format_args!("a poll of instance '{}' failed: {error}", self.name),
            );
        }
        if self.failed_poll_count >= FAILED_POLLS_MAX {
            self.give_up(
                &format!("{FAILED_POLLS_MAX} polls failed one after the other"),
                pending,
            );
        }
    }
}

impl Drop for StreamInstance {
    /// Of an instance with nothing in flight, or whose backend ends what is.
    fn drop(&mut self) {
        if let Some(instance) = self.instance.take()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| {
                drop(ManuallyDrop::into_inner(instance));
            }))
        {
            conch_log::error!("an instance failed to end: {}", panicked(&*panic).message);
        }
    }
}
