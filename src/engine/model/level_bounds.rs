//! Bounds the requests that wait per priority level.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use conch_config::{DynamicBatching, QueuePolicy, Scheduling};
use conch_scheduler::policy_of;

/// How many requests wait per priority level, where the queue policy bounds them.
#[derive(Debug, Default)]
pub(crate) struct LevelBounds {
    /// Count and bound, by level (0 without levels); empty if no level is bounded.
    levels: Box<[(AtomicU32, u32)]>,
    /// The levels beyond them, if there are more.
    rest: Option<Box<SparseLevels>>,
}

/// Levels that are too many for a counter each: those that hold something are counted, behind a
/// lock.
#[derive(Debug)]
struct SparseLevels {
    counts: Mutex<BTreeMap<u64, u32>>,
    default_policy: QueuePolicy,
    policies: Vec<(u64, QueuePolicy)>,
}

/// Levels with a counter of their own each, if the policy bounds any.
const COUNTED_LEVELS_MAX: u64 = 1_024;

impl LevelBounds {
    pub(crate) fn new(config: &conch_config::ResolvedConfig) -> LevelBounds {
        let settings = match &config.scheduling {
            Scheduling::Dynamic(settings) => settings,
            Scheduling::Sequence(settings) if settings.queue_size_max != 0 => {
                let levels = [(AtomicU32::new(0), settings.queue_size_max)];
                return LevelBounds {
                    levels: levels.into(),
                    rest: None,
                };
            }
            _ => return LevelBounds::default(),
        };
        let DynamicBatching {
            default_policy,
            priority_policies,
            priority_levels,
            ..
        } = settings;
        let is_bounded = |policy: &QueuePolicy| policy.queue_size_max != 0;
        if !is_bounded(default_policy)
            && !priority_policies
                .iter()
                .any(|(_, policy)| is_bounded(policy))
        {
            return LevelBounds::default();
        }
        let levels = (0..=(*priority_levels).min(COUNTED_LEVELS_MAX))
            .map(|level| {
                (
                    AtomicU32::new(0),
                    policy_of(priority_policies, *default_policy, level).queue_size_max,
                )
            })
            .collect();
        let rest = (*priority_levels > COUNTED_LEVELS_MAX).then(|| {
            Box::new(SparseLevels {
                counts: Mutex::default(),
                default_policy: *default_policy,
                policies: priority_policies.clone(),
            })
        });
        LevelBounds { levels, rest }
    }

    /// Counts a request in; false if its level is full.
    pub(crate) fn try_enter(&self, level: u64) -> bool {
        let Some((count, max)) = self.at(level) else {
            return self.rest.as_ref().is_none_or(|rest| rest.try_enter(level));
        };
        if *max == 0 {
            return true;
        }
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < *max).then_some(count + 1)
            })
            .is_ok()
    }

    pub(crate) fn release(&self, level: u64) {
        match (self.at(level), &self.rest) {
            (Some((count, max)), _) if *max != 0 => {
                count.fetch_sub(1, Ordering::Relaxed);
            }
            (None, Some(rest)) => rest.release(level),
            _ => {}
        }
    }

    fn at(&self, level: u64) -> Option<&(AtomicU32, u32)> {
        self.levels.get(usize::try_from(level).ok()?)
    }
}

impl SparseLevels {
    fn try_enter(&self, level: u64) -> bool {
        let max = policy_of(&self.policies, self.default_policy, level).queue_size_max;
        if max == 0 {
            return true;
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(level).or_default();
        let has_room = *count < max;
        *count += u32::from(has_room);
        has_room
    }

    fn release(&self, level: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        // Levels without a bound are not there.
        if let Some(count) = counts.get_mut(&level) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&level);
            }
        }
    }
}
