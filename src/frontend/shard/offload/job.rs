//! Jobs, and the kinds of work that have a thread of their own.

use std::any::Any;

/// A kind of work with a thread of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffloadLane {
    Small,
    Large,
    Handshakes,
}

impl OffloadLane {
    pub(super) const fn index(self) -> usize {
        match self {
            OffloadLane::Small => 0,
            OffloadLane::Large => 1,
            OffloadLane::Handshakes => 2,
        }
    }

    pub(super) const fn thread_name(self) -> &'static str {
        match self {
            OffloadLane::Small => "offload",
            OffloadLane::Large => "offload-big",
            OffloadLane::Handshakes => "tls",
        }
    }

    /// Jobs that the thread has at a time. One more than it executes spares it the wait for its
    /// shard, where jobs are short.
    pub(super) const fn depth(self) -> usize {
        match self {
            OffloadLane::Small | OffloadLane::Handshakes => 2,
            OffloadLane::Large => 1,
        }
    }
}

pub(super) type JobResult = Box<dyn Any + Send>;

pub(super) type JobFunction = Box<dyn FnOnce() -> JobResult + Send>;

pub(super) struct OffloadJob {
    pub(super) key: u64,
    pub(super) work: JobFunction,
}

/// What a lane's thread sends to the shard.
pub(crate) struct JobDone {
    pub(super) lane: OffloadLane,
    pub(super) key: u64,
    pub(super) outcome: std::thread::Result<JobResult>,
}
