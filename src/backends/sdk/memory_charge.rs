//! Memory that a plug-in holds for itself, within the limit of the server.

use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use conch_abi as abi;

use crate::Error;
use crate::symbol::ServerFunction;

type RawError = *mut abi::TRITONSERVER_Error;
type RawCharge = *mut abi::CONCH_MemoryCharge;
type New = unsafe extern "C" fn(*mut RawCharge, *mut abi::TRITONBACKEND_Model) -> RawError;
type Set = unsafe extern "C" fn(RawCharge, u64) -> RawError;
type Delete = unsafe extern "C" fn(RawCharge) -> RawError;

// Triton has none of these.
// SAFETY: the type is that of the header.
static NEW: ServerFunction<New> = unsafe { ServerFunction::new(c"CONCH_MemoryChargeNew") };
// SAFETY: the type is that of the header.
static SET: ServerFunction<Set> = unsafe { ServerFunction::new(c"CONCH_MemoryChargeSet") };
// SAFETY: the type is that of the header.
static DELETE: ServerFunction<Delete> = unsafe { ServerFunction::new(c"CONCH_MemoryChargeDelete") };

/// Bytes that count in the server's memory limit as long as this lives. A server without such a
/// limit (Triton) takes any number. Usable from every thread.
#[derive(Debug)]
pub struct MemoryCharge {
    state: Mutex<ChargeState>,
}

#[derive(Debug)]
struct ChargeState {
    bytes: u64,
    /// None: the server has no such limit.
    raw: Option<NonNull<abi::CONCH_MemoryCharge>>,
}

// SAFETY: the server wants one thread at a time, which the lock sees to.
unsafe impl Send for ChargeState {}

impl MemoryCharge {
    /// A charge of nothing.
    ///
    /// # Safety
    /// `model` is live.
    pub(crate) unsafe fn new(model: *mut abi::TRITONBACKEND_Model) -> Result<MemoryCharge, Error> {
        let mut raw = ptr::null_mut();
        if let Some(new) = NEW.find() {
            // SAFETY: the model is live, the result writable.
            unsafe { Error::check(new(&raw mut raw, model))? };
        }
        let raw = NonNull::new(raw);
        Ok(MemoryCharge {
            state: Mutex::new(ChargeState { bytes: 0, raw }),
        })
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    /// `Unavailable` if the limit has no room for them.
    pub fn add(&self, bytes: u64) -> Result<(), Error> {
        let mut state = self.lock();
        let sum = state.bytes.checked_add(bytes);
        let sum = sum.ok_or_else(|| Error::internal("no server has so much memory"))?;
        state.set(sum)
    }

    /// Gives `bytes` back.
    pub fn sub(&self, bytes: u64) {
        let mut state = self.lock();
        let left = state.bytes.saturating_sub(bytes);
        // Less is never refused.
        let _ = state.set(left);
    }

    fn lock(&self) -> MutexGuard<'_, ChargeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChargeState {
    fn set(&mut self, bytes: u64) -> Result<(), Error> {
        if let (Some(raw), Some(set)) = (self.raw, SET.find()) {
            // SAFETY: the charge is ours, and this is the only thread that uses it now.
            unsafe { Error::check(set(raw.as_ptr(), bytes))? };
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for ChargeState {
    fn drop(&mut self) {
        if let (Some(raw), Some(delete)) = (self.raw, DELETE.find()) {
            // SAFETY: the charge is ours, and nobody uses it any more.
            let _ = unsafe { Error::check(delete(raw.as_ptr())) };
        }
    }
}
