//! The life of a request that a backend holds: what the backend did with it, and what it may still
//! do.
//!
//! ```text
//!           lend                   reschedule
//!   Empty ─────────► Executing ──────────────────► Rescheduled ──┐ respond (final),
//!    │ ▲              │ │ │                                      │ end_rescheduled
//!    │ │              │ │ │ release, a sender is open            │
//!    │ │ take_back    │ │ └────────────────────► Released ───────┤ respond (final),
//!    │ │              │ │                                        │ close_sender (the last)
//!    │ │              │ │ release, no sender is open; recall     │
//!    ▼ │              │ └────────────────────────────────────────┤
//!   Shown             │ respond (final)                          │
//!    ▲                ▼                   release, recall        ▼
//!    └─ show       Answered ──────────────────────────────────► Ended
//!
//!   Rescheduled, Ended ── reset ──► Empty
//! ```
//!
//! A *sender* is the right to respond: each response and each response factory holds one. It may
//! outlive the release, and the backend may open one in each state but Empty and Shown.
//!
//! Backends are foreign code, so what they do in a wrong state is refused. An event that this crate
//! causes in a wrong state is a fault of its own, and panics.

use conch_engine::Error;

/// How far a backend request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LifecycleState {
    /// There is no request: a shell between two requests.
    #[default]
    Empty,
    /// A batching strategy reads the request; it may do nothing else with it.
    Shown,
    /// The backend holds the request and owes its final response.
    Executing,
    /// The backend holds the request and has sent its final response.
    Answered,
    /// The backend released the request; an open sender owes the final response.
    Released,
    /// The backend gave the request back to be run again: a later one answers it.
    Rescheduled,
    /// The backend released the request, and its final response is sent.
    Ended,
}

/// A backend request's state and its open senders.
#[derive(Debug, Default)]
pub(super) struct RequestLifecycle {
    state: LifecycleState,
    sender_count: u32,
}

/// Why a backend's call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifecycleError {
    /// There is no request.
    Empty,
    /// The request is only shown to a batching strategy.
    Shown,
    /// The backend gave the request back before.
    Released,
    /// The backend sent the final response before.
    Answered,
}

impl From<LifecycleError> for Error {
    fn from(error: LifecycleError) -> Error {
        Error::invalid(match error {
            LifecycleError::Empty | LifecycleError::Released => "request was already released",
            LifecycleError::Shown => {
                "the request is not executing: a batching strategy may only read it"
            }
            LifecycleError::Answered => "a response was sent after the final one of its request",
        })
    }
}

/// Where the final response of a request comes from that its backend holds no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinalResponse {
    /// The backend sent it.
    Sent,
    /// An open sender owes it.
    Owed,
    /// Nobody can send it any more.
    Missing,
}

impl RequestLifecycle {
    /// A backend gets a request to execute.
    pub(super) fn lend(&mut self) {
        assert_eq!(self.state, LifecycleState::Empty, "one request at a time");
        self.state = LifecycleState::Executing;
    }

    /// A batching strategy gets a request to read.
    pub(super) fn show(&mut self) {
        assert_eq!(self.state, LifecycleState::Empty, "one request at a time");
        self.state = LifecycleState::Shown;
    }

    /// The batching strategy has read the request.
    pub(super) fn take_back(&mut self) {
        assert_eq!(self.state, LifecycleState::Shown, "only what is shown");
        self.state = LifecycleState::Empty;
    }

    /// The last holder of a backend request makes it a shell again.
    pub(super) fn reset(&mut self) {
        assert!(
            matches!(
                self.state,
                LifecycleState::Rescheduled | LifecycleState::Ended
            ) && self.sender_count == 0,
            "a request that goes on was reset: {self:?}"
        );
        self.state = LifecycleState::Empty;
    }

    /// Refuses what only the backend that executes the request may do.
    pub(super) fn check_owned(&self) -> Result<(), LifecycleError> {
        match self.state {
            LifecycleState::Empty => Err(LifecycleError::Empty),
            LifecycleState::Shown => Err(LifecycleError::Shown),
            _ => Ok(()),
        }
    }

