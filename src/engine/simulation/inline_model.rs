//! A model of the simulated ensembles that takes offers, as one whose core is idle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::execution::queue::ModelQueue;
use crate::request::context::{Executor, ResponsePath, SubmitRefusal};
use crate::request::inline::{
    InlineBudget, InlineDuration, InlineExecution, InlineOffer, InlineQueue, Progress,
};
use crate::simulation::models::{answer_of, inputs_of, made_of};
use crate::{Completion, PendingResponses, RequestHandle};

/// What executes the requests of one version.
pub(super) struct InlineModel {
    name: Arc<str>,
    pub(super) queue: Arc<ModelQueue>,
    /// Turns that submitters owe. Nobody else looks meanwhile.
    owed_count: AtomicU64,
    /// Batches that submitters executed.
    executed_count: AtomicU64,
    own: Weak<InlineModel>,
}

impl InlineModel {
    pub(super) fn new(name: &Arc<str>, queue: Arc<ModelQueue>) -> Arc<InlineModel> {
        Arc::new_cyclic(|own| InlineModel {
            name: Arc::clone(name),
            queue,
            owed_count: AtomicU64::new(0),
            executed_count: AtomicU64::new(0),
            own: Weak::clone(own),
        })
    }

    /// Whether a core finds what is queued.
    pub(super) fn is_open_to_cores(&self) -> bool {
        self.owed_count.load(Ordering::Relaxed) == 0
    }

    pub(super) fn executed_count(&self) -> u64 {
        self.executed_count.load(Ordering::Relaxed)
    }
}

impl Executor for InlineModel {
    fn response_path(&self, completion: &Arc<dyn Completion>, may_cache: bool) -> ResponsePath {
        self.queue.response_path(completion, may_cache)
    }

    fn submit(&self, handle: RequestHandle, offer: &mut InlineOffer) -> Result<(), SubmitRefusal> {
        self.queue.submit(handle, &mut InlineOffer::none())?;
        if offer.is_open() {
            self.owed_count.fetch_add(1, Ordering::Relaxed);
            offer.take(self.own.upgrade().unwrap());
        }
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    fn report_cancel(&self, handle: RequestHandle) {
        self.queue.report_cancel(handle);
    }
}

impl InlineQueue for InlineModel {
    fn execute_inline(
        &self,
        _: Duration,
        _: InlineBudget,
        _: InlineDuration,
    ) -> Option<InlineExecution> {
        self.owed_count.fetch_sub(1, Ordering::Relaxed);
        let batch = self.queue.form_now();
        if batch.is_empty() {
            return None;
        }
        let mut pending = PendingResponses::default();
        for live in batch {
            let handle = Arc::clone(live.handle());
            let made = made_of(&self.name, &inputs_of(&live));
            drop(live);
            let response = answer_of(handle.shared(), &made);
            pending.push(handle.shared(), Some(Ok(response)), true);
        }
        self.executed_count.fetch_add(1, Ordering::Relaxed);
        pending.flush();
        Some(InlineExecution {
            progress: Progress::Done,
            batch_count: 1,
            duration_ns: 1,
            is_left: false,
        })
    }

    fn leave_to_core(&self) {
        self.owed_count.fetch_sub(1, Ordering::Relaxed);
    }
}
