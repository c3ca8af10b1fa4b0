//! Steps that the thread which submits a request executes itself, one after another.
//!
//! A submitter that has nothing else to do makes an offer with its request
//! ([`request/inline.rs`](crate::request::inline)), and an ensemble passes it on to its first step.
//! When the submitter executes that, the step's answer starts the next step on the same thread,
//! which is offered in the same way, and so on: no thread is woken in between. What does not end in
//! time, and what other threads start, is left to cores.

use std::thread::{self, ThreadId};

use crate::request::inline::{InlineOffer, InlineTurn};

/// Part of the state of an execution.
#[derive(Default)]
pub(super) struct InlineSteps {
    /// The thread that may execute what it starts.
    thread: Option<ThreadId>,
    /// What that thread owes the queue of a step, at most one.
    turn: Option<InlineTurn>,
    /// Its submitter executes brief steps alone.
    must_be_brief: bool,
}

impl InlineSteps {
    /// Passes on what the submitter offers: steps are offered likewise.
    pub(super) fn begin(&mut self, offer: &InlineOffer) {
        if offer.is_open() {
            self.must_be_brief = offer.is_for_brief();
            self.open();
        }
    }

    /// From now on this thread may execute what it starts.
    pub(super) fn open(&mut self) {
        self.thread = Some(thread::current().id());
    }

    /// Nobody may any more. What was owed still is: whether anything was.
    pub(super) fn close(&mut self) -> bool {
        self.thread = None;
        self.turn.is_some()
    }

    /// What is offered with a step that this thread starts.
    pub(super) fn offer(&self) -> InlineOffer {
        let is_open =
            self.turn.is_none() && self.thread.is_some_and(|own| own == thread::current().id());
        match is_open && self.must_be_brief {
            true => InlineOffer::of_brief_execution(),
            false => InlineOffer::new(is_open),
        }
    }

    /// Notes what the queue of a step got for an offer.
    pub(super) fn owe(&mut self, turn: InlineTurn) {
        self.turn = Some(turn);
    }

    pub(super) fn take(&mut self) -> Option<InlineTurn> {
        self.turn.take()
    }
}
