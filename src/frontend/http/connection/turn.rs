//! Bounds the time that a connection's task goes on without waiting.
//!
//! A task ends its turn when it waits, and a client that is always faster than we are never lets
//! it. So what it does is counted, and after [`TURN_BYTES`] the rest of the shard gets its turn.

use std::future::poll_fn;
use std::io;

use crate::shard::yield_now;
use crate::tls::ConnectionStream;

/// Bytes taken in or sent in one turn: some 100 us.
const TURN_BYTES: usize = 512 << 10;
/// What answering a request at once is like, in bytes.
pub(super) const REQUEST_BYTES: usize = 8 << 10;

/// What has been done since the task last waited.
#[derive(Default)]
pub(super) struct WorkBudget {
    bytes: usize,
}

impl WorkBudget {
    /// Receives into `room`; 0 is the end of the stream.
    pub(super) async fn receive(
        &mut self,
        stream: &mut ConnectionStream,
        room: &mut [u8],
    ) -> io::Result<usize> {
        let count = poll_fn(|context| {
            let outcome = stream.poll_receive(context, room);
            if outcome.is_pending() {
                self.bytes = 0;
            }
            outcome
        })
        .await?;
        self.spend(stream.work_bytes(count)).await;
        Ok(count)
    }

    /// The task has waited.
    pub(super) fn begin(&mut self) {
        self.bytes = 0;
    }

    /// Counts what was done, and ends the turn if that is enough.
    pub(super) async fn spend(&mut self, bytes: usize) {
        if self.is_over_after(bytes) {
            yield_now().await;
        }
    }

    fn is_over_after(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let is_over = self.bytes >= TURN_BYTES;
        if is_over {
            self.bytes = 0;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_never_waits_is_made_to() {
        let mut turn = WorkBudget::default();
        let mut over_after = |bytes| (1..).find(|_| turn.is_over_after(bytes)).unwrap();
        assert_eq!(over_after(REQUEST_BYTES), TURN_BYTES / REQUEST_BYTES);
        assert_eq!(over_after(TURN_BYTES - 1), 2);
        assert_eq!(over_after(usize::MAX), 1);
        assert!(!turn.is_over_after(TURN_BYTES - 1));
        turn.begin();
        assert!(!turn.is_over_after(TURN_BYTES - 1), "it has waited");
    }
}
