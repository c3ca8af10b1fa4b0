//! What is wrong with a device: a sticky error of its context, or that the device is lost.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::code::{Code, DEVICE_UNAVAILABLE, SUCCESS, is_sticky};

#[derive(Default)]
pub struct Health {
    sticky: AtomicU32,
    is_lost: AtomicBool,
    /// How often it broke or was lost.
    breaks: AtomicU64,
}

impl Health {
    /// Refuses for a lost device only.
    pub fn check_present(&self) -> Result<(), Code> {
        match self.is_lost.load(Ordering::Acquire) {
            true => Err(DEVICE_UNAVAILABLE),
            false => Ok(()),
        }
    }

    /// Refuses for a lost device and for a context with a sticky error.
    pub fn check(&self) -> Result<(), Code> {
        self.check_present()?;
        match self.sticky.load(Ordering::Acquire) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Takes note of a code that happened on the device. The first sticky one stays.
    pub fn note(&self, code: Code) {
        if code == DEVICE_UNAVAILABLE {
            self.is_lost.store(true, Ordering::Release);
        } else if is_sticky(code) {
            let order = Ordering::AcqRel;
            let _ = self
                .sticky
                .compare_exchange(SUCCESS, code, order, Ordering::Acquire);
        } else {
            return;
        }
        self.breaks.fetch_add(1, Ordering::AcqRel);
    }

    /// How often the device broke so far. Work that runs ends when this changes, even if the device
    /// is healed before the work looks.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// What a reset of the primary context heals.
    pub fn reset(&self) {
        self.sticky.store(SUCCESS, Ordering::Release);
    }

    /// As new, also after a loss: only tests can do that.
    pub fn heal(&self) {
        self.reset();
        self.is_lost.store(false, Ordering::Release);
    }
}
