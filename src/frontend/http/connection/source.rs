//! Bodies of answers that come in pieces.

use std::task::{Context, Poll};

/// Where the pieces of a body come from. Dropped before its end when the client is gone.
pub(crate) trait BodySource {
    /// Appends the next piece to the empty `target`; false at the end. A piece is never empty.
    fn poll_piece(&mut self, context: &mut Context<'_>, target: &mut Vec<u8>) -> Poll<bool>;

    /// The client's connection has taken all pieces so far.
    fn note_sent(&mut self);
}
