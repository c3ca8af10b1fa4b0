//! The messages of one connection that have arrived in part.
//!
//! Each holds memory, a place in tables and the peer's windows until it is whole. A peer that
//! begins hundreds of them and finishes none is told so, call by call; those that it began before
//! may go on.

use std::cell::Cell;
use std::rc::Rc;

use conch_memory::is_scarce;

use super::status::{GrpcCode, GrpcStatus};

/// Messages of one connection that may be open at a time. Clients send those that fit into a
/// stream's window of a megabyte one after the other, and larger ones fill the connection's window
/// when sixteen are on their way.
const OPEN_MAX: u32 = 256;

/// How many are open.
#[derive(Default)]
pub(super) struct PartialMessages {
    open_count: Cell<u32>,
}

/// A message that has arrived in part, for as long as this lives.
pub(super) struct PartialMessage(Rc<PartialMessages>);

impl PartialMessages {
    /// Counts a message that is not whole after its first bytes.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the connection has as many as it may.
    pub(super) fn begin(self: &Rc<PartialMessages>) -> Result<PartialMessage, GrpcStatus> {
        let open_count = self.open_count.get();
        if open_count >= OPEN_MAX {
            return Err(GrpcStatus::new(
                GrpcCode::ResourceExhausted,
                format!(
                    "the connection has {OPEN_MAX} messages under way that have not arrived in full"
                ),
            ));
        }
        self.open_count.set(open_count + 1);
        Ok(PartialMessage(Rc::clone(self)))
    }
}

impl Drop for PartialMessage {
    fn drop(&mut self) {
        self.0.open_count.set(self.0.open_count.get() - 1);
    }
}

/// Refuses what is new while the last memory is being used up for what is there.
///
/// # Errors
/// RESOURCE_EXHAUSTED.
pub(super) fn check_memory() -> Result<(), GrpcStatus> {
    if is_scarce() {
        return Err(GrpcStatus::new(
            GrpcCode::ResourceExhausted,
            "the server has no memory left for new requests",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_may_be_open_and_no_more() {
        let uploads = Rc::new(PartialMessages::default());
        let mut open: Vec<PartialMessage> =
            (0..OPEN_MAX).map(|_| uploads.begin().unwrap()).collect();
        let refused = uploads.begin().err().expect("one too many");
        assert_eq!(refused.code, GrpcCode::ResourceExhausted);
        assert!(refused.message.contains("256 messages"), "{refused:?}");
        open.pop();
        let again = uploads.begin();
        assert!(again.is_ok() && uploads.begin().is_err());
        drop((open, again));
        assert_eq!(uploads.open_count.get(), 0);
    }
}
