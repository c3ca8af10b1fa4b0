//! The sequence batcher: requests of one sequence go to one instance, one after the other, each in
//! its slot.
//!
//! ```text
//!                START, slot free                      its last request is given out
//!   (unknown) ────────────────────► slot ── END, idle, ──► closed ─────────────────► slot free, or
//!       │                            ▲     cancelled      (takes no more)           the oldest of
//!       │ START, no slot free        │ promoted                                     the backlog
//!       └─────────────────────────► backlog ──── timeout, cancelled ────► answered
//! ```
//!
//! A slot belongs to an instance (its row there is the slot's number) and each instance to one
//! core. What a core may execute is thus decided when a sequence starts; this scheduler calls that
//! core by name. Cores may come later, and leave once their sequences have ended. As upstream's
//! `SequenceBatchScheduler`, but that a sequence is not idle while something of it waits or
//! executes, and that a cancelled request ends its sequence at once, not when its turn comes.
//!
//! - [`batcher`]: the scheduler itself, and what follows from each event in a slot.
//! - [`requests`]: requests that arrive, are cancelled, and come back; [`cores`]: cores that come
//!   and leave; [`forming`]: batches, and what is due by the clock.
//! - [`direct`], [`oldest`]: how a batch forms from the slots of one instance.
//! - [`slot`], [`instances`], [`free_slots`]: the slots; [`table`], [`idle`], [`member`]: the
//!   sequences.

mod batcher;
mod cores;
mod direct;
mod forming;
mod free_slots;
mod idle;
mod instances;
mod member;
mod oldest;
mod requests;
mod slot;
mod table;
#[cfg(test)]
mod tests;

pub use batcher::{SequenceBatcher, SlotUsage};
pub use member::{SequenceContext, SequenceKey};
