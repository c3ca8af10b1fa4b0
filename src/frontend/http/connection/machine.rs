//! The state machine of a connection.

/// The state of a connection: how far its request has come.
///
/// ```text
///           head_incomplete           head_received          body_received
/// ──► Idle ────────────────► ReadingHead ──────► ReadingBody ─────────────► Answering ──► Closing
///     ▲ │                        │                 ▲ │ │                        │   answered,
///     │ └────────────────────────│─ head_received ─┘ │ │ body_skipped           │   it closes
///     │                          │                   │ └───────► AnsweringOnly  │
///     │                          │ refused   refused │               │ answered │
///     │                          └─────► Lingering ◄─┴───────────────┘          │
///     │                                                  answered, it stays     │
///     └─────────────────────────────────────────────────────────────────────────┘
/// ```
///
/// A head that is still incomplete stays in `ReadingHead`, and an idle connection may be refused as
/// well. In every state the connection may end without another transition: when its client is gone,
/// when the shard closes its socket, and when the shard drains while the connection is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpState {
    /// Nothing of the next request has arrived.
    Idle,
    /// The head has arrived in part.
    ReadingHead {
        /// The bytes that were searched for its end.
        seen: usize,
        /// When it has to be there, monotonic ns.
        deadline_ns: u64,
    },
    /// The head is planned, the body is received.
    ReadingBody,
    /// The request is with its service, or its answer on the way to the client.
    Answering,
    /// As `Answering`; the body has been left unread, so nothing can be read behind it.
    AnsweringOnly,
    /// The last answer is sent; what the client still sends is received and dropped.
    Lingering,
    /// What is collected is sent, then the socket is closed.
    Closing,
}

impl HttpState {
    /// The bytes of the head that were searched for its end.
    #[inline]
    pub(super) fn seen(self) -> usize {
        match self {
            HttpState::ReadingHead { seen, .. } => seen,
            _ => 0,
        }
    }

    /// `seen` bytes of a head, at least one, are no complete head. Returns when the rest has to be
    /// there: what the first call gets from `deadline`.
    #[inline]
    pub(super) fn head_incomplete(&mut self, seen: usize, deadline: impl FnOnce() -> u64) -> u64 {
        let deadline_ns = match *self {
            HttpState::Idle => deadline(),
            HttpState::ReadingHead { deadline_ns, .. } => deadline_ns,
            state => illegal("head_incomplete", state),
        };
        *self = HttpState::ReadingHead { seen, deadline_ns };
        deadline_ns
    }

    /// A complete head has been planned.
    #[inline]
    pub(super) fn head_received(&mut self) {
        match *self {
            HttpState::Idle | HttpState::ReadingHead { .. } => *self = HttpState::ReadingBody,
            state => illegal("head_received", state),
        }
    }

    /// All of the body is there, or dropped.
    #[inline]
    pub(super) fn body_received(&mut self) {
        match *self {
            HttpState::ReadingBody => *self = HttpState::Answering,
            state => illegal("body_received", state),
        }
    }

    /// The body is left where it is.
    #[inline]
    pub(super) fn body_skipped(&mut self) {
        match *self {
            HttpState::ReadingBody => *self = HttpState::AnsweringOnly,
            state => illegal("body_skipped", state),
        }
    }

    /// The answer is sent or collected.
    #[inline]
    pub(super) fn answered(&mut self, closes: bool) {
        *self = match *self {
            HttpState::Answering if closes => HttpState::Closing,
            HttpState::Answering => HttpState::Idle,
            HttpState::AnsweringOnly => HttpState::Lingering,
            state => illegal("answered", state),
        };
    }

    /// The head or the body cannot be accepted.
    pub(super) fn refused(&mut self) {
        match *self {
            HttpState::Idle | HttpState::ReadingHead { .. } | HttpState::ReadingBody => {
                *self = HttpState::Lingering;
            }
            state => illegal("refused", state),
        }
    }
}

#[cold]
fn illegal(event: &str, state: HttpState) -> ! {
    panic!("the event {event} in state {state:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_move_states_as_drawn() {
        use HttpState::{Answering, AnsweringOnly, Closing, Idle, Lingering, ReadingBody};
        type Row<'a> = (&'a str, fn(&mut HttpState), &'a [(HttpState, HttpState)]);
        let reading = |seen| HttpState::ReadingHead {
            seen,
            deadline_ns: 7,
        };
        let (some, more) = (reading(5), reading(9));
        let incomplete = |state: &mut HttpState| {
            assert_eq!(state.head_incomplete(9, || 7), 7);
        };
        // Each event with the states that it leads from and to; in all others it is illegal.
        let rows: [Row<'_>; 7] = [
            ("head_incomplete", incomplete, &[(Idle, more), (some, more)]),
            (
                "head_received",
                HttpState::head_received,
                &[(Idle, ReadingBody), (some, ReadingBody)],
            ),
            (
                "body_received",
                HttpState::body_received,
                &[(ReadingBody, Answering)],
            ),
            (
                "body_skipped",
                HttpState::body_skipped,
                &[(ReadingBody, AnsweringOnly)],
            ),
            (
                "answered, kept",
                |state| state.answered(false),
                &[(Answering, Idle), (AnsweringOnly, Lingering)],
            ),
            (
                "answered, closes",
                |state| state.answered(true),
                &[(Answering, Closing), (AnsweringOnly, Lingering)],
            ),
            (
                "refused",
                HttpState::refused,
                &[
                    (Idle, Lingering),
                    (some, Lingering),
                    (ReadingBody, Lingering),
                ],
            ),
        ];
        let states = [
            Idle,
            some,
            ReadingBody,
            Answering,
            AnsweringOnly,
            Lingering,
            Closing,
        ];
        for (name, event, moves) in rows {
            for from in states {
                let outcome = std::panic::catch_unwind(|| {
                    let mut state = from;
                    event(&mut state);
                    state
                });
                let expected = moves.iter().find(|(state, _)| *state == from);
                assert_eq!(
                    outcome.ok(),
                    expected.map(|(_, to)| *to),
                    "{name} in {from:?}"
                );
            }
        }
    }
}
