//! The operator's page (`--dashboard`): a file that the executable contains, and the stream of
//! events that it shows.
//!
//! One thread makes an event per second while somebody looks on, whoever and however many they are;
//! the shards send its bytes as they are. Without a client the thread sleeps, and nothing is
//! recorded that the metrics do not need.

pub(crate) mod feed;
pub(crate) mod page;
pub(crate) mod source;
pub(crate) mod thread;
