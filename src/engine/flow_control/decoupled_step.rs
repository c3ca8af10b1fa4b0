//! Paces a decoupled step of an ensemble: it answers as fast as the steps behind it and the client
//! read.
//!
//! Whoever sends a response of such a step waits, on the backend's thread, while too much of what
//! it sent before is still on its way through the ensemble. The wait is bounded: the thread may be
//! the very one that would go on with it (a model that comes twice in an ensemble, or two ensembles
//! that use two models the other way round). So after some time without any progress the response
//! is let through; what it costs is memory, which has a bound of its own.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::flow_control::credits::Credits;
use crate::flow_control::payment::{Payment, StepFlow};

/// The pace of one decoupled step in one request.
#[derive(Debug)]
pub(crate) struct FlowControl {
    state: Mutex<FlowState>,
    changed: Condvar,
    patience: Duration,
    /// Of the ensemble's request, if its client has them.
    reader: Option<Arc<Credits>>,
}

#[derive(Debug)]
struct FlowState {
    sent_count: u64,
    /// How many may have been sent by now.
    allowed_count: u64,
    is_closed: bool,
}

impl StepFlow for FlowControl {
    fn pay(&self) -> Payment {
        let payment = self.await_room();
        if payment == Payment::Made {
            self.count();
        }
        payment
    }

    fn count(&self) {
        self.state().sent_count += 1;
    }

    fn await_room(&self) -> Payment {
        let mut state = self.state();
        while !state.is_closed && state.sent_count >= state.allowed_count {
            let before = state.allowed_count;
            let waited = self
                .changed
                .wait_timeout_while(state, self.patience, |state| {
                    !state.is_closed && state.allowed_count == before
                });
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.allowed_count == before {
                break;
            }
        }
        if state.is_closed {
            return Payment::Unwanted;
        }
        drop(state);
        match &self.reader {
            Some(reader) => reader.await_room(),
            None => Payment::Made,
        }
    }
}

impl FlowControl {
    pub(crate) fn new(
        window: u64,
        patience: Duration,
        reader: Option<Arc<Credits>>,
    ) -> Arc<FlowControl> {
        Arc::new(FlowControl {
            state: Mutex::new(FlowState {
                sent_count: 0,
                allowed_count: window,
                is_closed: false,
            }),
            changed: Condvar::new(),
            patience,
            reader,
        })
    }

    /// So many responses may have been sent in all.
    pub(crate) fn allow(&self, count: u64) {
        let mut state = self.state();
        if state.allowed_count != count {
            state.allowed_count = count;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Nothing of it is wanted any more.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, FlowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_sender_waits_for_those_behind_it() {
        let flow = FlowControl::new(2, LONG, None);
        assert_eq!([flow.pay(), flow.pay()], [Payment::Made; 2]);
        let waiting = {
            let flow = Arc::clone(&flow);
            std::thread::spawn(move || flow.pay())
        };
        flow.allow(3);
        assert_eq!(waiting.join().unwrap(), Payment::Made);
        assert_eq!(flow.state().sent_count, 3);
    }

    #[test]
    fn who_is_not_wanted_does_not_wait() {
        let flow = FlowControl::new(0, LONG, None);
        let waiting = {
            let flow = Arc::clone(&flow);
            std::thread::spawn(move || flow.pay())
        };
        flow.close();
        assert_eq!(waiting.join().unwrap(), Payment::Unwanted);
        assert_eq!(flow.pay(), Payment::Unwanted);
    }

    #[test]
    fn without_progress_a_response_is_let_through() {
        let flow = FlowControl::new(0, Duration::from_millis(1), None);
        assert_eq!(flow.pay(), Payment::Made);
        assert_eq!(flow.pay(), Payment::Made);
    }

    #[test]
    fn the_client_sets_the_pace_too() {
        let reader = Arc::new(Credits::default());
        let flow = FlowControl::new(u64::MAX, LONG, Some(Arc::clone(&reader)));
        for _ in 0..crate::flow_control::credits::COUNT_MAX {
            assert_eq!(flow.pay(), Payment::Made);
            reader.charge(1);
        }
        let waiting = {
            let flow = Arc::clone(&flow);
            std::thread::spawn(move || flow.pay())
        };
        reader.refund(1);
        assert_eq!(waiting.join().unwrap(), Payment::Made);
        reader.charge(1);
        reader.close();
        assert_eq!(flow.pay(), Payment::Unwanted);
    }
}
