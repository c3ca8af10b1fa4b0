//! The one door to the executor of a shard: its thread, tasks, timers, and sockets.
//!
//! `own` is conch's executor, `glommio` the runtime that came first, by the cargo feature of that
//! name. Both keep the same promises, and the same tests run over both.

#[cfg(feature = "glommio")]
mod glommio;
#[cfg(not(feature = "glommio"))]
mod long_turns;
#[cfg(not(feature = "glommio"))]
mod own;

use std::sync::Arc;

use crate::shard::long_turns::LongTurns;

#[cfg(feature = "glommio")]
pub(crate) use self::glommio::{
    GAINS_BY_BRIEF_WAITS, GlommioSocket as Socket, GlommioTask as Task,
    GlommioThread as RuntimeThread, GlommioTimer as Timer, MAY_WAKE_ITSELF, enter_stage,
    note_spent, spawn, yield_now,
};
#[cfg(not(feature = "glommio"))]
pub(crate) use self::own::{
    GAINS_BY_BRIEF_WAITS, MAY_WAKE_ITSELF, RingSocket as Socket, RingThread as RuntimeThread, Task,
    Timer, enter_stage, note_spent, spawn, yield_now,
};

#[cfg(feature = "glommio")]
pub use self::glommio::LOCKED_BYTES_MIN;
#[cfg(not(feature = "glommio"))]
pub use self::own::LOCKED_BYTES_MIN;

/// How the thread of a shard runs.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeOptions {
    pub(crate) thread_name: String,
    /// The one CPU that the thread begins on; none for those of the process.
    pub(crate) cpu: Option<usize>,
    /// An idle thread looks for work for a while before it sleeps.
    pub(crate) spins: bool,
    /// Where turns are counted that last too long. Only conch's executor tells of them.
    #[cfg_attr(feature = "glommio", expect(dead_code))]
    pub(crate) long_turns: Arc<LongTurns>,
}

/// How long an idle shard looks for work before it sleeps, where it may spin at all.
const SPIN: std::time::Duration = std::time::Duration::from_micros(20);
