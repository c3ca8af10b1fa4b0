//! Derives a model from a seed: its scheduler, its bounds, the behaviour of its clients and its
//! backend.

use conch_config::{
    DynamicBatching, QueuePolicy, SequenceBatching, SequenceStrategy, TimeoutAction,
};
use conch_scheduler::testing::Random;

use crate::execution::cores::plan::sequences_overlap;

/// One version of the simulated model.
#[derive(Clone, Debug)]
pub(super) struct VersionSetup {
    pub(super) kind: SchedulerKind,
    pub(super) batch_size_max: u32,
    /// Instances of each core.
    pub(super) instance_counts: Vec<usize>,
    /// How many shapes requests come in.
    pub(super) shape_count: u64,
    /// The longest an execution takes.
    pub(super) execution_us_max: u64,
    /// So many of 100 executions fail.
    pub(super) fault_percent: u64,
    /// Responses beside the last, at most.
    pub(super) response_count_max: u64,
    /// Batches that each instance may have in flight; 0: it blocks.
    pub(super) depth_max: usize,
}

#[derive(Clone, Debug)]
pub(super) enum SchedulerKind {
    Default,
    Dynamic(DynamicBatching),
    Sequence(Box<SequenceBatching>),
}

impl VersionSetup {
    pub(super) fn random(random: &mut Random) -> VersionSetup {
        let batch_size_max = 1 + random.below(10) as u32;
        let kind = match random.below(8) {
            0 => SchedulerKind::Default,
            1..4 => SchedulerKind::Sequence(Box::new(sequences(random, batch_size_max))),
            _ => SchedulerKind::Dynamic(dynamic(random, batch_size_max)),
        };
        VersionSetup {
            kind,
            batch_size_max,
            instance_counts: (0..1 + random.below(3))
                .map(|_| random.one_of(&[1, 1, 1, 2]))
                .collect(),
            shape_count: 1 + random.below(2),
            execution_us_max: random.one_of(&[1, 20, 400]),
            fault_percent: random.one_of(&[0, 0, 10]),
            response_count_max: random.one_of(&[0, 0, 3]),
            depth_max: 0,
        }
    }

    /// With instances that keep so many batches in flight; of sequences each is a core.
    pub(super) fn with_depth(mut self, depth_max: usize) -> VersionSetup {
        self.depth_max = depth_max;
        if self.overlaps() && self.sequences().is_some() {
            self.instance_counts.fill(1);
        }
        self
    }

    /// Whether its cores keep batches in flight, where nothing limits executions.
    pub(super) fn overlaps(&self) -> bool {
        self.depth_max > 0 && self.sequences().is_none_or(sequences_overlap)
    }

    pub(super) fn dynamic(&self) -> Option<&DynamicBatching> {
        match &self.kind {
            SchedulerKind::Dynamic(settings) => Some(settings),
            SchedulerKind::Default | SchedulerKind::Sequence(_) => None,
        }
    }

    pub(super) fn sequences(&self) -> Option<&SequenceBatching> {
        match &self.kind {
            SchedulerKind::Sequence(settings) => Some(settings),
            SchedulerKind::Default | SchedulerKind::Dynamic(_) => None,
        }
    }

    pub(super) fn is_ordered(&self) -> bool {
        let oldest = self
            .sequences()
            .and_then(|settings| match &settings.strategy {
                SequenceStrategy::Oldest(batching) => Some(batching),
                SequenceStrategy::Direct { .. } => None,
            });
        let batching = self.dynamic().or(oldest);
        batching.is_some_and(|settings| settings.is_preserving_order)
    }

    /// A level for a request; 0 without levels.
    pub(super) fn level(&self, random: &mut Random) -> u64 {
        match self.dynamic() {
            Some(settings) if settings.priority_levels > 0 => {
                1 + random.below(settings.priority_levels)
            }
            _ => 0,
        }
    }
}

fn dynamic(random: &mut Random, batch_size_max: u32) -> DynamicBatching {
    let max = u64::from(batch_size_max);
    let mut preferred: Vec<u32> = (0..random.below(3))
        .map(|_| 1 + random.below(max) as u32)
        .collect();
    if preferred.is_empty() {
        preferred.push(batch_size_max);
    }
    preferred.sort_unstable();
    preferred.dedup();
    let is_preserving_order = random.chance(1, 4);
    let priority_levels = if is_preserving_order {
        0
    } else {
        random.below(4)
    };
    let mut settings = DynamicBatching {
        preferred_batch_sizes: preferred,
        max_queue_delay_us: random.one_of(&[0, 0, 40, 300]),
        is_preserving_order,
        is_by_deadline: !is_preserving_order && random.chance(1, 3),
        priority_levels,
        default_priority_level: priority_levels.min(1),
        default_policy: policy(random, is_preserving_order),
        priority_policies: Vec::new(),
    };
    if priority_levels > 0 && random.chance(1, 2) {
        let level = 1 + random.below(priority_levels);
        let policy = policy(random, is_preserving_order);
        settings.priority_policies.push((level, policy));
    }
    settings
}

/// Delaying and preserving the order exclude each other, as the configuration's rules say.
fn policy(random: &mut Random, is_preserving_order: bool) -> QueuePolicy {
    let action = if is_preserving_order || random.chance(1, 2) {
        TimeoutAction::Reject
    } else {
        TimeoutAction::Delay
    };
    QueuePolicy {
        timeout_action: action,
        default_timeout_us: random.below(2) * (1 + random.below(200)),
        allow_timeout_override: random.chance(1, 2),
        queue_size_max: random.one_of(&[0, 0, 5]),
    }
}

fn sequences(random: &mut Random, batch_size_max: u32) -> SequenceBatching {
    let strategy = if random.chance(1, 2) {
        SequenceStrategy::Direct {
            delay_us: random.one_of(&[0, 0, 60]),
            utilization_min: random.one_of(&[0.0, 0.5, 1.0]),
        }
    } else {
        SequenceStrategy::Oldest(DynamicBatching {
            priority_levels: 0,
            default_priority_level: 0,
            default_policy: QueuePolicy::default(),
            priority_policies: Vec::new(),
            ..dynamic(random, batch_size_max)
        })
    };
    let slot_count = match &strategy {
        SequenceStrategy::Direct { .. } => batch_size_max,
        SequenceStrategy::Oldest(_) => 1 + random.below(4) as u32,
    };
    SequenceBatching {
        strategy,
        slot_count,
        idle_us: random.one_of(&[200, 1_000, 5_000]),
        is_iterative: random.chance(1, 4),
        controls: Default::default(),
        queue_size_max: random.one_of(&[0, 0, 9]),
        backlog_max: random.one_of(&[None, None, Some(2)]),
    }
}
