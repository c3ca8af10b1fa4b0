//! The next value of an implicit state: what `TRITONBACKEND_State*` points to. Belongs to its
//! backend request; used by one thread at a time.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_abi as abi;
use conch_engine::Error;
use conch_engine::model::states::SequenceStates;

use crate::boundary::{HandleTag, handles};
use crate::objects::BufferAttributes;

handles! {
    TRITONBACKEND_State => BackendState, "state", tagged;
}

/// A state of the request's sequence.
#[repr(C)]
pub(crate) struct BackendState {
    tag: HandleTag<abi::TRITONBACKEND_State>,
    states: Arc<Mutex<SequenceStates>>,
    number: usize,
    attributes: BufferAttributes,
}

impl BackendState {
    pub(super) fn new(states: &Arc<Mutex<SequenceStates>>, number: usize) -> BackendState {
        BackendState {
            tag: HandleTag::default(),
            states: Arc::clone(states),
            number,
            attributes: BufferAttributes::default(),
        }
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn attributes(&self) -> &BufferAttributes {
        &self.attributes
    }

    /// Where the value is to be written, in host memory.
    ///
    /// # Errors
    /// As [`SequenceStates::buffer`].
    pub(crate) fn buffer(&self, bytes: u64) -> Result<*mut c_void, Error> {
        let mut states = lock(&self.states);
        let address = states.buffer(self.number, bytes)?.as_mut_ptr().cast();
        drop(states);
        self.attributes.byte_size.store(bytes, Ordering::Relaxed);
        Ok(address)
    }

    /// Makes it what the sequence's next request finds.
    ///
    /// # Errors
    /// As [`SequenceStates::update`].
    pub(crate) fn update(&self) -> Result<(), Error> {
        lock(&self.states).update(self.number)
    }
}

/// Uncontended: one request at a time has a sequence's states, and its backend uses them from one
/// thread.
pub(super) fn lock(states: &Mutex<SequenceStates>) -> MutexGuard<'_, SequenceStates> {
    states.lock().unwrap_or_else(PoisonError::into_inner)
}
