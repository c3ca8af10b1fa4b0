//! The threads of the server: on which CPUs they run, and the one that calls back at deadlines.

pub mod host_policy;
pub mod loader_placement;
pub mod placement;
pub mod timer_thread;
pub mod topology;
