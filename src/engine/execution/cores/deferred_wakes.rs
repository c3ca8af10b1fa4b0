//! Wakes that a core defers until it has finished the brief batches that are ready.
//!
//! A shard that is woken takes the CPU from a core that shares it. If each batch does that, each
//! costs two changes of threads, and finds the caches as the shard left them: 32 clients of a model
//! that computes for 11 us got 12,400 answers per second for 80 us of CPU each, and get 28,900 for
//! 34 us. So the core goes on with the next batch if that is there at once, and wakes the shard
//! after [`DEFERRAL_NS_MAX`] at the latest. What a batch answered is delivered before: a shard that
//! runs anyway finds it, at a heartbeat at the latest, also if the next execution never ends.
//! Receivers that could run on another CPU meanwhile are woken at once.

use conch_net::affinity::current_cpu;

use crate::PendingResponses;
use crate::clock::monotonic_ns;

/// No wake is deferred for longer, but for one execution.
const DEFERRAL_NS_MAX: u64 = 300_000;
/// Wakes are deferred by executions that take no longer. On the clock: a shard that clients wake
/// meanwhile may have had the CPU for a part of it.
const EXECUTION_NS_MAX: u64 = 200_000;
/// Executions before which no wake is deferred: at first, as a new model's take longer.
const FIRST_SKIPS: u32 = 16;
/// The same after long ones, at most.
const SKIPS_MAX: u32 = 1 << 12;

/// Of one core.
#[derive(Debug)]
pub(super) struct DeferredWakes {
    /// Whether the core shares CPUs with shards.
    is_enabled: bool,
    /// When the first deferred wake was due.
    since_ns: u64,
    brevity: Brevity,
}

/// Whether the next execution is expected to be brief. Each that was long keeps four times as many
/// from it as the one before, each brief one half as many.
#[derive(Debug)]
struct Brevity {
    skip_count: u32,
    penalty: u32,
}

impl DeferredWakes {
    pub(super) fn new(is_enabled: bool) -> DeferredWakes {
        DeferredWakes {
            is_enabled,
            since_ns: 0,
            brevity: Brevity {
                skip_count: FIRST_SKIPS,
                penalty: 0,
            },
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
        self.brevity.note(end_ns.saturating_sub(begin_ns));
        if !pending.has_unwoken() {
            self.since_ns = end_ns;
        }
        pending.flush_beyond(cpu);
    }

    fn may_wait_at(&self, now_ns: u64) -> bool {
        self.brevity.expects_brief() && now_ns.saturating_sub(self.since_ns) < DEFERRAL_NS_MAX
    }
}

impl Brevity {
    fn expects_brief(&self) -> bool {
        self.skip_count == 0
    }

    fn note(&mut self, duration_ns: u64) {
        if duration_ns > EXECUTION_NS_MAX {
            self.penalty = (self.penalty * 4).clamp(4, SKIPS_MAX);
            self.skip_count = self.penalty;
        } else if self.skip_count > 0 {
            self.skip_count -= 1;
        } else {
            self.penalty /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::Recorder;
    use crate::{Completion, Delivery};

    fn after_first_skips() -> DeferredWakes {
        let mut wakes = DeferredWakes::new(true);
        for _ in 0..FIRST_SKIPS {
            assert!(!wakes.may_wait_at(0));
            wakes.brevity.note(0);
        }
        wakes
    }

    #[test]
    fn brief_batches_defer_wakes_to_the_end_of_the_time() {
        const STEP_NS: u64 = 70_000;
        let recorder = Arc::new(Recorder::near());
        let mut wakes = after_first_skips();
        let mut pending = PendingResponses::default();
        // Four executions begin before the time is over.
        for (step, may_wait) in [
            (1, true),
            (2, true),
            (3, true),
            (4, true),
            (5, true),
            (6, false),
        ] {
            let receiver: Arc<dyn Completion> = Arc::clone(&recorder) as _;
            pending.push_to(&receiver, Delivery::new(step, None, true));
            let end_ns = step * STEP_NS;
            wakes.flush(end_ns - STEP_NS, end_ns, 0, &mut pending);
            assert_eq!(recorder.wait(1)[0].slot(), step, "it is delivered at once");
            assert_eq!(wakes.may_wait_at(end_ns), may_wait, "{step}");
        }
        assert_eq!(recorder.wake_count(), 0);
        pending.flush();
        assert_eq!(recorder.wake_count(), 1);
    }

    #[test]
    fn long_executions_end_deferrals_for_a_while() {
        let mut brevity = after_first_skips().brevity;
        let skips = |duration_ns: u64, brevity: &mut Brevity| {
            brevity.note(duration_ns);
            let mut count = 0;
            while !brevity.expects_brief() {
                brevity.note(EXECUTION_NS_MAX);
                count += 1;
            }
            count
        };
        for expected in [4, 16, 64, 256, 1024, 4096, 4096] {
            assert_eq!(skips(EXECUTION_NS_MAX + 1, &mut brevity), expected);
        }
        // A brief one after them halves it.
        (0..9).for_each(|_| brevity.note(0));
        assert_eq!(skips(u64::MAX, &mut brevity), 32);
    }
}
