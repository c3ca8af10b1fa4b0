//! The part of the byte budget that one connection holds.
//!
//! A share takes steps from the process and keeps up to [`READY_STEPS`] of them when they are not
//! used any more: small requests, one after the other, then touch no counter but their connection's
//! own. Whoever looks after the connection gives them back with `Budget::trim` when it rests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::total::{BudgetExhausted, ClientId, ConnectionUsage, STEP_BYTES, Total};

/// A small request and its response.
const READY_STEPS: u64 = 2;
/// Counts of steps are halves of one word.
const STEPS_MAX: u64 = u32::MAX as u64;
const TAKEN_SHIFT: u32 = 32;

/// What a connection holds on behalf of one client.
#[derive(Debug)]
pub(crate) struct ClientShare {
    usage: Arc<ConnectionUsage>,
    client: ClientId,
    /// Steps in use (low half), and taken from the process (high half): never fewer.
    steps: AtomicU64,
}

fn split(steps: u64) -> (u64, u64) {
    (steps & STEPS_MAX, steps >> TAKEN_SHIFT)
}

fn join(used: u64, taken: u64) -> u64 {
    taken << TAKEN_SHIFT | used
}

impl ClientShare {
    pub(crate) fn new(usage: &Arc<ConnectionUsage>, client: ClientId) -> ClientShare {
        ClientShare {
            usage: Arc::clone(usage),
            client,
            steps: AtomicU64::new(0),
        }
    }

    pub(crate) fn usage(&self) -> &ConnectionUsage {
        &self.usage
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// `bytes` is a whole number of steps.
    pub(crate) fn reserve(&self, total: &Total, bytes: u64) -> Result<(), BudgetExhausted> {
        let count = bytes / STEP_BYTES;
        let ready = self
            .steps
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |steps| {
                let (used, taken) = split(steps);
                let used = used.checked_add(count)?;
                (used <= taken).then(|| join(used, taken))
            });
        if ready.is_ok() {
            return Ok(());
        }
        if count > STEPS_MAX / 2 {
            // More than any machine has, and than half a word counts.
            return Err(total.refusal(bytes));
        }
        total.reserve_for(&self.usage, self.client, bytes)?;
        self.usage.note_moved(bytes);
        self.steps.fetch_add(join(count, count), Ordering::Relaxed);
        Ok(())
    }

    /// Gives back what was reserved, but for a little that is kept ready.
    pub(crate) fn release(&self, total: &Total, bytes: u64) {
        let excess_bytes = self.return_steps(total, bytes / STEP_BYTES, READY_STEPS);
        if excess_bytes > 0 {
            self.usage.note_moved(excess_bytes);
        }
    }

    /// As [`ClientShare::release`], for what was reserved just before: as if it had not been.
    pub(crate) fn release_unused(&self, total: &Total, bytes: u64) {
        let excess_bytes = self.return_steps(total, bytes / STEP_BYTES, READY_STEPS);
        self.usage.forget_moved(excess_bytes);
    }

    /// Gives back all that is not in use.
    pub(crate) fn trim(&self, total: &Total) {
        let (used, taken) = split(self.steps.load(Ordering::Relaxed));
        if used < taken {
            self.return_steps(total, 0, 0);
        }
    }

    /// Ends the use of `count` steps, and gives back what is taken beyond those in use and `ready`.
    /// Returns how many bytes that was.
    fn return_steps(&self, total: &Total, count: u64, ready: u64) -> u64 {
        let mut excess = 0;
        let outcome = self
            .steps
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |steps| {
                let (used, taken) = split(steps);
                let used = used.checked_sub(count)?;
                let kept = taken.min(used + ready);
                excess = taken - kept;
                Some(join(used, kept))
            });
        debug_assert!(outcome.is_ok(), "more was given back than reserved");
        let excess_bytes = excess * STEP_BYTES;
        if excess > 0 {
            total.release_for(&self.usage, self.client, excess_bytes);
        }
        excess_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Charge};

    const STEP: u64 = STEP_BYTES;

    #[test]
    fn small_charges_stay_with_their_connection() {
        let budget = Budget::new(1 << 30);
        let usage = Arc::<ConnectionUsage>::default();
        let share = budget.share(&usage, budget.client(b"a"));
        for _ in 0..100 {
            let mut request = Charge::empty(&share);
            request.cover(64).unwrap();
            let mut response = Charge::empty(&share);
            response.cover(64).unwrap();
        }
        assert_eq!(budget.used_bytes(), 2 * STEP);
        assert_eq!(usage.moved_bytes(), 2 * STEP, "taken once");
        share.trim();
        assert_eq!(budget.used_bytes(), 0);
        let mut large = Charge::empty(&share);
        large.cover(100 * STEP).unwrap();
        drop(large);
        assert_eq!(budget.used_bytes(), 2 * STEP, "the rest went back at once");
        drop(share);
        assert_eq!((budget.used_bytes(), usage.peer_bytes()), (0, 0));
    }

    #[test]
    fn what_is_covered_ahead_in_vain_does_not_move() {
        let budget = Budget::new(1 << 30);
        let usage = Arc::<ConnectionUsage>::default();
        let share = budget.share(&usage, budget.client(b"a"));
        let mut charge = Charge::empty(&share);
        let mut covered = 10 * STEP;
        charge.cover(covered).unwrap();
        for _ in 0..100 {
            charge.cover(covered + 4 * STEP).unwrap();
            covered += 1;
            charge.shrink_unused(covered);
        }
        // The ready steps were taken once.
        assert_eq!(charge.reserved_bytes(), 11 * STEP);
        assert_eq!(usage.moved_bytes(), 13 * STEP);
        assert_eq!(budget.used_bytes(), 13 * STEP);
        charge.cover(20 * STEP).unwrap();
        charge.shrink(0);
        assert_eq!(usage.moved_bytes(), (22 + 20) * STEP);
        drop(charge);
        share.trim();
        assert_eq!((budget.used_bytes(), usage.peer_bytes()), (0, 0));
    }

    #[test]
    fn many_threads_leave_nothing_behind() {
        let budget = Budget::new(1 << 20);
        let usage = Arc::<ConnectionUsage>::default();
        let share = budget.share(&usage, budget.client(b"a"));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let share = &share;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let mut charge = Charge::empty(share);
                        let _ = charge.cover((thread + round) % 5 * STEP);
                        charge.mark_complete();
                        share.trim();
                    }
                });
            }
        });
        share.trim();
        assert_eq!((budget.used_bytes(), usage.peer_bytes()), (0, 0));
    }
}
