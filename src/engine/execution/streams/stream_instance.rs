//! One instance that keeps batches in flight.

use std::mem::{ManuallyDrop, replace, take};
use std::sync::Arc;

use conch_log::LogLimiter;

use crate::backend::Instance;
use crate::clock::monotonic_ns;
use crate::execution::queue::ModelQueue;
use crate::execution::seat::guarded;
use crate::execution::streams::depth::Depth;
use crate::execution::streams::in_flight::InFlightBatches;
use crate::execution::streams::sharing::{ApartReason, CALL_NS_MAX, CallTimes};
use crate::model::readiness::check::ReadinessCheck;
use crate::model::stats::FailureReason;
use crate::request::refusal::refuse;
use crate::{Batch, Error, PendingResponses};

/// Polls that fail one after the other before the instance is given up: a backend that fails each
/// time never finishes anything.
const FAILED_POLLS_MAX: u32 = 100;

/// An instance with its batches in flight.
pub(crate) struct StreamInstance {
    /// Or why it was given up.
    instance: Result<Box<dyn Instance>, Error>,
    name: Arc<str>,
    depth: Depth,
    in_flight: InFlightBatches,
    /// Its device ran out of work since its core last waited.
    has_run_out: bool,
    queue: Arc<ModelQueue>,
    /// It executes what is queued, and no longer only its warm-up.
    is_serving: bool,
    timeout_ns: u64,
    failed_poll_count: u32,
    call_times: CallTimes,
    limiter: LogLimiter,
}

impl StreamInstance {
    /// `instance` says how many batches it may have in flight.
    pub(crate) fn new(
        instance: Box<dyn Instance>,
        name: &str,
        queue: &Arc<ModelQueue>,
        spins: bool,
    ) -> StreamInstance {
        let depth_max = instance.depth_max().map_or(1, usize::from);
        let timeout_seconds = queue.config().own.execution_timeout_seconds;
        StreamInstance {
            instance: Ok(instance),
            name: Arc::from(name),
            depth: Depth::new(depth_max),
            in_flight: InFlightBatches::new(spins),
            has_run_out: false,
            queue: Arc::clone(queue),
            is_serving: false,
            timeout_ns: timeout_seconds.saturating_mul(1_000_000_000),
            failed_poll_count: 0,
            call_times: CallTimes::default(),
            limiter: LogLimiter::default(),
        }
    }

    /// The backend's readiness hook, where it has one.
    pub(crate) fn readiness_check(&self) -> Option<Arc<dyn ReadinessCheck>> {
        self.instance.as_ref().ok()?.readiness_check()
    }

    /// It is warm. From now on, if it is given up, so is its queue. Calls so far say
    /// nothing: libraries load what they need at first use.
    pub(crate) fn begin_service(&mut self) {
        self.is_serving = true;
        self.call_times = CallTimes::default();
    }

    /// Why others must not share its thread any more, if they must not. Tells it once.
    pub(crate) fn take_apart_reason(&mut self) -> Option<ApartReason> {
        let reason = self.call_times.apart_reason()?;
        self.call_times = CallTimes::default();
        Some(reason)
    }

    /// Why it takes no batches any more.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.instance.as_ref().err()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.instance.is_ok() && self.in_flight.count() < self.depth.current()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    pub(crate) fn next_look_ns(&mut self, now_ns: u64) -> u64 {
        self.in_flight.next_look_ns(now_ns)
    }

    /// The core waits, for requests or for the device: a device that is idle now says nothing about
    /// the depth.
    pub(crate) fn note_wait(&mut self) {
        self.has_run_out = false;
    }

    /// Hands a batch over, leaving it empty. One that was given up refuses it.
    pub(crate) fn enqueue(&mut self, batch: &mut Batch, pending: &mut PendingResponses) {
        let instance = match &mut self.instance {
            Ok(instance) => instance,
            Err(error) => {
                for live in batch.drain(..) {
                    refuse(live, FailureReason::Other, error.clone(), pending);
                }
                pending.flush();
                return;
            }
        };
        if take(&mut self.has_run_out) {
            self.depth.note_idle();
        }
        let start_ns = monotonic_ns();
        let is_in_flight = guarded(batch, pending, |batch, pending| {
            instance.enqueue(batch, pending)
        });
        let now_ns = self.check_call("Enqueue", start_ns);
        if is_in_flight == Some(true) {
            self.in_flight.begin(start_ns, now_ns);
        }
    }

    /// Finishes what is done.
    pub(crate) fn poll(&mut self, pending: &mut PendingResponses) {
        let Ok(instance) = &mut self.instance else {
            return;
        };
        if self.in_flight.is_empty() {
            return;
        }
        let start_ns = monotonic_ns();
        let polled = guarded(&mut Batch::new(), pending, |_, pending| {
            instance.poll(pending)
        });
        let now_ns = self.check_call("Poll", start_ns);
        let left = match polled {
            Some(Ok(left)) => {
                self.failed_poll_count = 0;
                left
            }
            failed => {
                self.note_failed_poll(now_ns, failed.and_then(Result::err), pending);
                self.in_flight.count()
            }
        };
        let was_full = self.in_flight.count() == self.depth.current();
        let ended_now = self.in_flight.look(now_ns, left);
        if ended_now.count > 0 {
            self.has_run_out = self.in_flight.is_empty();
            self.depth
                .note_ended(now_ns, ended_now.count, was_full, ended_now.alone_ns);
        } else if self.in_flight.is_overdue(now_ns, self.timeout_ns) {
            let seconds = self.timeout_ns / 1_000_000_000;
            self.give_up(
                &format!("an execution did not end on its device within {seconds} s"),
                pending,
            );
        }
    }

    /// Answers what is in flight with an error and leaves the instance aside for good.
    fn give_up(&mut self, reason: &str, pending: &mut PendingResponses) {
        let text = format!("instance '{}' is out of service: {reason}", self.name);
        let error = Error::unavailable(text.clone());
        let Ok(instance) = replace(&mut self.instance, Err(error.clone())) else {
            return;
        };
        // Never dropped: its device may still use its memory.
        let mut instance = ManuallyDrop::new(instance);
        let count = self.in_flight.count();
        conch_log::error!("{text}; {count} batches in flight are answered with an error");
        if self.is_serving {
            let model = &self.queue.config().name;
            conch_log::error!("model '{model}' serves no more until it is loaded again");
            self.queue.fail(error);
        }
        guarded(&mut Batch::new(), pending, |_, pending| {
            instance.abandon(&Error::internal(text), pending);
        });
        self.in_flight.clear();
    }

    /// Tells of a call that blocked. Returns the time.
    fn check_call(&mut self, what: &str, start_ns: u64) -> u64 {
        let now_ns = monotonic_ns();
        let duration_ns = now_ns.saturating_sub(start_ns);
        self.call_times.note(now_ns, duration_ns);
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
        now_ns
    }

    /// A poll that failed or panicked.
    fn note_failed_poll(
        &mut self,
        now_ns: u64,
        error: Option<Error>,
        pending: &mut PendingResponses,
    ) {
        self.failed_poll_count += 1;
        if let Some(error) = error {
            self.limiter.warn(
                now_ns,
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
