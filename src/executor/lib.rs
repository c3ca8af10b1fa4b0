//! An executor for one thread that enters the kernel once per turn.
//!
//! A turn runs every task that was ready when it began, for [`TURN_MAX`] at most, then wakes what
//! is due: timers, tasks whose sockets are ready, tasks that other threads woke. If nothing is
//! ready, the thread sleeps in the same system call that submits what its tasks wait for.
//!
//! - `executor`: the turn, and how a thread enters and leaves it.
//! - `reactor`: what the tasks of a thread wait for; found by way of a thread-local.
//! - `schedule`: the queues of tasks that are ready, and wakes from other threads.
//! - `task`, `timer`, `socket`, `turn`: what tasks use.
//! - `wheel`: the timers of a thread, by time.
//! - `turn_meter`, `stages`: which turns last too long, and what is known of them.
//!
//! Futures may be dropped at any time. A task that panics unwinds out of [`run`]; callers that want
//! to outlive it catch panics in the task.

#![forbid(unsafe_code)]

mod executor;
mod reactor;
mod schedule;
mod socket;
mod stages;
mod task;
mod timer;
mod turn;
mod turn_meter;
mod wheel;

pub use executor::{LocalExecutor, Options, TURN_MAX};
pub use socket::Socket;
pub use stages::{STAGES_MAX, StageSet, enter_stage, note_spent};
pub use task::{Task, spawn};
pub use timer::Timer;
pub use turn::yield_now;
pub use turn_meter::{LONG_TURN_NS, LongTurn, LongTurnObserver};

#[cfg(test)]
mod tests;
