//! The only lock-free code: how threads hand things over.
//!
//! `claim` decides who owns a request (executor, canceller or timer). `pile` is the queue that many fill and one empties; as
//! [`Inbox`] it leads into a model's cores, and `relay` says how these share it and their scheduler (`baton`: one drives at a time;
//! `bell`: how an idle one sleeps and is woken). `mailbox` is the queue into a shard with the door that wakes it. `census` counts who
//! is present, by key.
//! The orderings are checked under loom: `RUSTFLAGS="--cfg loom" cargo test -p conch-channel --release --lib`.

mod baton;
mod bell;
mod census;
mod claim;
mod mailbox;
mod pile;
mod relay;
mod sync;

pub use baton::{Baton, Held};
pub use bell::{Bell, Clock, IdleSet, NEVER_NS, SPIN_MAX_NS, Spin};
pub use census::{Census, Full, Seat};
pub use claim::{Claim, Fate, Owned};
pub use mailbox::{Door, Letters, Mailbox, Receiver};
pub use pile::{Chain, Envelope, Link, Pile, Refused};
pub use relay::{Outlook, Relay, Runner, Turn};

/// The queue into a model's cores.
pub type Inbox<L> = Pile<L>;
