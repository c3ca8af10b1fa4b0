//! The queues of the dynamic batcher: by priority level, and within a level the requests in time
//! before the delayed ones.
//!
//! Requests in time stand in order of arrival, or in order of deadline where the model wants that:
//! whoever has to be executed first, be it that its client waits no longer or that its timeout
//! acts, and behind these the ones that have all the time, as they came.

use std::collections::{BTreeMap, VecDeque};

use conch_config::{DynamicBatching, QueuePolicy, TimeoutAction};
use conch_sync::{ClaimReason, NEVER_NS};

use crate::entry::{Entry, SchedulingParams};
use crate::output::SchedulerOutput;

/// A request with what its level's policy makes of it.
#[derive(Debug)]
pub(super) struct QueuedEntry<T> {
    pub(super) entry: T,
    /// [`NEVER_NS`]: no timeout, or it has been delayed already.
    expires_ns: u64,
    number: u64,
}

#[derive(Debug)]
struct PriorityLevel<T> {
    policy: QueuePolicy,
    in_time: VecDeque<QueuedEntry<T>>,
    delayed: VecDeque<QueuedEntry<T>>,
}

/// All waiting requests of a model, in the order in which they are to be batched.
#[derive(Debug)]
pub(super) struct PriorityLevels<T> {
    /// By number. A level exists while it holds something; a few are kept beyond that for their
    /// memory.
    levels: BTreeMap<u64, PriorityLevel<T>>,
    /// Requests in all of them, claimed ones included until they are found.
    count: usize,
    default_policy: QueuePolicy,
    policies: Vec<(u64, QueuePolicy)>,
    is_by_deadline: bool,
    /// Timeouts that reject, earliest first, with an entry each to claim. The number tells equal
    /// times apart.
    rejections: BTreeMap<(u64, u64), T>,
    arrivals: u64,
}

/// A place in the order of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelCursor {
    /// The number of the level, or of the next one that exists.
    level: u64,
    is_delayed: bool,
    index: usize,
}

