//! The walk of queued requests past their model's own batching library.
//!
//! The dynamic batcher asks it, on whichever core of the model forms a batch, one at a time; see
//! `engine::BatchStrategy`.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Weak};

use conch_abi as abi;
use conch_engine::{BatchStrategy, OwnedRequest};

use super::model::LoadedModel;
use super::request::BackendRequest;
use crate::boundary::as_handle;

/// A queue's way to its model's strategy. The model outlives its cores, which are the only ones to
/// ask.
pub(crate) struct QueueBatcher {
    model: Weak<LoadedModel>,
    /// What the library keeps about the batch that forms; its own.
    batch: *mut c_void,
    /// What it sees of a request; reused.
    shell: Arc<BackendRequest>,
}

// SAFETY: the batch is only passed back to its library, by one thread at a time.
unsafe impl Send for QueueBatcher {}

impl QueueBatcher {
    pub(crate) fn new(model: &Arc<LoadedModel>) -> QueueBatcher {
        QueueBatcher {
            model: Arc::downgrade(model),
            batch: ptr::null_mut(),
            shell: Arc::default(),
        }
    }
}

impl BatchStrategy for QueueBatcher {
    fn begin(&mut self) {
        let model = self.model.upgrade();
        if let Some(strategy) = model.as_deref().and_then(LoadedModel::strategy) {
            strategy.begin(&mut self.batch);
        }
    }

    fn includes(&mut self, request: OwnedRequest) -> (OwnedRequest, bool) {
        let model = self.model.upgrade();
        let strategy = model.as_deref().and_then(LoadedModel::strategy);
        let facts = model.as_deref().and_then(|model| model.facts().ok());
        let (Some(strategy), Some(facts)) = (strategy, facts) else {
            return (request, true);
        };
        let shell = match Arc::get_mut(&mut self.shell) {
            Some(shell) => shell,
            // Not reached: nobody else can have taken a count of a request that is only shown.
            None => {
                self.shell = Arc::default();
                Arc::get_mut(&mut self.shell).expect("just made")
            }
        };
        shell.show(request, facts);
        let handle = as_handle::<abi::TRITONBACKEND_Request>(&*self.shell);
        // SAFETY: the handle is live during the call; `begin` wrote the batch.
        let joins = unsafe { strategy.includes(handle, self.batch) };
        let shell = Arc::get_mut(&mut self.shell).expect("nobody may share what is shown");
        (shell.take_back(), joins)
    }

    fn end(&mut self) {
        let batch = std::mem::replace(&mut self.batch, ptr::null_mut());
        // As upstream: a batch of which nothing is kept has no end.
        if batch.is_null() {
            return;
        }
        let model = self.model.upgrade();
        if let Some(strategy) = model.as_deref().and_then(LoadedModel::strategy) {
            // SAFETY: `begin` wrote the batch, and it is not used again.
            unsafe { strategy.end(batch) };
        }
    }
}
