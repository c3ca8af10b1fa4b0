//! The process-wide bound on request bytes (`--memory-limit-bytes`), and the shares of those who
//! charge it.
//!
//! A [`Budget`] is what is charged: the process, or one connection on behalf of one client.
//! [`Charge`]s reserve steps of [`Charge::STEP_BYTES`], so that a body that arrives in small pieces
//! does not touch an atomic for each of them. How much a connection and a client may hold is
//! decided in [`Total::reserve_for`]; see [`crate::share`] for what a connection keeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::share::ClientShare;
use crate::total::{
    BudgetExhausted, ClientId, ConnectionUsage, RESERVE_PART, SMALL_BYTES_MIN, STEP_BYTES, Total,
};

/// Whom bytes are charged to.
#[derive(Debug)]
pub struct Budget {
    total: Arc<Total>,
    holder: Holder,
}

/// Who holds what is charged.
#[derive(Debug)]
enum Holder {
    /// Within the limit and nothing else.
    Process,
    /// See [`Total::reserve_for_plugin`].
    Plugins,
    Connection(ClientShare),
}

impl Budget {
    /// The budget of a process, with the usual reserve.
    pub fn new(limit_bytes: u64) -> Arc<Budget> {
        Budget::with_reserve(limit_bytes, limit_bytes / RESERVE_PART)
    }

    /// The budget of a process. The last `reserve_bytes` are for connections that hold little.
    pub fn with_reserve(limit_bytes: u64, reserve_bytes: u64) -> Arc<Budget> {
        Arc::new(Budget {
            total: Arc::new(Total::new(limit_bytes, reserve_bytes)),
            holder: Holder::Process,
        })
    }

    /// What the connection of `usage` charges on behalf of `client`.
    pub fn share(&self, usage: &Arc<ConnectionUsage>, client: ClientId) -> Arc<Budget> {
        Arc::new(Budget {
            total: Arc::clone(&self.total),
            holder: Holder::Connection(ClientShare::new(usage, client)),
        })
    }

    /// What plug-ins charge for memory of their own: half of the limit for all of them.
    pub fn for_plugins(&self) -> Arc<Budget> {
        Arc::new(Budget {
            total: Arc::clone(&self.total),
            holder: Holder::Plugins,
        })
    }

    /// The client of this name: an address, or what a request says of its tenant.
    pub fn client(&self, name: &[u8]) -> ClientId {
        self.total.client(name)
    }

    /// On whose behalf it is charged. None: the process, or plug-ins.
    pub fn charged_client(&self) -> Option<ClientId> {
        self.connection().map(ClientShare::client)
    }

    fn connection(&self) -> Option<&ClientShare> {
        match &self.holder {
            Holder::Connection(share) => Some(share),
            Holder::Process | Holder::Plugins => None,
        }
    }

    /// Bytes charged in the process, and what shares keep ready.
    pub fn used_bytes(&self) -> u64 {
        self.total.used_bytes()
    }

    pub fn limit_bytes(&self) -> u64 {
        self.total.limit_bytes()
    }

    /// Bytes to be freed so that nobody is refused: none unless more than three quarters are used
    /// of what all may use, or more than half and somebody was refused since the last call. One
    /// thread calls this.
    pub fn excess_bytes(&self) -> u64 {
        self.total.excess_bytes()
    }

    /// Notes that a connection was dropped to make room; returns how many were, so far.
    pub fn note_dropped(&self) -> u64 {
        self.total.note_dropped()
    }

    /// Connections that were dropped to make room.
    pub fn dropped_count(&self) -> u64 {
        self.total.dropped_count()
    }

    /// How often bytes were refused.
    pub fn refused_count(&self) -> u64 {
        self.total.refused_count()
    }

    /// Notes that `bytes` were received or taken by the peer: the connection moves.
    pub fn note_moved(&self, bytes: usize) {
        if let Some(share) = self.connection() {
            share.usage().note_moved(bytes as u64);
        }
    }

    /// Gives back what the share keeps ready and does not use.
    pub fn trim(&self) {
        if let Some(share) = self.connection() {
            share.trim(&self.total);
        }
    }

    fn reserve(&self, bytes: u64) -> Result<(), BudgetExhausted> {
        match &self.holder {
            Holder::Connection(share) => share.reserve(&self.total, bytes),
            Holder::Plugins => self.total.reserve_for_plugin(bytes),
            Holder::Process => self.total.reserve(bytes),
        }
    }

    fn release(&self, bytes: u64) {
        match &self.holder {
            Holder::Connection(share) => share.release(&self.total, bytes),
            Holder::Plugins => self.total.release_for_plugin(bytes),
            Holder::Process => self.total.release(bytes),
        }
    }

