//! The implicit states of a request.

use std::sync::{Arc, Mutex};

use crate::Request;
use crate::model::states::SequenceStates;

impl Request {
    /// Gives the request its sequence's states: their values as inputs, in place of its own of
    /// these names, and the right to make their next ones. The request is the only one that has
    /// them; values in the making of an earlier one are gone.
    pub fn attach_states(&mut self, states: &Arc<Mutex<SequenceStates>>) {
        let mut held = states
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for state in &mut held.states {
            state.next = None;
        }
        for input in held.inputs() {
            match self.inputs.iter_mut().find(|own| own.name == input.name) {
                Some(own) => *own = input,
                None => self.inputs.push(input),
            }
        }
        drop(held);
        self.states = Some(Arc::clone(states));
    }
}
