//! Instances that do not block: a core keeps batches of several of them in flight.
//!
//! - [`in_flight`]: the batches of one instance, and when to look at them next.
//! - [`depth`]: how many an instance may have, by what overlap gains.
//! - [`stream_instance`]: one instance with both, and what becomes of it if its device hangs.
//! - [`stream_core`]: the core that drives several of them.
//! - [`synchronous`]: an instance that is driven as if it blocked, where its model lets no batches
//!   overlap: with sequences, whose scheduler waits for what it gave out, and under a rate limit,
//!   whose resources are one execution's.
//!
//! ```text
//!             batch formed               event reached, noticed by a poll
//!   queue ──────────────────► in flight ──────────────────────────────────► answered
//!                                 │ longer than the execution timeout
//!                                 └────► answered with an error; the instance is left aside for
//!                                        good, with its memory, and its model serves no more
//! ```

pub(crate) mod depth;
pub(crate) mod in_flight;
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
