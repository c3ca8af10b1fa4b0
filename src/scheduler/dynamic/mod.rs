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

/// The requests at the front of the queue that fit together.
struct BatchScan {
    count: usize,
    /// Their inferences.
    size: u32,
    /// Where to cut them, as count and inferences: behind the last that makes up a preferred size;
    /// if there is none, before the first that exceeds the largest preferred size.
    preferred: Option<(usize, u32)>,
    /// The next request does not fit.
    is_full: bool,
    /// When the first of them was queued.
    oldest_ns: u64,
    /// When the order of the queue changes by itself.
    expires_ns: u64,
}

/// What a scan of the queue leads to.
struct BatchPlan {
    /// Take the first so many requests.
    count: usize,
    /// Their inferences.
    size: u32,
    /// With nothing to take: when to look again.
    deadline_ns: u64,
}

impl BatchPlan {
    fn take(count: usize, size: u32) -> BatchPlan {
        BatchPlan {
            count,
            size,
            deadline_ns: NEVER_NS,
        }
    }

    fn wait_until(deadline_ns: u64) -> BatchPlan {
        BatchPlan {
            count: 0,
            size: 0,
            deadline_ns,
        }
    }
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

    /// Adds an arrival.
    pub fn accept(&mut self, entry: T) {
        self.levels.push(entry);
    }

    /// Rejects what has timed out.
    pub fn expire(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        self.levels.reject(now_ns, output);
        PollState {
            deadline_ns: self.levels.next_rejection_ns(),
            ..PollState::without_deadline(self.levels.is_empty())
        }
    }

    /// Whether a batch could be formed at `now_ns`. Rejects what has timed out.
    pub fn peek(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) -> PollState {
        self.levels.reject(now_ns, output);
        let plan = self.plan(now_ns, &mut output.cancelled);
        PollState {
            is_ready: plan.count > 0,
            deadline_ns: plan.deadline_ns.min(self.levels.next_rejection_ns()),
            is_empty: self.levels.is_empty(),
        }
    }

    /// Forms one batch, if it is time for one at `now_ns`.
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

    /// Looks over the queue and decides.
    fn plan(&mut self, now_ns: u64, cancelled: &mut Vec<T::Owned>) -> BatchPlan {
        if self.levels.count() < self.held_until_count {
            return BatchPlan::wait_until(NEVER_NS);
        }
        self.held_until_count = 0;
        let scan = self.scan(now_ns, cancelled);
        let plan = self.decide(&scan, now_ns);
        let is_in_bounds = plan.count <= 1 || plan.size <= self.batch_size_max;
        assert!(is_in_bounds, "a batch is larger than the model allows");
        plan
    }

    /// The largest preferred size.
    fn size_preferred_max(&self) -> u32 {
        let last = self.preferred_sizes.last().copied();
        last.unwrap_or(self.batch_size_max)
    }

    /// Collects requests from the front of the queue until one does not fit.
    fn scan(&mut self, now_ns: u64, cancelled: &mut Vec<T::Owned>) -> BatchScan {
        let size_preferred_max = self.size_preferred_max();
        let mut cursor = LevelCursor::default();
        let mut template = Signature::new();
        let mut scan = BatchScan {
            count: 0,
            size: 0,
            preferred: None,
            is_full: false,
            oldest_ns: NEVER_NS,
            expires_ns: NEVER_NS,
        };
        let mut is_begun = false;
        while let Some(queued) = self.levels.seek(&mut cursor, now_ns) {
            let facts = queued.entry.facts();
            let next_size = scan.size.saturating_add(facts.batch_count);
            if scan.count == 0 {
                template.clone_from(&facts.signature);
            } else {
                if next_size > size_preferred_max && scan.preferred.is_none() {
                    scan.preferred = Some((scan.count, scan.size));
                }
                if next_size > self.batch_size_max || facts.signature != template {
                    scan.is_full = true;
                    break;
                }
            }
            if let Some(strategy) = &mut self.strategy {
                if !std::mem::replace(&mut is_begun, true) {
                    strategy.begin();
                }
                match strategy.includes(&queued.entry) {
                    BatchDecision::Joins => {}
                    BatchDecision::Stays => {
                        scan.is_full = true;
                        // A request that joins no batch has one to itself: upstream would never
                        // execute it, nor any behind it.
                        if scan.count > 0 {
                            break;
                        }
                    }
                    // The next step finds it claimed.
                    BatchDecision::Gone => continue,
                    BatchDecision::Cancelled(owned) => {
                        cancelled.push(owned);
                        continue;
                    }
                }
            }
            scan.count += 1;
            scan.size = next_size;
            scan.oldest_ns = scan.oldest_ns.min(facts.queued_ns);
            scan.expires_ns = scan.expires_ns.min(queued.expires_ns());
            if self.preferred_sizes.binary_search(&next_size).is_ok() {
                scan.preferred = Some((scan.count, next_size));
            }
            if scan.is_full {
                break;
            }
            cursor.advance();
        }
        if let Some(strategy) = &mut self.strategy
            && is_begun
        {
            strategy.end();
        }
        scan
    }

    /// What to do with the requests of `scan`.
    fn decide(&self, scan: &BatchScan, now_ns: u64) -> BatchPlan {
        let delay_end_ns = scan.oldest_ns.saturating_add(self.delay_ns);
        let is_overdue = self.delay_ns != 0 && now_ns >= delay_end_ns;
        if let Some((count, size)) = scan.preferred
            && !is_overdue
        {
            return BatchPlan::take(count, size);
        }
        let is_complete = scan.is_full || scan.size >= self.size_preferred_max();
        if scan.count > 0 && !(is_complete || is_overdue || self.delay_ns == 0) {
            return BatchPlan::wait_until(delay_end_ns.min(scan.expires_ns));
        }
        BatchPlan::take(scan.count, scan.size)
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
            let Some(queued) = self.levels.seek(&mut cursor, now_ns) else {
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
