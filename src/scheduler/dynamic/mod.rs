//! The dynamic batcher.
//!
//! A batch forms when an instance is free to execute it, from the requests in order of priority and
//! arrival. Preferred sizes cut it and bound it; the delay lets the oldest request wait for
//! company; requests that do not fit together end it, and so does the model's own strategy. As
//! upstream's `GetDynamicBatch`, except that a batch always starts empty: what upstream adds to one
//! that waits for an instance is here still in the queue.

mod batch_policy;
mod levels;
#[cfg(test)]
mod tests;

use conch_config::DynamicBatching;
use conch_sync::{ClaimReason, NEVER_NS, PollState};

use crate::entry::{Entry, Signature};
use crate::output::SchedulerOutput;
use levels::{LevelCursor, PriorityLevels};

pub use batch_policy::{BatchDecision, BatchPolicy};
pub use levels::{policy_of, rejection_ns};

#[derive(Debug)]
pub struct DynamicBatcher<T: Entry> {
    levels: PriorityLevels<T>,
    /// Ascending, never empty.
    preferred_sizes: Vec<u32>,
    batch_size_max: u32,
    delay_ns: u64,
    strategy: Option<Box<dyn BatchPolicy<T> + Send>>,
    /// No batch forms before so many requests wait; 0 from then on.
    held_until_count: usize,
}

/// What a look over the queue decided.
struct BatchPlan {
    /// Take the first so many requests.
    count: usize,
    /// Their inferences.
    size: u32,
    /// With nothing to take: when to look again.
    deadline_ns: u64,
}

impl<T: Entry> DynamicBatcher<T> {
    pub fn new(
        settings: &DynamicBatching,
        batch_size_max: u32,
        strategy: Option<Box<dyn BatchPolicy<T> + Send>>,
    ) -> DynamicBatcher<T> {
        // A model without a batch dimension executes one request at a time, under the queue policy
        // all the same.
        let batch_size_max = batch_size_max.max(1);
        let mut preferred_sizes = settings.preferred_batch_sizes.clone();
        preferred_sizes.retain(|size| (1..=batch_size_max).contains(size));
        if preferred_sizes.is_empty() {
            preferred_sizes.push(batch_size_max);
        }
        preferred_sizes.sort_unstable();
        DynamicBatcher {
            levels: PriorityLevels::new(settings),
            preferred_sizes,
            batch_size_max,
            delay_ns: settings.max_queue_delay_us.saturating_mul(1_000),
            strategy,
            held_until_count: 0,
        }
    }

    /// See [`SchedulerDelay`](crate::SchedulerDelay).
    pub fn hold(&mut self, count: usize) {
        self.held_until_count = count;
    }

    pub fn accept(&mut self, entry: T) {
        self.levels.push(entry);
    }

    pub fn expire(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        self.levels.reject(now_ns, output);
        PollState {
            deadline_ns: self.levels.next_rejection_ns(),
            ..PollState::without_deadline(self.levels.is_empty())
        }
    }

    pub fn look(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        self.levels.reject(now_ns, output);
        let plan = self.plan(now_ns, &mut output.cancelled);
        PollState {
            is_ready: plan.count > 0,
            deadline_ns: plan.deadline_ns.min(self.levels.next_rejection_ns()),
            is_empty: self.levels.is_empty(),
        }
    }

    pub fn form(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        self.levels.reject(now_ns, output);
        loop {
            let plan = self.plan(now_ns, &mut output.cancelled);
            if plan.count == 0 {
                return PollState {
                    is_ready: false,
                    deadline_ns: plan.deadline_ns.min(self.levels.next_rejection_ns()),
                    is_empty: self.levels.is_empty(),
                };
            }
            self.take(&plan, now_ns, &mut output.batch);
            if !output.batch.is_empty() {
                // What is left may or may not make a batch: whoever is free looks.
                return PollState {
                    deadline_ns: self.levels.next_rejection_ns(),
                    ..PollState::without_deadline(self.levels.is_empty())
                };
            }
        }
    }

