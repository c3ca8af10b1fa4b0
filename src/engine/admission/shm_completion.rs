//! Strips responses of outputs that lie in registered memory.

use std::sync::Arc;

use crate::shared_memory::RequestRegions;
use crate::{Completion, Delivery};

/// In front of the receiver of a request that uses regions: it gets what is left to send, or the
/// news that the memory was gone.
#[derive(Debug)]
pub(crate) struct ShmCompletion {
    inner: Arc<dyn Completion>,
    regions: Arc<RequestRegions>,
}

impl ShmCompletion {
    pub(crate) fn new(inner: &Arc<dyn Completion>, regions: &Arc<RequestRegions>) -> ShmCompletion {
        ShmCompletion {
            inner: Arc::clone(inner),
            regions: Arc::clone(regions),
        }
    }
}

impl Completion for ShmCompletion {
    fn deliver(&self, mut delivery: Delivery) {
        if let Some(outcome) = delivery.outcome_mut()
            && let Ok(response) = outcome
            && let Err(error) = self.regions.copy_outputs(&mut response.outputs)
        {
            *outcome = Err(error);
        }
        if delivery.is_final() {
            // Before the client can know: it may unregister the region and take its name again.
            self.regions.release();
        }
        self.inner.deliver(delivery);
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn has_waiting(&self) -> bool {
        self.inner.has_waiting()
    }

    fn is_on(&self, cpu: usize) -> bool {
        self.inner.is_on(cpu)
    }
}