impl<T: Entry> PriorityLevels<T> {
    pub(super) fn new(settings: &DynamicBatching) -> PriorityLevels<T> {
        PriorityLevels {
            levels: BTreeMap::new(),
            count: 0,
            default_policy: settings.default_policy,
            policies: settings.priority_policies.clone(),
            is_by_deadline: settings.is_by_deadline,
            rejections: BTreeMap::new(),
            arrivals: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Requests that wait, claimed ones included until they are found.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, entry: T) {
        let facts = entry.facts();
        let number = facts.level;
        let level = self.levels.entry(number).or_insert_with(|| PriorityLevel {
            policy: policy_of(&self.policies, self.default_policy, number),
            in_time: VecDeque::new(),
            delayed: VecDeque::new(),
        });
        let expires_ns = expires_ns(&level.policy, facts);
        self.arrivals += 1;
        let number = self.arrivals;
        if expires_ns != NEVER_NS && level.policy.timeout_action == TimeoutAction::Reject {
            self.rejections.insert((expires_ns, number), entry.clone());
        }
        self.count += 1;
        let queued = QueuedEntry {
            entry,
            expires_ns,
            number,
        };
        if self.is_by_deadline {
            let due_ns = queued.due_ns();
            let place = level
                .in_time
                .partition_point(|other| other.due_ns() <= due_ns);
            level.in_time.insert(place, queued);
        } else {
            level.in_time.push_back(queued);
        }
    }

    /// Claims what is to be rejected at `now_ns`. The places in the queues are found empty later.
    pub(super) fn reject(&mut self, now_ns: u64, output: &mut SchedulerOutput<T::Owned>) {
        while let Some(first) = self.rejections.first_entry() {
            if first.key().0 > now_ns {
                break;
            }
            output
                .expired
                .extend(first.remove().claim(ClaimReason::Expire));
        }
    }

    /// When the next request is to be rejected; [`NEVER_NS`] if none is.
    pub(super) fn next_rejection_ns(&self) -> u64 {
        self.rejections
            .first_key_value()
            .map_or(NEVER_NS, |((expires_ns, _), _)| *expires_ns)
    }

    /// The next waiting request at or after `cursor`, which moves onto it. Claimed ones are dropped
    /// and late ones delayed on the way, so that what lies before the cursor is exactly what was
    /// seen.
    pub(super) fn seek(
        &mut self,
        cursor: &mut LevelCursor,
        now_ns: u64,
    ) -> Option<&QueuedEntry<T>> {
        loop {
            let kept_count = self.levels.len();
            let (number, level) = self.levels.range_mut(cursor.level..).next()?;
            let number = *number;
            if number != cursor.level {
                *cursor = LevelCursor {
                    level: number,
                    ..LevelCursor::default()
                };
            }
            let queue = if cursor.is_delayed {
                &mut level.delayed
            } else {
                &mut level.in_time
            };
            let Some(queued) = queue.get(cursor.index) else {
                if !cursor.is_delayed {
                    cursor.is_delayed = true;
                    cursor.index = 0;
                } else {
                    if level.is_empty() && kept_count > KEPT_COUNT {
                        self.levels.remove(&number);
                    }
                    *cursor = LevelCursor {
                        level: number.checked_add(1)?,
                        ..LevelCursor::default()
                    };
                }
                continue;
            };
            if !queued.entry.is_waiting() {
                if let Some(gone) = queue.remove(cursor.index) {
                    self.count -= 1;
                    forget(&mut self.rejections, &gone);
                }
            } else if queued.expires_ns <= now_ns
                && level.policy.timeout_action == TimeoutAction::Delay
            {
                if let Some(mut late) = queue.remove(cursor.index) {
                    late.expires_ns = NEVER_NS;
                    level.delayed.push_back(late);
                }
            } else {
                break;
            }
        }
        let level = self.levels.get(&cursor.level)?;
        let queue = if cursor.is_delayed {
            &level.delayed
        } else {
            &level.in_time
        };
        queue.get(cursor.index)
    }

    /// Takes the first request out.
    pub(super) fn pop(&mut self) -> Option<T> {
        let queued = self.levels.values_mut().find_map(|level| {
            let delayed = &mut level.delayed;
            level.in_time.pop_front().or_else(|| delayed.pop_front())
        })?;
        self.count -= 1;
        forget(&mut self.rejections, &queued);
        Some(queued.entry)
    }
}

impl<T> PriorityLevel<T> {
    fn is_empty(&self) -> bool {
        self.in_time.is_empty() && self.delayed.is_empty()
    }
}

/// Empty levels that stay: their queues' memory is used again by the next requests.
const KEPT_COUNT: usize = 8;

impl LevelCursor {
    pub(super) fn advance(&mut self) {
        self.index += 1;
    }
}

impl<T: Entry> QueuedEntry<T> {
    /// When it is too late for it, while it is in time.
    fn due_ns(&self) -> u64 {
        self.expires_ns.min(self.entry.facts().deadline_ns)
    }
}

impl<T> QueuedEntry<T> {
    /// When its place in the order changes by itself.
    pub(super) fn expires_ns(&self) -> u64 {
        self.expires_ns
    }
}

fn forget<T>(rejections: &mut BTreeMap<(u64, u64), T>, queued: &QueuedEntry<T>) {
    if queued.expires_ns != NEVER_NS {
        rejections.remove(&(queued.expires_ns, queued.number));
    }
}

/// The policy of `level`.
pub fn policy_of(policies: &[(u64, QueuePolicy)], default: QueuePolicy, level: u64) -> QueuePolicy {
    policies
        .iter()
        .find(|(number, _)| *number == level)
        .map_or(default, |(_, policy)| *policy)
}

/// When `policy` is done waiting for a request; [`NEVER_NS`] for never. Where the policy allows it,
/// a request may shorten its level's timeout, or set one where there is none (upstream ignores it
/// there); it never lengthens one.
fn expires_ns(policy: &QueuePolicy, facts: &SchedulingParams) -> u64 {
    let own_us = if policy.allow_timeout_override {
        facts.timeout_us
    } else {
        0
    };
    let timeout_us = match (policy.default_timeout_us, own_us) {
        (0, only) | (only, 0) => only,
        (default, own) => default.min(own),
    };
    match timeout_us {
        0 => NEVER_NS,
        _ => facts
            .queued_ns
            .saturating_add(timeout_us.saturating_mul(1_000)),
    }
}

/// When a request is to be rejected if it still waits; [`NEVER_NS`] if it may wait for ever.
pub fn rejection_ns(settings: &DynamicBatching, facts: &SchedulingParams) -> u64 {
    let policy = policy_of(
        &settings.priority_policies,
        settings.default_policy,
        facts.level,
    );
    match policy.timeout_action {
        TimeoutAction::Reject => expires_ns(&policy, facts),
        TimeoutAction::Delay => NEVER_NS,
    }
}
