//! Dynamic batching: how requests wait until they make a batch.

/// Settings of the dynamic batcher.
#[derive(Clone, Debug, PartialEq)]
pub struct DynamicBatching {
    /// Ascending, without duplicates; never empty on a batching model.
    pub preferred_batch_sizes: Vec<u32>,
    pub max_queue_delay_us: u64,
    pub is_preserving_order: bool,
    /// Within a level, whoever has the earliest deadline comes first.
    pub is_by_deadline: bool,
    /// 0: no levels.
    pub priority_levels: u64,
    pub default_priority_level: u64,
    pub default_policy: QueuePolicy,
    /// By level, 1-based.
    pub priority_policies: Vec<(u64, QueuePolicy)>,
}

/// How long requests of a level wait, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    pub timeout_action: TimeoutAction,
    /// 0: none.
    pub default_timeout_us: u64,
    pub allow_timeout_override: bool,
    /// 0: unbounded.
    pub queue_size_max: u32,
}

/// What happens to a request that waited too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeoutAction {
    #[default]
    Reject,
    Delay,
}