    /// The backend begins a response or a response factory.
    pub(super) fn open_sender(&mut self) -> Result<(), LifecycleError> {
        self.check_owned()?;
        self.sender_count += 1;
        Ok(())
    }

    /// A response is sent or deleted, or a response factory deleted. Returns whether the final
    /// response is missing now.
    pub(super) fn close_sender(&mut self) -> bool {
        assert!(
            self.sender_count > 0 && self.check_owned().is_ok(),
            "a sender that is not open was closed: {self:?}"
        );
        self.sender_count -= 1;
        let is_missing = self.sender_count == 0 && self.state == LifecycleState::Released;
        if is_missing {
            self.state = LifecycleState::Ended;
        }
        is_missing
    }

    /// A sender sends a response, or flags alone.
    pub(super) fn respond(&mut self, is_final: bool) -> Result<(), LifecycleError> {
        assert!(self.sender_count > 0, "only a sender responds");
        let next = match self.state {
            LifecycleState::Executing => LifecycleState::Answered,
            LifecycleState::Released | LifecycleState::Rescheduled => LifecycleState::Ended,
            LifecycleState::Answered | LifecycleState::Ended => {
                return Err(LifecycleError::Answered);
            }
            LifecycleState::Empty | LifecycleState::Shown => panic!("these have no senders"),
        };
        if is_final {
            self.state = next;
        }
        Ok(())
    }

    /// The backend gives the request back.
    pub(super) fn release(&mut self) -> Result<FinalResponse, LifecycleError> {
        self.check_held()?;
        let response = match self.state {
            LifecycleState::Answered => FinalResponse::Sent,
            _ if self.sender_count > 0 => FinalResponse::Owed,
            _ => FinalResponse::Missing,
        };
        self.state = match response {
            FinalResponse::Owed => LifecycleState::Released,
            FinalResponse::Sent | FinalResponse::Missing => LifecycleState::Ended,
        };
        Ok(response)
    }

    /// The backend gives the request back to be run again.
    pub(super) fn reschedule(&mut self) -> Result<(), LifecycleError> {
        self.check_held()?;
        if self.state == LifecycleState::Answered {
            return Err(LifecycleError::Answered);
        }
        self.state = LifecycleState::Rescheduled;
        Ok(())
    }

    /// The scheduler does not run a rescheduled request again: it is over. Returns whether its
    /// final response is missing; a sender may have sent it meanwhile.
    pub(super) fn end_rescheduled(&mut self) -> bool {
        let is_missing = self.state == LifecycleState::Rescheduled;
        assert!(
            is_missing || self.state == LifecycleState::Ended,
            "the request was not rescheduled: {self:?}"
        );
        self.state = LifecycleState::Ended;
        is_missing
    }

    /// Execute failed: the request returns to the server, unless the backend gave it back before
    /// that.
    pub(super) fn recall(&mut self) -> Result<FinalResponse, LifecycleError> {
        self.check_held()?;
        let is_sent = self.state == LifecycleState::Answered;
        self.state = LifecycleState::Ended;
        Ok(if is_sent {
            FinalResponse::Sent
        } else {
            FinalResponse::Missing
        })
    }

    /// Whether the request is over, except that senders are still open.
    pub(super) fn is_over_before_its_senders(&self) -> bool {
        self.has_ended() && self.sender_count > 0
    }

    /// Whether the backend released the request, and the final response is sent.
    pub(super) fn has_ended(&self) -> bool {
        self.state == LifecycleState::Ended
    }

    fn check_held(&self) -> Result<(), LifecycleError> {
        self.check_owned()?;
        match self.state {
            LifecycleState::Executing | LifecycleState::Answered => Ok(()),
            _ => Err(LifecycleError::Released),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FinalResponse::{Missing, Owed, Sent};
    use super::LifecycleState::{Answered, Empty, Ended, Executing, Released, Rescheduled, Shown};
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Lend,
        Show,
        TakeBack,
        Reset,
        OpenSender,
        CloseSender,
        Respond,
        RespondFinal,
        Release,
        Reschedule,
        EndRescheduled,
        Recall,
    }
    use Event::*;

    /// What an event led to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Outcome {
        /// It returned nothing, or false.
        Done,
        /// It returned true, which means that the final response is missing.
        IsMissing,
        Response(FinalResponse),
        Refused(LifecycleError),
        Panicked,
    }
    use Outcome::*;

