//! What the connection task knows of its socket, which h2 owns.

use std::cell::Cell;
use std::io;
use std::task::Poll;

use conch_engine::clock;

#[derive(Debug, Default)]
pub(in crate::grpc) struct TransportState {
    /// When the peer's last bytes came; monotonic.
    pub(in crate::grpc) received_ns: Cell<u64>,
    /// Since when the socket takes no more bytes; 0 if it does.
    pub(in crate::grpc) blocked_since_ns: Cell<u64>,
    /// Since when a header block has been coming; 0 for none.
    pub(in crate::grpc) block_since_ns: Cell<u64>,
    /// Whether a call is open; kept by the connection, and set here by a head that may open one.
    pub(in crate::grpc) has_calls: Cell<bool>,
}

impl TransportState {
    /// Notes since when the socket takes nothing.
    pub(super) fn note_send<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &outcome {
            Poll::Ready(_) => self.blocked_since_ns.set(0),
            Poll::Pending if self.blocked_since_ns.get() == 0 => {
                self.blocked_since_ns.set(clock::monotonic_ns());
            }
            Poll::Pending => {}
        }
        outcome
    }

    /// Notes whether a header block is open.
    pub(super) fn note_block(&self, is_open: bool, now_ns: u64) {
        self.block_since_ns.set(match is_open {
            false => 0,
            true if self.block_since_ns.get() == 0 => now_ns,
            true => self.block_since_ns.get(),
        });
    }
}