    fn release_unused(&self, bytes: u64) {
        match &self.holder {
            Holder::Connection(share) => share.release_unused(&self.total, bytes),
            _ => self.release(bytes),
        }
    }

    fn usage(&self) -> Option<&ConnectionUsage> {
        self.connection().map(ClientShare::usage)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        // No charge is left, as each keeps its budget.
        self.trim();
    }
}

/// Bytes reserved from a [`Budget`]; given back on drop.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    reserved_bytes: u64,
    /// The peer has done its part: the bytes wait for the server.
    is_complete: AtomicBool,
}

impl Charge {
    /// Granularity of reservations.
    pub const STEP_BYTES: u64 = STEP_BYTES;

    /// A charge of nothing; grows with [`Charge::cover`].
    pub fn empty(budget: &Arc<Budget>) -> Charge {
        Charge {
            budget: Arc::clone(budget),
            reserved_bytes: 0,
            is_complete: AtomicBool::new(false),
        }
    }

    /// Makes the charge cover at least `bytes` in all; never shrinks it.
    ///
    /// # Errors
    /// [`BudgetExhausted`] if the budget has no room; the charge is then unchanged.
    pub fn cover(&mut self, bytes: u64) -> Result<(), BudgetExhausted> {
        if bytes <= self.reserved_bytes {
            return Ok(());
        }
        self.mark_incomplete();
        let target = steps(bytes);
        self.budget.reserve(target - self.reserved_bytes)?;
        self.reserved_bytes = target;
        Ok(())
    }

    /// Gives back what the charge covers beyond `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let freed_bytes = self.cut(bytes);
        self.budget.release(freed_bytes);
    }

    /// As [`Charge::shrink`], for what was covered ahead just before and has not come: the
    /// connection does not move by it.
    pub fn shrink_unused(&mut self, bytes: u64) {
        let freed_bytes = self.cut(bytes);
        self.budget.release_unused(freed_bytes);
    }

    /// Covers `bytes` at most; returns how many fewer are reserved now.
    fn cut(&mut self, bytes: u64) -> u64 {
        self.mark_incomplete();
        let kept_bytes = steps(bytes).min(self.reserved_bytes);
        let freed_bytes = self.reserved_bytes - kept_bytes;
        self.reserved_bytes = kept_bytes;
        freed_bytes
    }

    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Says that the bytes have arrived in full: while they are held now, it is not because their
    /// sender is slow.
    pub fn mark_complete(&self) {
        // Small ones make no difference to whom is looked at.
        if self.reserved_bytes <= SMALL_BYTES_MIN {
            return;
        }
        if let Some(usage) = self.budget.usage()
            && !self.is_complete.swap(true, Ordering::Relaxed)
        {
            usage.add_complete(self.reserved_bytes);
        }
    }

    fn mark_incomplete(&mut self) {
        if std::mem::take(self.is_complete.get_mut())
            && let Some(usage) = self.budget.usage()
        {
            usage.sub_complete(self.reserved_bytes);
        }
    }
}

