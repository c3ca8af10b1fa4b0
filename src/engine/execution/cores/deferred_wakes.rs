//! Wakes that a core defers until it has finished the brief batches that are ready.
//!
//! A shard that is woken takes the CPU from a core that shares it. If each batch does that, each
//! costs two changes of threads, and finds the caches as the shard left them: 32 clients of a model
//! that computes for 11 us got 12,400 answers per second for 80 us of CPU each, and get 28,900 for
//! 34 us. So the core goes on with the next batch if that is there at once, and wakes the shard
//! after [`DEFERRAL_NS_MAX`] at the latest. What a batch answered is delivered before: a shard that
//! runs anyway finds it, at a heartbeat at the latest, also if the next execution never ends.
//! Receivers that could run on another CPU meanwhile are woken at once.
//!
//! How long the next execution takes is not known: it is taken to be brief if the last one was.
//! After a mistake [`SKIP_COUNT`] executions defer nothing.

use conch_net::affinity::current_cpu;

use crate::PendingResponses;
use crate::clock::monotonic_ns;

/// No wake is deferred for longer, but for one execution.
const DEFERRAL_NS_MAX: u64 = 300_000;
/// On the clock. A longer execution is not brief, and too long to wait for.
const EXECUTION_NS_MAX: u64 = 200_000;
/// Executions without a deferral after a receiver waited through one that was too long: of a model
/// whose executions differ, a batch in so many is answered late.
const SKIP_COUNT: u32 = 256;

/// Of one core.
#[derive(Debug)]
pub(super) struct DeferredWakes {
    /// Whether the core shares CPUs with shards.
    is_enabled: bool,
    /// When the first deferred wake was due.
    since_ns: u64,
    /// Whether the last execution was.
    was_brief: bool,
    skips_left: u32,
}

impl DeferredWakes {
    pub(super) fn new(is_enabled: bool) -> DeferredWakes {
        DeferredWakes {
            is_enabled,
            since_ns: 0,
            was_brief: false,
            skips_left: 0,
        }
    }

    /// Executes by `execute`, then delivers what it answered, and wakes the receivers but for those
    /// that may wait.
    pub(super) fn around(
        &mut self,
        pending: &mut PendingResponses,
        execute: impl FnOnce(&mut PendingResponses),
    ) {
        if !self.is_enabled {
            execute(pending);
            return pending.flush();
        }
        let begin_ns = monotonic_ns();
        execute(pending);
        self.flush(begin_ns, monotonic_ns(), current_cpu(), pending);
    }

    /// Whether the core may look for another batch before it flushes.
    pub(super) fn may_wait(&self, pending: &PendingResponses) -> bool {
        pending.has_unwoken() && self.may_wait_at(monotonic_ns())
    }

    fn flush(&mut self, begin_ns: u64, end_ns: u64, cpu: usize, pending: &mut PendingResponses) {
        self.was_brief = end_ns.saturating_sub(begin_ns) <= EXECUTION_NS_MAX;
        // A receiver that has taken what it got ran meanwhile, which is what took long.
        self.skips_left = match !self.was_brief && pending.has_waiting() {
            true => SKIP_COUNT,
            false => self.skips_left.saturating_sub(1),
        };
        if !pending.has_unwoken() {
            self.since_ns = end_ns;
        }
        pending.flush_beyond(cpu);
    }

    fn may_wait_at(&self, now_ns: u64) -> bool {
        self.was_brief
            && self.skips_left == 0
            && now_ns.saturating_sub(self.since_ns) < DEFERRAL_NS_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::Recorder;
    use crate::{Completion, Delivery};

    const BRIEF_NS: u64 = 10_000;

    /// A core after an execution of so long, which has answered `recorder`, and the time.
    fn execute(
        wakes: &mut DeferredWakes,
        pending: &mut PendingResponses,
        recorder: &Arc<Recorder>,
        begin_ns: u64,
        duration_ns: u64,
    ) -> u64 {
        let receiver: Arc<dyn Completion> = Arc::clone(recorder) as _;
        pending.push_to(&receiver, Delivery::new(0, None, true));
        let end_ns = begin_ns + duration_ns;
        wakes.flush(begin_ns, end_ns, 0, pending);
        end_ns
    }

    #[test]
    fn brief_batches_defer_wakes_to_the_end_of_the_time() {
        const STEP_NS: u64 = 70_000;
        let recorder = Arc::new(Recorder::near());
        let (mut wakes, mut pending) = (DeferredWakes::new(true), PendingResponses::default());
        let mut now_ns = 0;
        // Four executions begin before the time is over.
        for may_wait in [true, true, true, true, true, false] {
            now_ns = execute(&mut wakes, &mut pending, &recorder, now_ns, STEP_NS);
            assert_eq!(recorder.wait(1).len(), 1, "it is delivered at once");
            assert_eq!(wakes.may_wait_at(now_ns), may_wait, "{now_ns}");
        }
        assert_eq!(recorder.wake_count(), 0);
        pending.flush();
        assert_eq!(recorder.wake_count(), 1);
    }

    #[test]
    fn a_long_execution_defers_nothing() {
        let recorder = Arc::new(Recorder::near());
        let (mut wakes, mut pending) = (DeferredWakes::new(true), PendingResponses::default());
        assert!(!wakes.may_wait_at(0), "nothing is known yet");
        for (duration_ns, may_wait) in [
            (EXECUTION_NS_MAX + 1, false),
            (EXECUTION_NS_MAX, true),
            (u64::MAX / 2, false),
            (BRIEF_NS, true),
        ] {
            let now_ns = execute(&mut wakes, &mut pending, &recorder, 0, duration_ns);
            assert_eq!(wakes.may_wait_at(now_ns), may_wait, "{duration_ns}");
            // As the core does where it may not wait, or has no other batch.
            pending.flush();
        }
    }

    #[test]
    fn a_receiver_that_waited_too_long_ends_deferrals_for_a_while() {
        for has_run in [false, true] {
            let recorder = Arc::new(Recorder::near());
            let (mut wakes, mut pending) = (DeferredWakes::new(true), PendingResponses::default());
            let mut run = |duration_ns| {
                let now_ns = execute(&mut wakes, &mut pending, &recorder, 0, duration_ns);
                let may_wait = wakes.may_wait_at(now_ns);
                if !may_wait {
                    pending.flush();
                }
                may_wait
            };
            assert!(run(BRIEF_NS));
            if has_run {
                recorder.wait(1);
            }
            assert!(!run(EXECUTION_NS_MAX + 1));
            let skipped = (0..).take_while(|_| !run(BRIEF_NS)).count();
            let expected = if has_run { 0 } else { SKIP_COUNT as usize - 1 };
            assert_eq!(skipped, expected, "{has_run}");
        }
    }
}