    const STATES: [LifecycleState; 7] = [
        Empty,
        Shown,
        Executing,
        Answered,
        Released,
        Rescheduled,
        Ended,
    ];

    fn apply(lifecycle: &mut RequestLifecycle, event: Event) -> Outcome {
        let missing = |is_missing| if is_missing { IsMissing } else { Done };
        let done = |result: Result<(), LifecycleError>| result.map_or_else(Refused, |()| Done);
        let response =
            |result: Result<FinalResponse, LifecycleError>| result.map_or_else(Refused, Response);
        match event {
            Lend => lifecycle.lend(),
            Show => lifecycle.show(),
            TakeBack => lifecycle.take_back(),
            Reset => lifecycle.reset(),
            OpenSender => return done(lifecycle.open_sender()),
            CloseSender => return missing(lifecycle.close_sender()),
            Respond => return done(lifecycle.respond(false)),
            RespondFinal => return done(lifecycle.respond(true)),
            Release => return response(lifecycle.release()),
            Reschedule => return done(lifecycle.reschedule()),
            EndRescheduled => return missing(lifecycle.end_rescheduled()),
            Recall => return response(lifecycle.recall()),
        }
        Done
    }

    /// What an event does in a state: where it leads, and what it returns. `Err`: nothing changes.
    type Cell = Result<(LifecycleState, Outcome), Outcome>;

    const PANICS: Cell = Err(Panicked);
    const REFUSED_EMPTY: Cell = Err(Refused(LifecycleError::Empty));
    const REFUSED_SHOWN: Cell = Err(Refused(LifecycleError::Shown));
    const REFUSED_RELEASED: Cell = Err(Refused(LifecycleError::Released));
    const REFUSED_ANSWERED: Cell = Err(Refused(LifecycleError::Answered));

    const fn to(state: LifecycleState) -> Cell {
        Ok((state, Done))
    }

    const fn ends(response: FinalResponse) -> Cell {
        Ok((Ended, Response(response)))
    }

    /// Applies `event` in each of [`STATES`] with so many open senders.
    fn check(event: Event, sender_count: u32, expected: [Cell; 7]) {
        for (state, cell) in STATES.into_iter().zip(expected) {
            let mut lifecycle = RequestLifecycle {
                state,
                sender_count,
            };
            let call = std::panic::AssertUnwindSafe(|| apply(&mut lifecycle, event));
            let outcome = std::panic::catch_unwind(call).unwrap_or(Panicked);
            let (expected_state, expected_outcome, expected_count) = match (cell, event) {
                (Ok((next, outcome)), OpenSender) => (next, outcome, sender_count + 1),
                (Ok((next, outcome)), CloseSender) => (next, outcome, sender_count - 1),
                (Ok((next, outcome)), _) => (next, outcome, sender_count),
                (Err(outcome), _) => (state, outcome, sender_count),
            };
            assert_eq!(
                (lifecycle.state, outcome, lifecycle.sender_count),
                (expected_state, expected_outcome, expected_count),
                "{event:?} in {state:?} with {sender_count} senders"
            );
        }
    }

    /// The rows of a table: event, open senders, and a cell for each of [`STATES`].
    macro_rules! checks {
        ($($event:ident, $sender_count:literal: [$($cell:expr),* $(,)?];)*) => {
            $(check($event, $sender_count, [$($cell),*]);)*
        };
    }

