//! A plain model of the dynamic batcher: one list, searched anew for each batch.

use conch_config::{DynamicBatching, QueuePolicy, TimeoutAction};
use conch_scheduler::SchedulingParams;
use conch_sync::NEVER_NS;

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct ReferenceRequest {
    pub(crate) number: usize,
    pub(crate) facts: SchedulingParams,
    is_delayed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ReferenceBatcher {
    settings: DynamicBatching,
    size_max: u32,
    waiting: Vec<ReferenceRequest>,
}

/// What a look produced, in numbers of requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReferenceBatch {
    pub(crate) batch: Vec<usize>,
    /// Ascending.
    pub(crate) expired: Vec<usize>,
}

impl ReferenceBatcher {
    /// `settings` name at least one preferred size.
    pub(crate) fn new(settings: &DynamicBatching, size_max: u32) -> ReferenceBatcher {
        ReferenceBatcher {
            settings: settings.clone(),
            size_max,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn accept(&mut self, number: usize, facts: SchedulingParams) {
        self.waiting.push(ReferenceRequest {
            number,
            facts,
            is_delayed: false,
        });
    }

    /// It was cancelled.
    pub(crate) fn remove(&mut self, number: usize) {
        self.waiting.retain(|waiting| waiting.number != number);
    }

    fn policy(&self, level: u64) -> QueuePolicy {
        let mut policy = self.settings.default_policy;
        for (own, other) in &self.settings.priority_policies {
            if *own == level {
                policy = *other;
            }
        }
        policy
    }

    /// When the policy of its level is done waiting for it.
    pub(crate) fn expires_ns(&self, facts: &SchedulingParams) -> u64 {
        let policy = self.policy(facts.level);
        let own_us = match facts.timeout_us {
            timeout_us if policy.allow_timeout_override => timeout_us,
            _ => 0,
        };
        let timeout_us = match (policy.default_timeout_us, own_us) {
            (0, 0) => return NEVER_NS,
            (0, only) | (only, 0) => only,
            (default, own) => default.min(own),
        };
        facts.queued_ns + timeout_us * 1_000
    }

    fn is_late(&self, waiting: &ReferenceRequest, now_ns: u64, action: TimeoutAction) -> bool {
        !waiting.is_delayed
            && self.policy(waiting.facts.level).timeout_action == action
            && self.expires_ns(&waiting.facts) <= now_ns
    }

    /// Takes out who is to be rejected at `now_ns`.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Vec<usize> {
        let (late, kept) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| self.is_late(waiting, now_ns, TimeoutAction::Reject));
        self.waiting = kept;
        let late: Vec<ReferenceRequest> = late;
        let mut numbers: Vec<usize> = late.iter().map(|waiting| waiting.number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The next request in order behind those in `seen`: by level, in time before delayed, then by
    /// deadline if the model wants that, then as they came (delayed: as they were delayed).
    fn next(&self, seen: &[usize]) -> Option<usize> {
        let others = self.waiting.iter().enumerate();
        others
            .filter(|(_, waiting)| !seen.contains(&waiting.number))
            .min_by_key(|(index, waiting)| {
                let due_ns = self.due_ns(waiting);
                (waiting.facts.level, waiting.is_delayed, due_ns, *index)
            })
            .map(|(index, _)| index)
    }

    /// What orders it within its level; the same for all unless the model goes by deadlines.
    fn due_ns(&self, waiting: &ReferenceRequest) -> u64 {
        if !self.settings.is_by_deadline || waiting.is_delayed {
            return NEVER_NS;
        }
        self.expires_ns(&waiting.facts)
            .min(waiting.facts.deadline_ns)
    }

    /// Forms a batch at `now_ns`, if it is time for one.
    pub(crate) fn form(&mut self, now_ns: u64) -> ReferenceBatch {
        let formed = self.look(now_ns);
        self.waiting
            .retain(|waiting| !formed.batch.contains(&waiting.number));
        formed
    }

    /// The batch that there is at `now_ns`, which stays.
    pub(crate) fn look(&mut self, now_ns: u64) -> ReferenceBatch {
        let expired = self.expire(now_ns);
        let sizes = self.settings.preferred_batch_sizes.clone();
        let preferred_max = sizes.iter().copied().max().unwrap_or(self.size_max);
        let (mut batch, mut size, mut mark, mut is_full) = (Vec::<usize>::new(), 0, None, false);
        let mut template = None;
        let mut oldest_ns = NEVER_NS;
        while let Some(index) = self.next(&batch) {
            let waiting = self.waiting[index].clone();
            if self.is_late(&waiting, now_ns, TimeoutAction::Delay) {
                // Delayed when it is looked at, to behind those that were before.
                self.waiting.remove(index);
                self.waiting.push(ReferenceRequest {
                    is_delayed: true,
                    ..waiting
                });
                continue;
            }
            let next = size + waiting.facts.batch_count;
            if !batch.is_empty() {
                if next > preferred_max && mark.is_none() {
                    mark = Some(batch.len());
                }
                if next > self.size_max || template.as_ref() != Some(&waiting.facts.signature) {
                    is_full = true;
                    break;
                }
            }
            template.get_or_insert_with(|| waiting.facts.signature.clone());
            batch.push(waiting.number);
            size = next;
            oldest_ns = oldest_ns.min(waiting.facts.queued_ns);
            if sizes.contains(&size) {
                mark = Some(batch.len());
            }
        }
        let delay_ns = self.settings.max_queue_delay_us * 1_000;
        let is_overdue =
            delay_ns != 0 && oldest_ns != NEVER_NS && now_ns.saturating_sub(oldest_ns) >= delay_ns;
        if let (Some(mark), false) = (mark, is_overdue) {
            batch.truncate(mark);
        } else if !(is_full || size >= preferred_max || is_overdue || delay_ns == 0) {
            batch.clear();
        }
        ReferenceBatch { batch, expired }
    }
}
