//! The next value of an implicit state: what `TRITONBACKEND_State*` points to. Belongs to its
//! backend request; used by one thread at a time.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_abi as abi;
use conch_engine::Error;
use conch_engine::model::states::SequenceStates;
use conch_memory::MemoryPlace;

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

    /// Where the value is to be written: on the instance's GPU if the state is growable, else in
    /// host memory. The address is the state's until its sequence goes on with another value.
    ///
    /// # Errors
    /// As [`SequenceStates::buffer`] and [`SequenceStates::grow`].
    pub(crate) fn buffer(&self, bytes: u64) -> Result<(*mut c_void, MemoryPlace), Error> {
        let mut states = lock(&self.states);
        let (address, place) = match states.grow(self.number, bytes)? {
            // The sequence keeps the memory.
            Some(view) => (view.as_ptr().cast_mut().cast(), view.place()),
            None => {
                let buffer = states.buffer(self.number, bytes)?;
                (buffer.as_mut_ptr().cast(), MemoryPlace::CPU)
            }
        };
        drop(states);
        self.attributes.store(bytes, place.kind as u32, place.id);
        Ok((address, place))
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