    #[test]
    fn the_server_causes_its_events_in_their_states_only() {
        // Empty, Shown, Executing, Answered, Released, Rescheduled, Ended
        checks! {
            Lend, 0: [to(Executing), PANICS, PANICS, PANICS, PANICS, PANICS, PANICS];
            Show, 0: [to(Shown), PANICS, PANICS, PANICS, PANICS, PANICS, PANICS];
            TakeBack, 0: [PANICS, to(Empty), PANICS, PANICS, PANICS, PANICS, PANICS];
            Reset, 0: [PANICS, PANICS, PANICS, PANICS, PANICS, to(Empty), to(Empty)];
            Reset, 1: [PANICS, PANICS, PANICS, PANICS, PANICS, PANICS, PANICS];
            Recall, 0: [
                REFUSED_EMPTY, REFUSED_SHOWN, ends(Missing), ends(Sent),
                REFUSED_RELEASED, REFUSED_RELEASED, REFUSED_RELEASED,
            ];
            Recall, 2: [
                REFUSED_EMPTY, REFUSED_SHOWN, ends(Missing), ends(Sent),
                REFUSED_RELEASED, REFUSED_RELEASED, REFUSED_RELEASED,
            ];
            EndRescheduled, 0: [
                PANICS, PANICS, PANICS, PANICS, PANICS, Ok((Ended, IsMissing)), to(Ended),
            ];
            EndRescheduled, 1: [
                PANICS, PANICS, PANICS, PANICS, PANICS, Ok((Ended, IsMissing)), to(Ended),
            ];
        }
    }

    #[test]
    fn a_backend_is_refused_what_its_request_is_past() {
        // Empty, Shown, Executing, Answered, Released, Rescheduled, Ended
        checks! {
            Release, 0: [
                REFUSED_EMPTY, REFUSED_SHOWN, ends(Missing), ends(Sent),
                REFUSED_RELEASED, REFUSED_RELEASED, REFUSED_RELEASED,
            ];
            Release, 1: [
                REFUSED_EMPTY, REFUSED_SHOWN, Ok((Released, Response(Owed))), ends(Sent),
                REFUSED_RELEASED, REFUSED_RELEASED, REFUSED_RELEASED,
            ];
            Reschedule, 0: [
                REFUSED_EMPTY, REFUSED_SHOWN, to(Rescheduled), REFUSED_ANSWERED,
                REFUSED_RELEASED, REFUSED_RELEASED, REFUSED_RELEASED,
            ];
            Reschedule, 3: [
                REFUSED_EMPTY, REFUSED_SHOWN, to(Rescheduled), REFUSED_ANSWERED,
                REFUSED_RELEASED, REFUSED_RELEASED, REFUSED_RELEASED,
            ];
        }
    }

    #[test]
    fn senders_respond_until_the_final_response() {
        // Empty, Shown, Executing, Answered, Released, Rescheduled, Ended
        checks! {
            OpenSender, 0: [
                REFUSED_EMPTY, REFUSED_SHOWN, to(Executing), to(Answered),
                to(Released), to(Rescheduled), to(Ended),
            ];
            OpenSender, 7: [
                REFUSED_EMPTY, REFUSED_SHOWN, to(Executing), to(Answered),
                to(Released), to(Rescheduled), to(Ended),
            ];
            CloseSender, 0: [PANICS, PANICS, PANICS, PANICS, PANICS, PANICS, PANICS];
            CloseSender, 1: [
                PANICS, PANICS, to(Executing), to(Answered),
                Ok((Ended, IsMissing)), to(Rescheduled), to(Ended),
            ];
            CloseSender, 2: [
                PANICS, PANICS, to(Executing), to(Answered),
                to(Released), to(Rescheduled), to(Ended),
            ];
            Respond, 0: [PANICS, PANICS, PANICS, PANICS, PANICS, PANICS, PANICS];
            Respond, 1: [
                PANICS, PANICS, to(Executing), REFUSED_ANSWERED,
                to(Released), to(Rescheduled), REFUSED_ANSWERED,
            ];
            RespondFinal, 0: [PANICS, PANICS, PANICS, PANICS, PANICS, PANICS, PANICS];
            RespondFinal, 1: [
                PANICS, PANICS, to(Answered), REFUSED_ANSWERED,
                to(Ended), to(Ended), REFUSED_ANSWERED,
            ];
        }
    }

    #[test]
    fn a_request_is_over_before_its_senders() {
        for state in STATES {
            for sender_count in [0, 1] {
                let lifecycle = RequestLifecycle {
                    state,
                    sender_count,
                };
                let is_over = state == Ended && sender_count > 0;
                assert_eq!(
                    lifecycle.is_over_before_its_senders(),
                    is_over,
                    "{lifecycle:?}"
                );
            }
        }
    }
}
