//! Options of shards.

/// On which CPUs a shard may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardAffinity {
    /// On its own, and on all of the process's while others keep it from its own.
    #[default]
    Auto,
    /// On its own.
    Pinned,
    /// On all of the process's.
    Set,
}
