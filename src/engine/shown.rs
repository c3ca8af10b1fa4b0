//! Shows queued requests to their model's own batching strategy.

use conch_sync::ClaimReason;

use crate::backend::BatchStrategy;
use crate::scheduler::{Strategy, Verdict};
use crate::{Live, Ticket};

/// The scheduler's side of a [`BatchStrategy`].
pub(crate) struct Shown(pub(crate) Box<dyn BatchStrategy>);

impl Strategy<Ticket> for Shown {
    fn begin(&mut self) {
        self.0.begin();
    }

    /// The strategy reads the request as if it executed it, so that nobody answers and frees it meanwhile.
    fn includes(&mut self, ticket: &Ticket) -> Verdict<Live> {
        let Some(live) = conch_sync::Claim::claim(ticket, ClaimReason::Execute, None) else {
            return Verdict::Gone;
        };
        let (live, joins) = self.0.includes(live);
        match live.put_back() {
            Some(live) => Verdict::Cancelled(live),
            None if joins => Verdict::Joins,
            None => Verdict::Stays,
        }
    }

    fn end(&mut self) {
        self.0.end();
    }
}
