//! Thin wrappers round the system calls that the rest of the server needs and that the standard
//! library does not offer.
//!
//! Sockets (listening, accepting, vectored sends), the ring that a thread sleeps on, the io_uring
//! probe, resource limits, signals, CPU affinity, what a thread has used, and what the machine
//! consists of. No policy: who listens where, how many connections there may be and which CPUs a
//! thread gets is decided by the callers. Nothing here starts a thread.

pub mod affinity;
mod handover;
pub mod limits;
mod listener;
pub mod machine;
mod output;
mod passed;
pub mod ring;
mod service_manager;
pub mod signal;
mod socket;
mod socket_file;
mod thread_usage;
pub mod uring;
mod wake_event;

pub use handover::{Handover, ReplacementProcess};
pub use listener::{ListenAddress, Listener};
pub use output::take_stdout;
pub use passed::{PassedSocket, take_sockets};
pub use service_manager::{ServiceManager, monotonic_us};
pub use socket::{
    abort, acknowledge_now, adopt, finish_sending, is_reset, peer_address, peer_user, receive,
    receive_vectored, send_vectored, set_nodelay, stop_receiving, stop_transfer, wait_readable,
};
pub use thread_usage::ThreadUsage;
pub use wake_event::WakeEvent;