    /// Looks over the queue and decides; see spec, "Dynamic batcher", steps 2 to 5.
    fn plan(&mut self, now_ns: u64, cancelled: &mut Vec<T::Owned>) -> BatchPlan {
        if self.levels.count() < self.held_until_count {
            return BatchPlan {
                count: 0,
                size: 0,
                deadline_ns: NEVER_NS,
            };
        }
        self.held_until_count = 0;
        let size_preferred_max = self
            .preferred_sizes
            .last()
            .copied()
            .unwrap_or(self.batch_size_max);
        let mut cursor = LevelCursor::default();
        let mut template = Signature::new();
        let (mut count, mut size) = (0_usize, 0_u32);
        let mut mark: Option<(usize, u32)> = None;
        let (mut is_full, mut is_begun) = (false, false);
        let (mut oldest_ns, mut expires_ns) = (NEVER_NS, NEVER_NS);
        while let Some(queued) = self.levels.look(&mut cursor, now_ns) {
            let facts = queued.entry.facts();
            let next_size = size.saturating_add(facts.batch_count);
            if count == 0 {
                template.clone_from(&facts.signature);
            } else {
                if next_size > size_preferred_max && mark.is_none() {
                    mark = Some((count, size));
                }
                if next_size > self.batch_size_max || facts.signature != template {
                    is_full = true;
                    break;
                }
            }
            if let Some(strategy) = &mut self.strategy {
                if !is_begun {
                    strategy.begin();
                    is_begun = true;
                }
                match strategy.includes(&queued.entry) {
                    BatchDecision::Joins => {}
                    BatchDecision::Stays => {
                        is_full = true;
                        // A request that joins no batch has one to itself: upstream would never
                        // execute it, nor any behind it.
                        if count > 0 {
                            break;
                        }
                    }
                    // The next look finds it claimed.
                    BatchDecision::Gone => continue,
                    BatchDecision::Cancelled(owned) => {
                        cancelled.push(owned);
                        continue;
                    }
                }
            }
            count += 1;
            size = next_size;
            oldest_ns = oldest_ns.min(facts.queued_ns);
            expires_ns = expires_ns.min(queued.expires_ns());
            if self.preferred_sizes.binary_search(&size).is_ok() {
                mark = Some((count, size));
            }
            if is_full {
                break;
            }
            cursor.advance();
        }
        if let Some(strategy) = &mut self.strategy
            && is_begun
        {
            strategy.end();
        }
        let delay_end_ns = oldest_ns.saturating_add(self.delay_ns);
        let is_overdue = self.delay_ns != 0 && now_ns >= delay_end_ns;
        if let Some((count, size)) = mark
            && !is_overdue
        {
            return BatchPlan {
                count,
                size,
                deadline_ns: NEVER_NS,
            };
        }
        if count > 0 && !(is_full || size >= size_preferred_max || is_overdue || self.delay_ns == 0)
        {
            let deadline_ns = delay_end_ns.min(expires_ns);
            return BatchPlan {
                count: 0,
                size: 0,
                deadline_ns,
            };
        }
        BatchPlan {
            count,
            size,
            deadline_ns: NEVER_NS,
        }
    }

    /// Takes what `plan` says. Requests that somebody claimed meanwhile are made up for by those
    /// that follow, as far as they fit; not under a strategy, which has been asked about these
    /// alone.
    fn take(&mut self, plan: &BatchPlan, now_ns: u64, batch: &mut Vec<T::Owned>) {
        let mut size = 0_u32;
        let mut template = None;
        for _ in 0..plan.count {
            let Some(entry) = self.levels.pop() else {
                break;
            };
            if let Some(owned) = entry.claim(ClaimReason::Execute) {
                size = size.saturating_add(entry.facts().batch_count);
                template.get_or_insert_with(|| entry.facts().signature.clone());
                batch.push(owned);
            }
        }
        let Some(template) = template else { return };
        if self.strategy.is_some() {
            return;
        }
        while size < plan.size {
            let mut cursor = LevelCursor::default();
            let Some(queued) = self.levels.look(&mut cursor, now_ns) else {
                return;
            };
            let facts = queued.entry.facts();
            if size.saturating_add(facts.batch_count) > plan.size || facts.signature != template {
                return;
            }
            let batch_count = facts.batch_count;
            if let Some(owned) = self
                .levels
                .pop()
                .and_then(|entry| entry.claim(ClaimReason::Execute))
            {
                size = size.saturating_add(batch_count);
                batch.push(owned);
            }
        }
    }
}