/// `bytes`, rounded up to whole steps.
fn steps(bytes: u64) -> u64 {
    bytes
        .div_ceil(Charge::STEP_BYTES)
        .saturating_mul(Charge::STEP_BYTES)
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.mark_incomplete();
        self.budget.release(self.reserved_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn charges_in_steps_refuses_over_the_limit_and_gives_back() {
        let budget = Budget::new(200 << 10);
        let mut a = Charge::empty(&budget);
        a.cover(1).unwrap();
        assert_eq!(budget.used_bytes(), 64 << 10);
        a.cover(64 << 10).unwrap();
        assert_eq!(budget.used_bytes(), 64 << 10);
        let mut b = Charge::empty(&budget);
        b.cover(100 << 10).unwrap();
        assert_eq!(budget.used_bytes(), 192 << 10);
        assert!(b.cover(129 << 10).is_err());
        assert!(b.cover(u64::MAX).is_err());
        assert_eq!(budget.used_bytes(), 192 << 10);
        b.shrink(1 << 20);
        assert_eq!(budget.used_bytes(), 192 << 10, "it only shrinks");
        b.shrink(1);
        assert_eq!(
            (b.reserved_bytes(), budget.used_bytes()),
            (64 << 10, 128 << 10)
        );
        b.shrink(0);
        assert_eq!(budget.used_bytes(), 64 << 10);
        b.cover(1).unwrap();
        drop(b);
        drop(a);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn plug_ins_hold_half_at_most() {
        let budget = Budget::new(16 * MIB);
        let plugins = [budget.for_plugins(), budget.for_plugins()];
        let mut charges = plugins.each_ref().map(Charge::empty);
        charges[0].cover(6 * MIB).unwrap();
        assert!(charges[1].cover(3 * MIB).is_err());
        charges[1].cover(2 * MIB).unwrap();
        assert!(charges[0].cover(7 * MIB).is_err());
        let mut process = Charge::empty(&budget);
        process.cover(8 * MIB).unwrap();
        charges[0].shrink(0);
        process.cover(14 * MIB).unwrap();
        assert!(charges[0].cover(1).is_err(), "nor is there anything free");
        drop(charges);
        assert_eq!(budget.used_bytes(), 14 * MIB);
    }

    /// Charges MiB after MiB to new connections of `client`, until the first is refused.
    fn fill(budget: &Budget, client: &[u8], count: usize) -> Vec<(Arc<Budget>, Charge)> {
        let mut held: Vec<(Arc<Budget>, Charge)> = (0..count)
            .map(|_| {
                let share = budget.share(&Arc::default(), budget.client(client));
                let charge = Charge::empty(&share);
                (share, charge)
            })
            .collect();
        // In turn, as connections fill up side by side.
        let mut is_growing = true;
        while std::mem::take(&mut is_growing) {
            for (_, charge) in &mut held {
                is_growing |= charge.cover(charge.reserved_bytes() + MIB).is_ok();
            }
        }
        held
    }

    fn fits(budget: &Budget, client: &[u8], bytes: u64) -> bool {
        let share = budget.share(&Arc::default(), budget.client(client));
        Charge::empty(&share).cover(bytes).is_ok()
    }

    #[test]
    fn one_connection_may_hold_most_and_never_the_reserve() {
        let budget = Budget::with_reserve(1024 * MIB, 64 * MIB);
        let held = fill(&budget, b"a", 1);
        let used_mib = budget.used_bytes() / MIB;
        assert!((670..=690).contains(&used_mib), "{used_mib} of 960");
        let many = fill(&budget, b"a", 64);
        let used_mib = budget.used_bytes() / MIB;
        assert!((800..=856).contains(&used_mib), "8/9 of 960: {used_mib}");
        drop((held, many));
        assert_eq!(budget.used_bytes(), 0);
        // By the process itself.
        let mut own = Charge::empty(&budget);
        own.cover(1024 * MIB).unwrap();
        assert!(!fits(&budget, b"a", 1));
    }

    #[test]
    fn whoever_comes_finds_room_whatever_one_client_holds() {
        for count in [1, 16, 250, 5000] {
            let budget = Budget::with_reserve(4096 * MIB, 256 * MIB);
            let held = fill(&budget, b"a", count);
            assert!(budget.excess_bytes() > 0, "{count}");
            for client in [&b"a"[..], b"b"] {
                assert!(fits(&budget, client, 128 << 10), "{count} {client:?}");
            }
            // So many small ones fill what is for all, and must be dropped first.
            if count < 1000 {
                assert!(fits(&budget, b"b", 200 * MIB), "another client, {count}");
                let own_mib = 4096 / (4 * count as u64 + 1) / 2;
                assert!(fits(&budget, b"a", own_mib * MIB), "{count} {own_mib}");
            }
            drop(held);
            assert_eq!(budget.used_bytes(), 0);
            assert_eq!(budget.excess_bytes(), 0);
        }
    }

    #[test]
    fn the_reserve_is_for_those_who_hold_little() {
        let budget = Budget::with_reserve(64 * MIB, 4 * MIB);
        let mut own = Charge::empty(&budget);
        own.cover(60 * MIB).unwrap();
        let share = budget.share(&Arc::default(), budget.client(b"a"));
        let mut charge = Charge::empty(&share);
        assert!(charge.cover(2 * MIB).is_err(), "not small");
        charge.cover(MIB).unwrap();
        assert!(
            Charge::empty(&share).cover(1).is_err(),
            "its connection holds that already"
        );
        assert!(budget.excess_bytes() > 0);
        assert!(fits(&budget, b"a", 3 * (64 << 10)));
    }

    #[test]
    fn what_is_complete_is_not_the_peers() {
        let budget = Budget::new(1024 * MIB);
        let usage = Arc::<ConnectionUsage>::default();
        let share = budget.share(&usage, budget.client(b"a"));
        let mut charge = Charge::empty(&share);
        charge.cover(3 * MIB).unwrap();
        assert_eq!(usage.peer_bytes(), 3 * MIB);
        charge.mark_complete();
        charge.mark_complete();
        assert_eq!(usage.peer_bytes(), 0);
        charge.shrink(2 * MIB);
        assert_eq!(
            usage.peer_bytes(),
            2 * MIB + (128 << 10),
            "with what it keeps ready"
        );
        charge.mark_complete();
        drop(charge);
        assert_eq!(usage.peer_bytes(), 128 << 10);
        share.trim();
        assert_eq!((usage.peer_bytes(), budget.used_bytes()), (0, 0));
    }
}
