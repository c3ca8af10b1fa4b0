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

use crate::request::inline::{InlineOffer, InlineTurn};

/// What a submitter owes the queues of steps.
pub(super) struct OwedSteps {
    /// It executes brief steps alone.
    is_for_brief: bool,
    turns: SmallVec<[InlineTurn; 1]>,
}

impl OwedSteps {
    /// Nothing yet, of a submitter that makes `offer`.
    pub(super) fn new(offer: &InlineOffer) -> OwedSteps {
        OwedSteps {
            is_for_brief: offer.is_for_brief(),
            turns: SmallVec::new(),
        }
    }

    pub(super) fn is_for_brief(&self) -> bool {
        self.is_for_brief
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

thread_local! {
    /// Of the innermost scope. A thread-local because the way from an answer to the next step leads
    /// through interfaces that know of no offer: completions, and runs that wait for this thread.
    static OWED_STEPS: RefCell<Option<OwedSteps>> = const { RefCell::new(None) };
}

/// The time in which a thread executes what it starts.
pub(super) struct InlineScope {
    /// Of a thread that executes a backend which sends a request to its own server.
    outer: Option<OwedSteps>,
}

impl InlineScope {
    /// This thread owes what is `owed`, and is offered steps.
    pub(super) fn open(owed: OwedSteps) -> InlineScope {
        InlineScope {
            outer: OWED_STEPS.replace(Some(owed)),
        }
    }

    /// Takes what this thread is to execute next, and how many turns it still owes then.
    pub(super) fn next_turn(&self) -> Option<(InlineTurn, usize)> {
        OWED_STEPS.with_borrow_mut(|owed| {
            let turns = &mut owed.as_mut()?.turns;
            Some((turns.pop()?, turns.len()))
        })
    }

    pub(super) fn owed_count(&self) -> usize {
        OWED_STEPS.with_borrow(|owed| owed.as_ref().map_or(0, |owed| owed.turns.len()))
    }

    /// Ends it; what is owed still is.
    pub(super) fn close(self) -> Option<OwedSteps> {
        OWED_STEPS.take()
    }
}

/// Leaves what is owed to cores.
impl Drop for InlineScope {
    fn drop(&mut self) {
        // Dropped when nothing is borrowed.
        drop(OWED_STEPS.replace(self.outer.take()));
    }
}

/// What is offered with a step that this thread starts: the execution of one step, and of brief
/// ones beside it. Steps side by side that take longer are for cores.
pub(super) fn step_offer() -> InlineOffer {
    OWED_STEPS.with_borrow(|owed| match owed {
        None => InlineOffer::none(),
        Some(owed) if owed.is_for_brief || !owed.is_empty() => InlineOffer::of_brief_execution(),
        Some(_) => InlineOffer::new(true),
    })
}

/// Notes what the queue of a step got for such an offer.
pub(super) fn owe(turn: InlineTurn) {
    OWED_STEPS.with_borrow_mut(|owed| match owed {
        Some(owed) => owed.turns.push(turn),
        None => drop(turn),
    });
}
