//! Whether a model says that it is ready (`is_ready` of its class).
//!
//! A thread of the stub asks for questions and is answered when there is one; so the model can be
//! asked while it executes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use conch_backend_sdk as sdk;
use sdk::{Code, Error};
use serde_json::json;

use crate::process::{Reply, StubProcess};

/// How long a model may take to say, as upstream has it.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Questions to one stub, one at a time. Those who ask meanwhile share the answer.
#[derive(Default)]
pub(crate) struct Readiness {
    state: Mutex<ReadinessState>,
    changed: Condvar,
}

#[derive(Default)]
struct ReadinessState {
    /// The model has `is_ready`.
    is_asked: bool,
    /// The stub's thread waits here for a question.
    listener: Option<u64>,
    /// The number of the last question, and of the last that was answered.
    question: u64,
    answered: u64,
    answer: Option<Result<(), Error>>,
}

impl Readiness {
    /// A stub begins, whose model has `is_ready` or not.
    pub(crate) fn begin(&self, is_asked: bool) {
        let mut state = self.lock();
        state.is_asked = is_asked;
    }

    /// The stub is gone.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.is_asked = false;
        state.listener = None;
        state.answered = state.question;
        state.answer = Some(Err(Error::internal(
            "Stub process is not healthy while waiting for user-defined is_ready() response",
        )));
        self.changed.notify_all();
    }

    /// Asks the model, if it wants to be asked. Blocks for some seconds at most.
    ///
    /// # Errors
    /// That it is not ready, or why it did not say.
    pub(crate) fn check(&self, process: &StubProcess) -> Result<(), Error> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        let mut state = self.lock();
        if !state.is_asked {
            return Ok(());
        }
        if state.answered == state.question {
            state.question += 1;
            ask(process, &mut state);
        }
        let question = state.question;
        while state.answered < question {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(
                    Code::Unavailable,
                    "Timed out waiting for user-defined is_ready() response",
                ));
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.answer.clone().unwrap_or(Ok(()))
    }

    /// The stub's thread waits for a question.
    pub(crate) fn listen(&self, process: &StubProcess, waiting: Reply<'_>) {
        let mut state = self.lock();
        state.listener = Some(waiting.defer());
        if state.answered < state.question {
            ask(process, &mut state);
        }
    }

    /// The model's answer to a question.
    pub(crate) fn answer(&self, question: u64, answer: Result<(), Error>) {
        let mut state = self.lock();
        if question == state.question {
            state.answered = question;
            state.answer = Some(answer);
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReadinessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the last question, if the stub's thread is there; else it is sent when it is.
fn ask(process: &StubProcess, state: &mut ReadinessState) {
    let Some(listener) = state.listener.take() else {
        return;
    };
    let text = json!({ "n": state.question }).to_string();
    let reply = process
        .write(text.as_bytes(), 0)
        .map_or(0, |(offset, _)| offset);
    process.answer_later(listener, reply);
}
