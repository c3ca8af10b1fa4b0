//! Steps that the thread which submits a request executes itself, one after another.
//!
//! A submitter that may execute makes an offer with its request
//! ([`request/inline.rs`](crate::request::inline)), and an ensemble passes it on to its first step.
//! When the submitter executes that, the answers start the next steps on the same thread: those of
//! the request, and of others whose steps were in the same batch. They are offered in the same way,
//! and so on: no thread is woken in between. What does not end in time, and what other threads
//! start, is left to cores.

use std::cell::RefCell;

use smallvec::SmallVec;

use crate::request::inline::{InlineDuration, InlineOffer, InlineTurn};

/// What a submitter owes the queues of steps.
pub(super) struct InlineSteps {
    /// How long each may take.
    duration: InlineDuration,
    turns: SmallVec<[InlineTurn; 1]>,
}

impl InlineSteps {
    /// Nothing yet, of a submitter that makes `offer`.
    pub(super) fn new(offer: &InlineOffer) -> InlineSteps {
        InlineSteps {
            duration: offer.duration().unwrap_or_default(),
            turns: SmallVec::new(),
        }
    }

    pub(super) fn duration(&self) -> InlineDuration {
        self.duration
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

thread_local! {
    /// Of the innermost guard. A thread-local because the way from an answer to the next step leads
    /// through interfaces that know of no offer: completions, and runs that wait for this thread.
    static INLINE_STEPS: RefCell<Option<InlineSteps>> = const { RefCell::new(None) };
}

/// While it is there, its thread is offered the steps that it starts.
pub(super) struct InlineGuard {
    /// Of a thread that executes a backend which sends a request to its own server.
    outer: Option<InlineSteps>,
}

impl InlineGuard {
    /// This thread owes what is `owed`, and is offered steps.
    pub(super) fn open(owed: InlineSteps) -> InlineGuard {
        InlineGuard {
            outer: INLINE_STEPS.replace(Some(owed)),
        }
    }

    /// Takes what this thread is to execute next, and how many turns it still owes then.
    pub(super) fn next_turn(&self) -> Option<(InlineTurn, usize)> {
        INLINE_STEPS.with_borrow_mut(|owed| {
            let turns = &mut owed.as_mut()?.turns;
            Some((turns.pop()?, turns.len()))
        })
    }

    pub(super) fn owed_count(&self) -> usize {
        INLINE_STEPS.with_borrow(|owed| owed.as_ref().map_or(0, |owed| owed.turns.len()))
    }

    /// Ends it; what is owed still is.
    pub(super) fn close(self) -> Option<InlineSteps> {
        INLINE_STEPS.take()
    }
}

/// Leaves what is owed to cores.
impl Drop for InlineGuard {
    fn drop(&mut self) {
        // Dropped when nothing is borrowed.
        drop(INLINE_STEPS.replace(self.outer.take()));
    }
}

/// What is offered with a step that this thread starts: the execution of one step, and of brief
/// ones beside it. Steps side by side that take longer are for cores.
pub(super) fn step_offer() -> InlineOffer {
    INLINE_STEPS.with_borrow(|owed| match owed {
        None => InlineOffer::none(),
        Some(owed) if owed.duration == InlineDuration::Any && !owed.is_empty() => {
            InlineOffer::of_brief_execution(0)
        }
        // What they have to read is not known yet: who executes them looks.
        Some(owed) => InlineOffer::of_duration(owed.duration, 0),
    })
}

/// Notes what the queue of a step got for such an offer.
pub(super) fn owe(turn: InlineTurn) {
    INLINE_STEPS.with_borrow_mut(|owed| match owed {
        Some(owed) => owed.turns.push(turn),
        None => drop(turn),
    });
}
