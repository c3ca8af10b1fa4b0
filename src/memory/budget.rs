//! The process-wide bound on request bytes (`--memory-limit-bytes`).
//!
//! One atomic counter, charged in steps of at least [`Charge::STEP_BYTES`] so that a body that arrives in small pieces does not
//! touch the shared cache line for each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes requests hold in this process, and how many they may.
#[derive(Debug)]
pub struct Budget {
    used_bytes: AtomicU64,
    limit_bytes: u64,
}

/// The budget has no room for what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    pub asked_bytes: u64,
    pub limit_bytes: u64,
}

impl Budget {
    pub fn new(limit_bytes: u64) -> Arc<Budget> {
        Arc::new(Budget {
            used_bytes: AtomicU64::new(0),
            limit_bytes,
        })
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    fn reserve(&self, bytes: u64) -> Result<(), Exhausted> {
        let refused = Exhausted {
            asked_bytes: bytes,
            limit_bytes: self.limit_bytes,
        };
        // Relaxed: the counter guards no other memory.
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes)
                    .filter(|total| *total <= self.limit_bytes)
            })
            .map(|_| ())
            .map_err(|_| refused)
    }
}

/// Bytes reserved from a [`Budget`]; given back on drop.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    reserved_bytes: u64,
}

impl Charge {
    /// Granularity of reservations.
    pub const STEP_BYTES: u64 = 64 << 10;

    /// A charge of nothing; grows with [`Charge::cover`].
    pub fn empty(budget: &Arc<Budget>) -> Charge {
        Charge {
            budget: Arc::clone(budget),
            reserved_bytes: 0,
        }
    }

    /// Makes the charge cover at least `bytes` in all; never shrinks it.
    ///
    /// # Errors
    /// [`Exhausted`] if the budget has no room; the charge is then unchanged.
    pub fn cover(&mut self, bytes: u64) -> Result<(), Exhausted> {
        if bytes <= self.reserved_bytes {
            return Ok(());
        }
        let target = steps(bytes);
        self.budget.reserve(target - self.reserved_bytes)?;
        self.reserved_bytes = target;
        Ok(())
    }

    /// Gives back what the charge covers beyond `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let kept_bytes = steps(bytes).min(self.reserved_bytes);
        self.budget
            .used_bytes
            .fetch_sub(self.reserved_bytes - kept_bytes, Ordering::Relaxed);
        self.reserved_bytes = kept_bytes;
    }

    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
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
        self.budget
            .used_bytes
            .fetch_sub(self.reserved_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
