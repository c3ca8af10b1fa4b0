//! Requests on their way into a queue, and those that come back to it.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use conch_config::Scheduling;
use conch_scheduler::{Scheduler, SchedulingParams, SequenceKey, rejection_ns};
use conch_sync::{NEVER_NS, Refused};

use crate::clock::monotonic_ns;
use crate::execution::queue::ModelQueue;
use crate::request::context::{Executor, ExecutorUsage, ResponsePath, SubmitRefusal};
use crate::request::inline::InlineOffer;
use crate::request::instance_timeline::InstanceTimeline;
use crate::request::refusal::stopping;
use crate::response_order::OrderedCompletion;
use crate::{
    Completion, CorrelationId, Error, InFlightPermit, Rejected, RequestHandle, SequenceFlags,
};

impl Executor for ModelQueue {
    fn response_path(&self, completion: &Arc<dyn Completion>, _may_cache: bool) -> ResponsePath {
        let Some(order) = &self.order else {
            return ResponsePath::direct(completion);
        };
        let turn = OrderedCompletion::new(order, completion);
        ResponsePath {
            completion: Arc::clone(&turn) as _,
            turn: Some(turn),
            deposit: None,
        }
    }

    fn draining_permit(
        &self,
        version: Option<i64>,
        id: &CorrelationId,
        flags: SequenceFlags,
    ) -> Option<Result<InFlightPermit, Rejected>> {
        self.draining_versions.permit(version, id, flags)
    }

    /// Puts a request that has its pending permit into the queue, where an idle core finds it.
    fn submit(&self, handle: RequestHandle, offer: &mut InlineOffer) -> Result<(), SubmitRefusal> {
        let rejection_ns = self.rejection_ns(&handle.shared().facts);
        let member = handle.shared().member.as_ref();
        let started = member
            .filter(|member| member.is_start)
            .map(|member| member.key.clone());
        if started.is_some() && self.is_stopping() {
            return Err(self.closed(&handle));
        }
        match self.start_or_go_on(handle, started, offer) {
            Ok(()) => {
                // Every core may be executing for longer than that.
                if rejection_ns != NEVER_NS {
                    self.watch_deadline(rejection_ns);
                }
                Ok(())
            }
            Err(Refused::Closed(handle)) => Err(self.closed(&handle)),
            Err(Refused::Linked(_)) => Err(SubmitRefusal {
                error: Error::internal("the request is queued already"),
                live: None,
            }),
        }
    }

    fn is_closed(&self) -> bool {
        self.is_stopping()
    }

    fn fault(&self) -> Option<Error> {
        self.fault.get().cloned()
    }

    fn usage(&self) -> ExecutorUsage {
        self.usage
            .read(matches!(self.config.scheduling, Scheduling::Sequence(_)))
    }

    fn timelines(&self) -> Vec<InstanceTimeline> {
        self.usage.read_timelines(monotonic_ns())
    }

    fn end_watch(&self) {
        self.usage.end_watch();
    }

    /// None if a core is just looking itself.
    fn sequence_count(&self) -> Option<usize> {
        self.inspect(|scheduler, _| match scheduler {
            Scheduler::Sequence(sequence) => sequence.open_count(),
            _ => 0,
        })
    }

    fn report_cancel(&self, handle: RequestHandle) {
        // Failure: the request is linked in a queue, and the thread that takes it out sees the
        // mark; or it executes as the last of its model.
        let _ = self.pool.submit(handle);
        self.watch_deadline(monotonic_ns());
    }

    fn reclaim(&self, handle: RequestHandle, core: usize) {
        let Some(returns) = self.returns.get(core) else {
            return;
        };
        if let Some(member) = &handle.shared().member {
            member.bring_back();
        }
        // Failure: somebody wanted it cancelled just now, and it lies in the inbox, where the
        // scheduler finds it.
        let _ = returns.push(handle);
        self.pool.notify(core);
    }
}

impl ModelQueue {
    /// Refuses a request because the queue takes no more.
    fn closed(&self, handle: &RequestHandle) -> SubmitRefusal {
        let refusal = stopping(handle);
        match self.fault.get() {
            Some(fault) => SubmitRefusal {
                error: fault.clone(),
                ..refusal
            },
            None => refusal,
        }
    }

    /// When a request that still waits is to be rejected.
    fn rejection_ns(&self, facts: &SchedulingParams) -> u64 {
        match &self.config.scheduling {
            Scheduling::Dynamic(settings) => rejection_ns(settings, facts),
            // If it has to wait for a slot.
            Scheduling::Sequence(_) if facts.timeout_us != 0 => facts
                .queued_ns
                .saturating_add(facts.timeout_us.saturating_mul(1_000)),
            _ => NEVER_NS,
        }
    }

    /// Queues a request that starts the sequence `started`, or none.
    fn start_or_go_on(
        &self,
        handle: RequestHandle,
        started: Option<SequenceKey>,
        offer: &mut InlineOffer,
    ) -> Result<(), Refused<RequestHandle>> {
        let Some(key) = started else {
            return self.push(handle, offer);
        };
        // It may go on in a version that this one took the place of.
        self.draining_versions.end(&key);
        self.push(handle, &mut InlineOffer::none())?;
        // Pairs with the fence of a hand-over: that has seen the request, or we see the table of
        // active sequences.
        fence(Ordering::SeqCst);
        if let Some(active_sequences) = self.active_sequences.get() {
            active_sequences.add(key);
        }
        Ok(())
    }

    fn push(
        &self,
        handle: RequestHandle,
        offer: &mut InlineOffer,
    ) -> Result<(), Refused<RequestHandle>> {
        let is_member = handle.shared().member.is_some();
        if !is_member
            && let Some(duration) = offer.duration()
            && let Some(queue) = self.inline(duration)
        {
            self.pool.push(handle)?;
            offer.take(queue);
            return Ok(());
        }
        // If every core executes, no submission wakes one.
        if !is_member
            && offer.wakes_later()
            && !self.pool.is_busy()
            && let Some(queue) = self.own.upgrade()
        {
            if self.pool.push(handle)? {
                offer.take(queue);
            }
            return Ok(());
        }
        self.pool.submit(handle)?;
        if is_member && self.pool.is_busy() {
            // It may be one that is not to be queued at all, and nobody else looks before an
            // execution ends. Nor may whoever has the lock, if that is a core that leaves with its
            // batch.
            if self.inspect(|_, _| ()).is_none() {
                self.watch_deadline(monotonic_ns());
            }
        }
        Ok(())
    }
}
