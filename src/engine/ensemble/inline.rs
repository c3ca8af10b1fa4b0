//! Steps that the thread which submits a request executes itself, one after another.
//!
//! A submitter that has nothing else to do makes an offer with its request
//! ([`request/inline.rs`](crate::request::inline)), and an ensemble passes it on to its first step.
//! When the submitter executes that, the step's answer starts the next step on the same thread,
//! which is offered in the same way, and so on: no thread is woken in between. What does not end in
//! time, and what other threads start, is left to cores.

use std::thread::{self, ThreadId};

use crate::request::inline::InlineTurn;

/// Part of the state of an execution.
#[derive(Default)]
pub(super) struct InlineSteps {
    /// The thread that may execute what it starts.
    thread: Option<ThreadId>,
    /// What that thread owes the queue of a step, at most one.
    turn: Option<InlineTurn>,
}

impl InlineSteps {
    /// From now on this thread may execute what it starts.
    pub(super) fn open(&mut self) {
        self.thread = Some(thread::current().id());
    }

    /// Nobody may any more. What was owed still is: whether anything was.
    pub(super) fn close(&mut self) -> bool {
        self.thread = None;
        self.turn.is_some()
    }

    /// Whether a step that this thread starts is to be offered.
    pub(super) fn is_open(&self) -> bool {
        self.turn.is_none() && self.thread.is_some_and(|own| own == thread::current().id())
    }

    /// Notes what the queue of a step got for an offer.
    pub(super) fn owe(&mut self, turn: InlineTurn) {
        self.turn = Some(turn);
    }

    pub(super) fn take(&mut self) -> Option<InlineTurn> {
        self.turn.take()
    }
}
