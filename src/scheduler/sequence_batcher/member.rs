//! The part of a request in its sequence.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The name of a sequence. Ids that the server made up never meet those of clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SequenceKey {
    Unsigned(u64),
    Text(Box<str>),
    Generated(u64),
}

impl fmt::Display for SequenceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SequenceKey::Unsigned(number) | SequenceKey::Generated(number) => number.fmt(f),
            SequenceKey::Text(text) => text.fmt(f),
        }
    }
}

/// A request's part in its sequence.
#[derive(Debug)]
pub struct SequenceContext {
    pub key: SequenceKey,
    pub is_start: bool,
    pub is_end: bool,
    /// The run that it belongs to, and the slot that it is, or was last, the next request of; 0:
    /// none yet. Only the scheduler reads and writes them, under its lock.
    run: AtomicU64,
    slot: AtomicU64,
    /// It was given out, and the scheduler has not learned that it is back. As `run`.
    is_out: AtomicBool,
    /// Whoever executed it since has brought it back.
    is_back: AtomicBool,
}

/// Number of an [`ActiveSequence`](super::table::ActiveSequence): never 0, and never used twice.
pub(super) type SequenceNumber = u64;

/// A slot: its instance, and its row there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotId {
    /// First: slots are given out row by row, over all instances.
    pub(super) row: u32,
    pub(super) instance: u32,
}

impl SlotId {
    pub(super) fn new(instance: usize, row: usize) -> SlotId {
        SlotId {
            row: row as u32,
            instance: instance as u32,
        }
    }

    pub(super) fn instance(self) -> usize {
        self.instance as usize
    }

    pub(super) fn row(self) -> usize {
        self.row as usize
    }
}

impl SequenceContext {
    pub fn new(key: SequenceKey, is_start: bool, is_end: bool) -> SequenceContext {
        SequenceContext {
            key,
            is_start,
            is_end,
            run: AtomicU64::new(0),
            slot: AtomicU64::new(0),
            is_out: AtomicBool::new(false),
            is_back: AtomicBool::new(false),
        }
    }

    pub(super) fn join(&self, run: SequenceNumber) {
        self.run.store(run, Ordering::Relaxed);
    }

    pub fn run(&self) -> Option<u64> {
        let run = self.run.load(Ordering::Relaxed);
        (run != 0).then_some(run)
    }

    /// It is the next of the sequence in `slot`.
    pub(super) fn enter(&self, slot: SlotId) {
        let packed = u64::from(slot.instance) << 32 | u64::from(slot.row);
        self.slot.store(packed, Ordering::Relaxed);
    }

    /// It is in a batch.
    pub(super) fn give_out(&self) {
        self.is_out.store(true, Ordering::Relaxed);
        self.is_back.store(false, Ordering::Relaxed);
    }

    /// Says that it is done with, or to be run again, before it is pushed for the scheduler: a push
    /// that finds it linked, as somebody has just pushed it to have it cancelled, leaves no other
    /// trace.
    pub fn bring_back(&self) {
        self.is_back.store(true, Ordering::Relaxed);
        // Pairs with the fence of `is_back`.
        fence(Ordering::SeqCst);
    }

    /// Whether it was brought back. For the thread that has just taken it out of a queue.
    pub fn is_back(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_back.load(Ordering::Relaxed)
    }

    /// Takes it back, once each time that it was given out.
    pub(super) fn take_back(&self) -> bool {
        self.is_out.swap(false, Ordering::Relaxed)
    }

    pub(super) fn slot(&self) -> SlotId {
        let packed = self.slot.load(Ordering::Relaxed);
        SlotId {
            instance: (packed >> 32) as u32,
            row: packed as u32,
        }
    }
}
