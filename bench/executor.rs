//! One glommio executor on the calling thread, set as the server's shards are.

use glommio::{LocalExecutorBuilder, Placement};
use std::future::Future;
use std::time::Duration;

/// Runs `main` to its end on one unpinned executor; the caller chooses the CPU with `taskset`.
///
/// The settings are the shards': small registered memory because no file is read, and a preempt
/// timer and a ring that never end a turn before its first task. Glommio takes a turn that ended so
/// for an idle one and sleeps on ready tasks; with a timer of 500 us a load generator slept for
/// good after some seconds.
///
/// # Panics
/// When the kernel refuses io_uring or the locked memory that glommio asks for.
pub fn run<Main, Output>(main: Main) -> Output
where
    Main: Future<Output = Output>,
{
    LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(64 << 10)
        .ring_depth(1024)
        .preempt_timer(Duration::from_millis(100))
        .make()
        .expect("io_uring and 512 KiB of locked memory are needed")
        .run(main)
}
