//! What a shard may be at, as its long turns are told (`runtime/long_turns.rs`).

/// The time of the first four is measured; of the others it is only known that they were under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardStage {
    /// A model is executed in place of a core.
    InlineExecution,
    /// The CPU is offered to a core.
    CpuOffer,
    /// The deadlines of all connections are looked at.
    Sweep,
    /// A connection is taken over.
    NewConnection,
    Http,
    Grpc,
}
