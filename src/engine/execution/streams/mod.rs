//! Instances that do not block: a core keeps batches of several of them in flight.
//!
//! - [`in_flight`]: the batches of one instance, and when to look at them next.
//! - [`depth`]: how many an instance may have, by what overlap gains.
//! - [`stream_instance`]: one instance with both, and what becomes of it if its device hangs.
//! - [`stream_core`]: the part of a core that is one model's.
//! - [`device_core`]: the thread that drives those of all models on a GPU.
//! - [`device_cores`]: who drives whom, and how a model that blocks leaves the others.
//! - [`sharing`]: the same without threads and clock.
//! - [`synchronous`]: an instance that is driven as if it blocked, where its model lets no batches
//!   overlap: with direct sequences, whose scheduler waits for what it gave out, and under a rate
//!   limit, whose resources are one execution's.
//!
//! ```text
//!             batch formed               event reached, noticed by a poll
//!   queue ──────────────────► in flight ──────────────────────────────────► answered
//!                                 │ longer than the execution timeout
//!                                 └────► answered with an error; the instance is left aside for
//!                                        good, with its memory, and its model serves no more
//! ```

pub(crate) mod depth;
pub(crate) mod device_core;
pub mod device_cores;
pub(crate) mod in_flight;
pub(crate) mod sharing;
pub(crate) mod stream_core;
pub(crate) mod stream_instance;
pub(crate) mod synchronous;

use std::time::Duration;

/// Waits for the next look: sleeps until `look_ns`, or spins once if that is not later than now.
fn pause_until(look_ns: u64, now_ns: u64) {
    if look_ns > now_ns {
        std::thread::sleep(Duration::from_nanos(look_ns - now_ns));
    } else {
        std::hint::spin_loop();
    }
}
